"""A search as a layer."""

import keras
from keras import ops

from keras_bahdanau.layers.decoder import AttentiveDecoder
from keras_bahdanau.layers.sublayers import (
    build_part,
    call_rows,
    deserialized,
    last_layer,
    output_width,
    serialized,
)
from keras_bahdanau.search.base import Search, check_search
from keras_bahdanau.search.beam import BeamSearch
from keras_bahdanau_runtime.checks import check_positive
from keras_bahdanau_runtime.ids import BOS

_PARTS = ("decoder", "embedding", "head", "search")


@keras.saving.register_keras_serializable(package="keras_bahdanau")
class Decode(keras.layers.Layer):
    """Searches for outputs over annotations, so that a model that generates is a functional one.

    Any encoder, such as a CNN over images, goes before it. The decoder, the embedding and the head
    are those of the model that was trained by teacher forcing; they are shared, not copied. The
    model with the search predicts, saves, loads and exports as any other.

    Ids are those of the whole package: 0 pads, 2 begins an output, 3 ends it.

    Args:
        decoder: An `AttentiveDecoder`.
        embedding: A layer from ids to the decoder's inputs, `(R,)` int32 -> `(R, M)`, such as a
            Keras `Embedding`.
        head: A layer from the decoder's outputs to logits, `(R, W)` -> `(R, V)`, such as a `Dense`
            without activation.
        search: A `GreedySearch` or `BeamSearch`; `BeamSearch(n_best=1)` if `None`.
        max_length: Number of tokens `T` after which a hypothesis is cut.
        return_scores: Whether to return scores and lengths, too.
        **kwargs: Passed to `keras.layers.Layer`.

    Call arguments:
        annotations: `(B, Tx, D)` float tensor; a list of them for `MultiSourceAttention`.
        mask: `(B, Tx)` bool, True = keep, or `None`; likewise a list.
        initial_state: The cell's first states, as in a call of the decoder.
        annotations_mask: `mask` by the name under which Keras passes on that of the annotations
            where a state is given, too.

    Returns:
        `(tokens, weights)`: `(B, K, T)` int32, padded with 0 after the end, and the attention
        `(B, K, T, Tx)` float32. With `return_scores` also scores `(B, K)` float32 and lengths
        `(B, K)` int32. `K` is the number of hypotheses that the search returns, best first; where
        that is one, there is no such axis: tokens `(B, T)`, weights `(B, T, Tx)`.

    Raises:
        ValueError: If `decoder` is no `AttentiveDecoder`, `search` is none, draws or forbids an id
            that there is not, a layer is none, the head ends in a softmax or has another number of
            logits than the embedding has ids, or `max_length` is not a positive integer.

    Example:

    >>> import keras
    >>> decoder = AttentiveDecoder(keras.layers.GRUCell(8), BahdanauAttention(6))
    >>> embedding, head = keras.layers.Embedding(20, 5), keras.layers.Dense(20)
    >>> images = keras.Input((16, 16, 3))
    >>> features = keras.layers.Conv2D(8, 4, strides=4)(images)
    >>> annotations = keras.layers.Reshape((-1, 8))(features)
    >>> captions = keras.Input((None,), dtype="int32")              # begin with 2, for training
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
        check_positive(max_length=max_length)
        if not isinstance(decoder, AttentiveDecoder):
            raise ValueError(
                f"Argument `decoder` must be an AttentiveDecoder. Received: {decoder!r}"
            )
        for name, layer in (("embedding", embedding), ("head", head)):
            if not isinstance(layer, keras.layers.Layer):
                raise ValueError(f"Argument `{name}` must be a Keras layer. Received: {layer!r}")
        last = last_layer(head)
        activation = getattr(last, "activation", None)
        if isinstance(last, keras.layers.Softmax) or activation is keras.activations.softmax:
            raise ValueError(
                "Argument `head` must give logits: take the activation away and train with a loss "
                "that has from_logits=True. Received: a layer that ends in a softmax"
            )
        search = BeamSearch(n_best=1) if search is None else search
        if not isinstance(search, Search) or search.noise(1, 1) is not None:
            raise ValueError(
                "Argument `search` must be a GreedySearch or a BeamSearch, which find the same at "
                f"every call. Received: {search!r}"
            )
        self.decoder = decoder
        self.embedding = embedding
        self.head = head
        self.search = search
        self.max_length = max_length
        self.return_scores = return_scores

    def build(self, annotations_shape):
        build_part(self.embedding, (None, None))
        width = output_width(self.embedding, keras.KerasTensor((None,), "int32"))
        inputs = (None, None, width)
        build_part(self.decoder, inputs, annotations_shape)
        outputs = self.decoder.compute_output_shape(inputs, annotations_shape)
        build_part(self.head, outputs)
        row = keras.KerasTensor((None, outputs[-1]), self.compute_dtype)
        logits = output_width(self.head, row)
        check_search(self.search, logits)
        ids = getattr(self.embedding, "input_dim", logits)
        if logits != ids:
            raise ValueError(
                f"Argument `head` must give a logit for each of the embedding's {ids} ids. "
                f"Received: a layer that gives {logits}"
            )

    def call(self, annotations, mask=None, initial_state=None, annotations_mask=None):
        mask = annotations_mask if mask is None else mask
        # Here nothing is trained, even inside a model that is: no dropout.
        memory = self.decoder.memory(annotations, mask, training=False)

        def step(tokens, state):
            embedded = call_rows(self.embedding, tokens, training=False)
            outputs, state, weights = self.decoder.step(embedded, state, memory, training=False)
            return call_rows(self.head, outputs, training=False), state, weights

        sources, masks = _listed(annotations), _listed(mask)
        batch = ops.shape(sources[0])[0]
        found = self.search(
            step,
            self.decoder.initial_state(memory, initial_state),
            ops.full((batch,), BOS, dtype="int32"),
            max_length=self.max_length,
            memory_length=sum(ops.shape(source)[1] for source in sources),
            memory_mask=_joined(masks, sources),
        )
        parts = [found.tokens, found.alignments, found.scores, found.lengths]
        if self._hypotheses == 1:
            parts = [ops.squeeze(part, 1) for part in parts]
        return tuple(parts if self.return_scores else parts[:2])

    def compute_output_spec(
        self, annotations, mask=None, initial_state=None, annotations_mask=None
    ):
        sources = _listed(annotations)
        lengths = [source.shape[1] for source in sources]
        places = None if None in lengths else sum(lengths)
        rows = (sources[0].shape[0], *([self._hypotheses] if self._hypotheses > 1 else []))
        parts = [
            keras.KerasTensor((*rows, self.max_length), dtype="int32"),
            keras.KerasTensor((*rows, self.max_length, places), dtype="float32"),
            keras.KerasTensor(rows, dtype="float32"),
            keras.KerasTensor(rows, dtype="int32"),
        ]
        return tuple(parts if self.return_scores else parts[:2])

    def compute_mask(self, *args, **kwargs):
        """Tokens are padded with 0, which says where they end; no mask is handed on."""
        return None

    @property
    def _hypotheses(self):
        """Number of hypotheses that the search returns for each row."""
        return getattr(self.search, "n_best", None) or self.search.size

    def get_config(self):
        return {
            **super().get_config(),
            **serialized(self, *_PARTS),
            "max_length": self.max_length,
            "return_scores": self.return_scores,
        }

    @classmethod
    def from_config(cls, config):
        return cls(**deserialized(config, *_PARTS))


def _listed(given):
    return list(given) if isinstance(given, (list, tuple)) else [given]


def _joined(masks, sources):
    """The mask over the places of all sources side by side; `None` where all places count."""
    if all(mask is None for mask in masks):
        return None
    whole = [
        ops.ones(ops.shape(source)[:2], dtype="bool") if mask is None else mask
        for mask, source in zip(masks, sources, strict=True)
    ]
    return ops.concatenate(whole, axis=1)
