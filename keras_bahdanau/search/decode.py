"""Search as a Keras layer."""

import keras
from keras import ops

from keras_bahdanau.layers.decoder import AttentiveDecoder
from keras_bahdanau.layers.sublayers import (
    build_sublayer,
    call_rows,
    deserialized,
    last_layer,
    output_width,
    serialized,
)
from keras_bahdanau.search.base import Search, check_search
from keras_bahdanau.search.beam import BeamSearch
from keras_bahdanau_runtime.errors import argument_error
from keras_bahdanau_runtime.ids import BOS
from keras_bahdanau_runtime.search_settings import check_setting

_SUBLAYERS = ("decoder", "embedding", "head", "search")


@keras.saving.register_keras_serializable(package="keras_bahdanau")
class Decode(keras.layers.Layer):
    """Layer that searches for output tokens over annotations.

    With this layer a functional model generates: it predicts, saves, loads and exports like any
    other model. Any encoder can compute the annotations, such as a CNN over images. The decoder,
    the embedding and the head are shared with the model that was trained with teacher forcing.

    Ids are 0 for padding, 2 for the start and 3 for the end of an output.

    Args:
        decoder: An `AttentiveDecoder`.
        embedding: A layer from ids to the decoder's inputs, `(R,)` int32 -> `(R, M)`, such as
            `keras.layers.Embedding`.
        head: A layer from the decoder's outputs to logits, `(R, W)` -> `(R, V)`, such as
            `keras.layers.Dense` without activation.
        search: A `GreedySearch` or `BeamSearch`; `BeamSearch(n_best=1)` if `None`.
        max_length: Maximum number of tokens `T`.
        return_scores: Whether to also return scores and lengths.
        **kwargs: Passed to `keras.layers.Layer`.

    Call arguments:
        annotations: `(B, Tx, D)` float tensor, or a list of them for `MultiSourceAttention`.
        mask: `(B, Tx)` bool, True = keep, or `None`; a list for `MultiSourceAttention`.
        initial_state: First states of the cell, as in a call of the decoder.
        annotations_mask: Same as `mask`. Keras passes the mask of the annotations under this name
            if the call has an `initial_state`.

    Output shape:
        `(tokens, weights)`: `(B, K, T)` int32 tokens, followed by 0, and `(B, K, T, Tx)` float32
        attention weights. With `return_scores` also scores `(B, K)` float32 and lengths `(B, K)`
        int32. `K` is the number of hypotheses that the search returns, best first. If it is 1,
        the axis is left out: tokens `(B, T)`, weights `(B, T, Tx)`.

    Raises:
        ValueError: If `decoder` is not an `AttentiveDecoder`; `search` is not a search, samples, or
            forbids an id outside of the vocabulary; `embedding` or `head` is not a layer; the head
            ends in a softmax, or its number of logits differs from the number of ids of the
            embedding; or `max_length` is not a positive int.

    Example:

    >>> import keras
    >>> decoder = AttentiveDecoder(keras.layers.GRUCell(8), BahdanauAttention(6))
    >>> embedding, head = keras.layers.Embedding(20, 5), keras.layers.Dense(20)
    >>> images = keras.Input((16, 16, 3))
    >>> features = keras.layers.Conv2D(8, 4, strides=4)(images)
    >>> annotations = keras.layers.Reshape((-1, 8))(features)
    >>> captions = keras.Input((None,), dtype="int32")              # start with 2, for training
    >>> logits = head(decoder(embedding(captions), annotations))
    >>> training = keras.Model([images, captions], logits)
    >>> tokens, weights = Decode(decoder, embedding, head, max_length=12)(annotations)
    >>> captioning = keras.Model(images, [tokens, weights])
    >>> tokens.shape, weights.shape
    ((None, 12), (None, 12, 16))
    """

    def __init__(
        self,
        decoder,
        embedding,
        head,
        search=None,
        max_length: int = 100,
        return_scores: bool = False,
        **kwargs,
    ):
        super().__init__(**kwargs)
        check_setting("max_length", max_length)
        if not isinstance(decoder, AttentiveDecoder):
            raise argument_error("decoder", "be an AttentiveDecoder", decoder)
        for name, layer in (("embedding", embedding), ("head", head)):
            if not isinstance(layer, keras.layers.Layer):
                raise argument_error(name, "be a Keras layer", layer)
        last = last_layer(head)
        activation = getattr(last, "activation", None)
        if isinstance(last, keras.layers.Softmax) or activation is keras.activations.softmax:
            raise argument_error(
                "head",
                "return logits; remove the activation and train with a loss that has "
                "from_logits=True",
                received="a layer that ends in a softmax",
            )
        search = BeamSearch(n_best=1) if search is None else search
        if not isinstance(search, Search) or search.noise(1, 1) is not None:
            raise argument_error(
                "search", "be a GreedySearch or a BeamSearch, which are deterministic", search
            )
        self.decoder = decoder
        self.embedding = embedding
        self.head = head
        self.search = search
        self.max_length = max_length
        self.return_scores = return_scores

    def build(self, annotations_shape):
        build_sublayer(self.embedding, (None, None))
        width = output_width(self.embedding, keras.KerasTensor((None,), "int32"))
        inputs = (None, None, width)
        build_sublayer(self.decoder, inputs, annotations_shape)
        outputs = self.decoder.compute_output_shape(inputs, annotations_shape)
        build_sublayer(self.head, outputs)
        row = keras.KerasTensor((None, outputs[-1]), self.compute_dtype)
        logits = output_width(self.head, row)
        check_search(self.search, logits)
        ids = getattr(self.embedding, "input_dim", logits)
        if logits != ids:
            raise argument_error(
                "head",
                f"return {ids} logits, one for each id of the embedding",
                received=f"a layer that returns {logits}",
            )

    def call(self, annotations, mask=None, initial_state=None, annotations_mask=None):
        mask = annotations_mask if mask is None else mask
        # No dropout, even when the surrounding model is trained.
        memory = self.decoder.memory(annotations, mask, training=False)

        def step(tokens, state):
            embedded = call_rows(self.embedding, tokens, training=False)
            outputs, state, weights = self.decoder.step(embedded, state, memory, training=False)
            return call_rows(self.head, outputs, training=False), state, weights

        sources, masks = _as_list(annotations), _as_list(mask)
        batch = ops.shape(sources[0])[0]
        generation = self.search(
            step,
            self.decoder.initial_state(memory, initial_state),
            ops.full((batch,), BOS, dtype="int32"),
            max_length=self.max_length,
            memory_length=sum(ops.shape(source)[1] for source in sources),
            memory_mask=_concatenate_masks(masks, sources),
        )
        outputs = [generation.tokens, generation.alignments, generation.scores, generation.lengths]
        if self._hypotheses == 1:
            outputs = [ops.squeeze(output, 1) for output in outputs]
        return tuple(outputs if self.return_scores else outputs[:2])

    def compute_output_spec(
        self, annotations, mask=None, initial_state=None, annotations_mask=None
    ):
        sources = _as_list(annotations)
        lengths = [source.shape[1] for source in sources]
        total_length = None if None in lengths else sum(lengths)
        rows = (sources[0].shape[0], *([self._hypotheses] if self._hypotheses > 1 else []))
        outputs = [
            keras.KerasTensor((*rows, self.max_length), dtype="int32"),
            keras.KerasTensor((*rows, self.max_length, total_length), dtype="float32"),
            keras.KerasTensor(rows, dtype="float32"),
            keras.KerasTensor(rows, dtype="int32"),
        ]
        return tuple(outputs if self.return_scores else outputs[:2])

    def compute_mask(self, *args, **kwargs):
        """Return `None`: the padding with 0 marks the end of the tokens."""
        return None

    @property
    def _hypotheses(self):
        """Number of hypotheses that the search returns per row."""
        return getattr(self.search, "n_best", None) or self.search.num_hypotheses

    def get_config(self):
        return {
            **super().get_config(),
            **serialized(self, *_SUBLAYERS),
            "max_length": self.max_length,
            "return_scores": self.return_scores,
        }

    @classmethod
    def from_config(cls, config):
        return cls(**deserialized(config, *_SUBLAYERS))


def _as_list(value):
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _concatenate_masks(masks, sources):
    """Return the mask over the positions of all sources, or `None` if no source has a mask."""
    if all(mask is None for mask in masks):
        return None
    masks = [
        ops.ones(ops.shape(source)[:2], dtype="bool") if mask is None else mask
        for mask, source in zip(masks, sources, strict=True)
    ]
    return ops.concatenate(masks, axis=1)
