"""The sequence-to-sequence model: embeddings, encoder, attentive decoder, generation."""

import inspect
import math
from collections.abc import Sequence

import keras
from keras import ops

from keras_bahdanau.data.batching import EpochDataset
from keras_bahdanau.distribution import first_replica_loss
from keras_bahdanau.initializers import clone_initializer
from keras_bahdanau.layers.attention import FixedContext
from keras_bahdanau.layers.bridge import SOURCES, Bridge
from keras_bahdanau.layers.decoder import AttentiveDecoder
from keras_bahdanau.layers.scheduled_sampling import ScheduledSampling
from keras_bahdanau.layers.sequences import call_masked, check_dense
from keras_bahdanau.layers.sublayers import (
    all_layers,
    apply_settings,
    build_sublayer,
    deserialized,
    last_layer,
    pop_settings,
    record_settings,
    serialized,
)
from keras_bahdanau.losses.crossentropy import guided_alignment_loss
from keras_bahdanau.models.generation import GenerationMixin
from keras_bahdanau.models.projecting import ProjectingSteps
from keras_bahdanau_runtime.checks import check_positive, check_range
from keras_bahdanau_runtime.ids import PAD


@keras.saving.register_keras_serializable(package="keras_bahdanau")
class Seq2Seq(GenerationMixin, ProjectingSteps, keras.Model):
    """Embeds, encodes and decodes with attention; trains with `fit`, searches with `generate`.

    Args:
        source_vocabulary_size: Number of source ids.
        target_vocabulary_size: Number of target ids `V`.
        embedding_dim: Width `M` of both embeddings.
        encoder: A layer called as `encoder(inputs, mask=mask)` that returns `(B, Tx, D)`, such as
            `BidirectionalEncoder` or a Keras recurrent layer with `return_sequences=True`. One that
            takes no mask, such as `Conv1D(D, 3, padding="same")`, reads zeros at masked places, as
            does a model; between its own layers a model has to mask them by itself.
        decoder: An `AttentiveDecoder`.
        bridge: Where the decoder's first state comes from: the name of a summary (see `Bridge`),
            "last" for an encoder that reads in one direction, or a layer called as
            `bridge(annotations, mask=mask)`, if it takes a mask.
        dropout: Share dropped from embeddings, annotations and readout in training, in [0, 1); or
            a triple of the three shares.
        tie_embeddings: Whether the output layer is the target embedding, transposed. The
            decoder's output must then be `embedding_dim` wide.
        join_embeddings: Whether each annotation is joined with its word's embedding, so that the
            decoder reads the word that it attends to without what stands around it (the source-side
            bridging of arXiv 1711.05380): `(B, Tx, D + M)` is attended to.
        scheduled_sampling: A `ScheduledSampling`, for training on the model's own tokens, or
            `None`. Embeddings of own tokens are not dropped from.
        guided_alignment: What the `AlignmentCrossentropy` of the attention's weights is multiplied
            with when it is added to the loss; counts only where inputs hold an "alignment".
        kernel_initializer: Initialiser of embeddings and output layer; `None` for normal embeddings
            of variance `1 / M`, so that each is about 1 long, and Keras's own of the output layer.
        tokenizer: The `Tokenizer` of the model's texts, for `translate`; `None` for a model of ids.
            It may be attached later, too: `model.tokenizer = tokenizer`. The `.keras` file holds
            it, the configuration does not.
        **kwargs: Passed to `keras.Model`.

    Call arguments:
        inputs: `{"source": (B, Tx) int32, "target": (B, Ty) int32}`, padded with 0 at any place;
            `target` is what came before each output and so starts with `BOS`. The logits of a
            padded step are those of the step before it. With "alignment",
            `(B, Ty, Tx)` float32 reference weights, training is guided by them.

    Returns:
        Logits `(B, Ty, V)`.

    Raises:
        ValueError: If a size is not a positive integer, a share of `dropout` or `guided_alignment`
            is out of range, a part or the inputs are not as above, the encoder returns more or less
            than annotations, or has no backward half where the bridge reads that, or the tokenizer
            has more ids than the model.

    Example:

    >>> import keras, numpy as np
    >>> model = Seq2Seq(
    ...     20, 30, embedding_dim=8, encoder=BidirectionalEncoder(6),
    ...     decoder=AttentiveDecoder(keras.layers.LSTMCell(6), BahdanauAttention(5)),
    ... )
    >>> batch = {"source": np.array([[5, 6, 3]]), "target": np.array([[2, 7]])}
    >>> tuple(model(batch).shape)
    (1, 2, 30)
    """

    _parts = ("encoder", "decoder", "bridge", "scheduled_sampling")  # which the config holds

    def __init__(
        self,
        source_vocabulary_size: int,
        target_vocabulary_size: int,
        embedding_dim: int,
        encoder,
        decoder,
        bridge="backward_first",
        dropout: float | Sequence[float] = 0.0,
        tie_embeddings: bool = False,
        join_embeddings: bool = False,
        scheduled_sampling=None,
        guided_alignment: float = 1.0,
        kernel_initializer=None,
        tokenizer=None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        check_positive(
            source_vocabulary_size=source_vocabulary_size,
            target_vocabulary_size=target_vocabulary_size,
            embedding_dim=embedding_dim,
        )
        check_range("guided_alignment", guided_alignment, float, 0)
        check_parts(encoder, decoder, bridge, scheduled_sampling)
        check_encoder(encoder, bridge)
        self.source_vocabulary_size = source_vocabulary_size
        self.target_vocabulary_size = target_vocabulary_size
        self.embedding_dim = embedding_dim
        self.dropout = _shares(dropout)
        self.tie_embeddings = tie_embeddings
        self.join_embeddings = join_embeddings
        self.scheduled_sampling = scheduled_sampling
        self.guided_alignment = guided_alignment
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.encoder = encoder
        self.decoder = decoder
        if isinstance(bridge, str):
            bridge = Bridge(decoder.state_sizes, bridge, dtype=self.dtype_policy, name="bridge")
        self.bridge = bridge
        unit_length = keras.initializers.RandomNormal(stddev=embedding_dim**-0.5)
        self.source_embedding = keras.layers.Embedding(
            source_vocabulary_size,
            embedding_dim,
            embeddings_initializer=self._initializer(unit_length),
            dtype=self.dtype_policy,
            name="source_embedding",
        )
        self.target_embedding = keras.layers.ReversibleEmbedding(
            target_vocabulary_size,
            embedding_dim,
            embeddings_initializer=self._initializer(unit_length),
            # Left to itself the tied output layer is float32 under mixed precision.
            reverse_dtype=self.compute_dtype,
            dtype=self.dtype_policy,
            name="target_embedding",
        )
        self.output_layer = None
        if not tie_embeddings:
            self.output_layer = keras.layers.Dense(
                target_vocabulary_size,
                kernel_initializer=self._initializer("glorot_uniform"),
                dtype=self.dtype_policy,
                name="output_layer",
            )
        self.embedding_dropout, self.annotation_dropout, self.readout_dropout = (
            keras.layers.Dropout(share, dtype=self.dtype_policy) for share in self.dropout
        )
        self.tokenizer = tokenizer
        self._compiled_searches = {}
        self.candidate_seeds = keras.random.SeedGenerator()

    def _initializer(self, default):
        initializer = default if self.kernel_initializer is None else self.kernel_initializer
        return clone_initializer(initializer)

    def build(self, input_shape=None):
        """Makes all weights; every width is known from the arguments, so no shape is needed."""
        if self.built:
            return
        embedded = (None, None, self.embedding_dim)
        self.source_embedding.build((None, None))
        self.target_embedding.build((None, None))
        build_sublayer(self.encoder, embedded)
        # A spec, not a shape: Keras finds it even for a layer that only has a `call`.
        spec = self.encoder.compute_output_spec(keras.KerasTensor(embedded, self.compute_dtype))
        annotations = annotations_shape(self.encoder, spec)
        build_sublayer(self.bridge, annotations)
        if self.join_embeddings:
            annotations = (*annotations[:-1], annotations[-1] + self.embedding_dim)
        build_sublayer(self.decoder, embedded, annotations)
        outputs = tuple(self.decoder.compute_output_shape(embedded, annotations))
        if self.output_layer is not None:
            self.output_layer.build(outputs)
        elif outputs[-1] != self.embedding_dim:
            raise ValueError(
                "Argument `tie_embeddings` needs a decoder output as wide as `embedding_dim`, "
                f"{self.embedding_dim}. Received: a decoder output of width {outputs[-1]}"
            )
        self.built = True

    def fit(self, *args, **kwargs):
        """As Keras's, but without `class_weight`: see `TokenCrossentropy(class_weight=)`."""
        check_class_weight(super().fit, args, kwargs)
        return super().fit(*args, **kwargs)

    def train_on_batch(self, *args, **kwargs):
        """As Keras's, but without `class_weight`: see `TokenCrossentropy(class_weight=)`."""
        check_class_weight(super().train_on_batch, args, kwargs)
        return super().train_on_batch(*args, **kwargs)

    def predict(self, x, *args, **kwargs):
        """As Keras's: logits `(N, Ty, V)` of all batches, which must have one target width."""
        check_one_width(x)
        return super().predict(x, *args, **kwargs)

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        """As Keras's, for a loss that reads logits."""
        check_reads_logits("loss", keras.tree.flatten(self.loss))
        return super().compute_loss(x, y, y_pred, sample_weight, training)

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        """As Keras's, for metrics that read logits."""
        results = super().compute_metrics(x, y, y_pred, sample_weight)
        groups = [group for group in self.metrics if hasattr(group, "metrics")]
        check_reads_logits("metrics", [metric for group in groups for metric in group.metrics])
        return results

    def make_train_function(self, force=False):
        """As Keras's, with every variable made before: a step that makes some is traced twice."""
        if not self.built:
            self.build()
        if not self.optimizer.built:
            self.optimizer.build(self.trainable_variables)
        return super().make_train_function(force)

    def call(self, inputs, training=None):
        check_inputs(inputs)
        annotations, mask, cell_state = self.encode(inputs["source"], training=training)
        target = inputs["target"]
        embedded = self.embedding_dropout(self.target_embedding(target), training=training)
        feedback = None
        if self.scheduled_sampling is not None and training:
            feedback = self._own_token(*self.scheduled_sampling(target, training=True))
        # A fixed context has no weights that could be guided.
        fixed = isinstance(getattr(self.decoder, "attention", None), FixedContext)
        guided = "alignment" in inputs and not fixed
        outputs = self.decoder(
            embedded,
            annotations,
            annotations_mask=mask,
            initial_state=cell_state,
            inputs_mask=ops.not_equal(target, PAD),
            feedback=feedback,
            return_attention_scores=guided,
            training=training,
        )
        if guided:
            outputs, weights = outputs
            guide = guided_alignment_loss(ops.convert_to_tensor(inputs["alignment"]), weights)
            # By the decoder, which forgets its losses whenever it is called. On JAX Keras tells
            # whose a loss is by its `id`, and a model in training keeps those of tensors long gone.
            self.decoder.add_loss(first_replica_loss(self.guided_alignment * guide))
        outputs = self.readout_dropout(outputs, training=training)
        return outputs if self.projecting else self._logits(outputs)

    def _own_token(self, own, numbers):
        """What each step reads: the true token's embedding, or that of the model's own."""

        def feedback(t, embedded, output):
            ids = self.scheduled_sampling.predict_tokens(
                self._logits(output), ops.take(numbers, t, axis=1)
            )
            chosen = ops.expand_dims(ops.take(own, t, axis=1), -1)
            return ops.where(chosen, self.target_embedding(ids), embedded)

        return feedback

    def encode(self, source, training=None, right_padded=False):
        """The annotations, their mask and the decoder's first cell state.

        Args:
            source: `(B, Tx)` int32 tensor, padded with 0.
            training: Whether the call is part of training.
            right_padded: Whether the padding is at the right only. Then `BidirectionalEncoder` and
                `Bridge` move no annotation.

        Returns:
            `(annotations, mask, cell_state)`: `(B, Tx, D)`, `(B, Tx)` bool, and what the bridge
            returned.
        """
        mask = ops.not_equal(source, PAD)
        embedded = self.embedding_dropout(self.source_embedding(source), training=training)
        arguments = {"right_padded": right_padded, "training": training}
        annotations = call_masked(self.encoder, embedded, mask, **arguments)
        cell_state = call_masked(self.bridge, annotations, mask, **arguments)
        if self.join_embeddings:
            annotations = ops.concatenate([annotations, embedded], axis=-1)
        return self.annotation_dropout(annotations, training=training), mask, cell_state

    def start(self, source):
        """The encoded source and the state before the first step; see `GenerationMixin.start`."""
        annotations, mask, cell_state = self.encode(source, right_padded=True)
        memory = self.decoder.memory(annotations, mask)
        return memory, self.decoder.initial_state(memory, cell_state), mask

    def step(self, tokens, state, memory, candidates=None):
        """One step of the decoder; see `GenerationMixin.step`."""
        outputs, state, weights = self.decoder.step(self.target_embedding(tokens), state, memory)
        if candidates is None:
            return self._logits(outputs), state, weights
        return self._logits_of(candidates, outputs), state, weights

    def _logits(self, outputs):
        if self.output_layer is None:
            # Keras on torch returns float32 under a float64 policy.
            logits = self.target_embedding(outputs, reverse=True)
            return ops.cast(logits, self.compute_dtype)
        return self.output_layer(outputs)

    def _logits_of(self, candidates, outputs):
        """`(R, n)` logits of some ids `(n,)`, `PAD` standing for the `V - n` others.

            log sum_{v not in C} exp(l_v)  ~  log(V - n) + mean_v l_v

        Label smoothing gives the others nearly equal shares, which together are not small: to leave
        them out would be a bonus for each token.
        """
        kernel, bias = self.output_weights(candidates)
        if bias is None:
            bias = ops.zeros_like(candidates, dtype=kernel.dtype)
        others = self.target_vocabulary_size - candidates.shape[0]
        if others:
            whole, whole_bias = self.output_weights()
            of_others = math.log(others) + (0.0 if whole_bias is None else ops.mean(whole_bias))
            place = ops.equal(candidates, PAD)
            kernel = ops.where(place, ops.mean(whole, axis=1, keepdims=True), kernel)
            bias = ops.where(place, of_others, bias)
        return ops.matmul(outputs, ops.cast(kernel, outputs.dtype)) + ops.cast(bias, outputs.dtype)

    def output_weights(self, ids=None):
        """Kernel `(R, n)` and bias `(n,)`, or `None`, of the logits of some ids `(n,)`, or of all.

        `R` is the width of the decoder's output.

        Raises:
            ValueError: The output layer is quantized.
        """

        def some(weight, axis):
            weight = ops.convert_to_tensor(weight)
            if not keras.backend.is_float_dtype(weight.dtype):
                raise ValueError(
                    "Arguments `chunk_size` and `sampled` of a loss, and `shortlist` of a search, "
                    "must be None for a model with a quantized output layer. Received: weights of "
                    f"{keras.backend.standardize_dtype(weight.dtype)}"
                )
            return weight if ids is None else ops.take(weight, ids, axis=axis)

        if self.output_layer is None:
            return ops.transpose(some(self.target_embedding.embeddings, 0)), None
        return some(self.output_layer.kernel, 1), some(self.output_layer.bias, 0)

    def get_config(self):
        return {
            **super().get_config(),
            **serialized(self, *self._parts),
            "source_vocabulary_size": self.source_vocabulary_size,
            "target_vocabulary_size": self.target_vocabulary_size,
            "embedding_dim": self.embedding_dim,
            "dropout": self.dropout,
            "tie_embeddings": self.tie_embeddings,
            "join_embeddings": self.join_embeddings,
            "guided_alignment": self.guided_alignment,
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
            "layer_settings": record_settings(self._made()),
        }

    def _made(self):
        """The layers that the model makes itself, of which the config holds no other word."""
        layers = [self.source_embedding, self.target_embedding, self.output_layer]
        return [layer for layer in layers if layer is not None]

    @classmethod
    def from_config(cls, config):
        arguments = deserialized(config, *cls._parts)
        settings = pop_settings(arguments)
        model = cls(**arguments)
        apply_settings(model._made(), settings)
        return model


def _shares(dropout):
    """The shares dropped from embeddings, annotations and readout."""
    several = isinstance(dropout, Sequence) and not isinstance(dropout, str)
    shares = list(dropout) if several else [dropout] * 3
    if len(shares) != 3:
        raise ValueError(
            "Argument `dropout` must be a share, or three: of embeddings, annotations and readout. "
            f"Received: {dropout!r}"
        )
    for share in shares:
        check_range("dropout", share, float, 0, 1, open_high=True)
    return shares


def check_parts(encoder, decoder, bridge, scheduled_sampling):
    """Raises a `ValueError` unless each of these is what `Seq2Seq` says of it."""
    layer = keras.layers.Layer
    if not isinstance(encoder, layer):
        raise ValueError(
            "Argument `encoder` must be a Keras layer, such as BidirectionalEncoder(64). "
            f"Received: {encoder!r}"
        )
    if not isinstance(decoder, AttentiveDecoder):
        raise ValueError(f"Argument `decoder` must be an AttentiveDecoder. Received: {decoder!r}")
    if not isinstance(bridge, layer) and bridge not in SOURCES:
        raise ValueError(
            f"Argument `bridge` must be one of {SOURCES} or a Keras layer. Received: {bridge!r}"
        )
    if not (scheduled_sampling is None or isinstance(scheduled_sampling, ScheduledSampling)):
        raise ValueError(
            "Argument `scheduled_sampling` must be a ScheduledSampling or None. "
            f"Received: {scheduled_sampling!r}"
        )


def check_inputs(inputs):
    """Raises a `ValueError` unless these hold the ids that `Seq2Seq` is called with."""
    if not isinstance(inputs, dict) or not {"source", "target"} <= set(inputs):
        raise ValueError(
            'Argument `inputs` must be a dict with the ids "source" and "target". '
            f"Received: {sorted(inputs) if isinstance(inputs, dict) else type(inputs).__name__}"
        )
    check_dense("Seq2Seq", **inputs)


def check_one_width(batches):
    """Raises a `ValueError` if `predict` cannot join the outputs of these batches to one array."""
    if isinstance(batches, EpochDataset):
        widths = sorted({shape[-1] for shape in batches.shapes})
        if len(widths) > 1:
            raise ValueError(
                "Argument `x` of `predict` must have batches of one target width, because their "
                "outputs become one array; write [model.predict_on_batch(dataset[i][0]) for i in "
                "range(len(dataset))], or call `generate` for translations. "
                f"Received: {type(batches).__name__} with widths {widths}"
            )


def check_class_weight(method, args, kwargs):
    """Raises a `ValueError` if arguments of `fit` or `train_on_batch` hold a `class_weight`.

    Args:
        method: The method of `keras.Model`.
        args: Its positional arguments.
        kwargs: Its keyword arguments.
    """
    given = inspect.signature(method).bind_partial(*args, **kwargs).arguments
    if given.get("class_weight") is not None:
        raise ValueError(
            "Argument `class_weight` must be None for a Seq2Seq, because Keras makes one weight "
            "for each row of it, not for each token; write "
            "TokenCrossentropy(class_weight={3: 5.0}), or pass a `sample_weight` (B, Ty) such as "
            f"np.where(labels == 3, 5.0, 1.0). Received: {given['class_weight']!s:.80}"
        )


def check_reads_logits(argument, parts):
    """Raises a `ValueError` if a loss or metric takes the logits of a `Seq2Seq` for probabilities.

    Args:
        argument: "loss" or "metrics", for the message.
        parts: Losses or metrics in any form that `compile` takes, in a list.
    """
    for part in parts:
        if part is not None and not _reads_logits(part):
            raise ValueError(
                f"Argument `{argument}` of `compile` must read logits, which a Seq2Seq returns; "
                "write TokenCrossentropy(), which leaves out padding, or "
                "keras.losses.SparseCategoricalCrossentropy(from_logits=True). "
                f"Received: {part!r}, which reads probabilities"
            )


def _reads_logits(part):
    if isinstance(part, str):
        if part.lower() in ("crossentropy", "ce"):  # Keras chooses the function by shapes
            return False
        part = keras.losses.get(part)
    if isinstance(part, keras.metrics.Metric):
        return getattr(part, "from_logits", True)
    if isinstance(part, keras.losses.Loss):
        return part.get_config().get("from_logits", True)
    parameter = inspect.signature(part).parameters.get("from_logits")
    return parameter is None or parameter.default is not False


def check_encoder(encoder, bridge):
    """Raises a `ValueError` where an encoder's own arguments say that it does not fit.

    Args:
        encoder: The layer that returns annotations.
        bridge: The name of a summary (see `Bridge`), or a layer, which is not looked at: that of
            a saved model is one.
    """
    if hasattr(encoder, "state_size") and not isinstance(encoder, keras.layers.RNN):
        raise ValueError(
            "Argument `encoder` must be a layer that reads sequences, not a cell; write "
            f"keras.layers.RNN(cell, return_sequences=True). Received: {encoder!r}"
        )
    last = last_layer(encoder)
    if _reads(last) and (last.return_state or not last.return_sequences):
        raise ValueError(
            "Argument `encoder` must return annotations (batch, time, width) and nothing else; "
            "write return_sequences=True and return_state=False. Received: return_sequences="
            f"{last.return_sequences} and return_state={last.return_state}"
        )
    if bridge == "backward_first":
        _check_two_ways(encoder)


def _check_two_ways(encoder):
    """Raises a `ValueError` if what reads last in an encoder reads in one direction."""
    reading = next(filter(_reads, reversed(all_layers(encoder))), None)
    two_ways = isinstance(reading, keras.layers.Bidirectional) and reading.merge_mode == "concat"
    if reading is not None and not two_ways:
        raise ValueError(
            'Argument `bridge` must not be "backward_first" with an encoder whose annotations are '
            'not [forward ; backward]; write bridge="last" for one that reads in one direction. '
            f"Received: {encoder!r}"
        )


def _reads(layer):
    return isinstance(layer, (keras.layers.Bidirectional, keras.layers.RNN))


def annotations_shape(encoder, spec):
    """The shape of annotations that an encoder returns, from its output's spec.

    Raises:
        ValueError: If it returns several tensors, or none of `(batch, time, width)`.
    """
    if isinstance(spec, (list, tuple)) or len(spec.shape) != 3:
        raise ValueError(
            "Argument `encoder` must return annotations, one tensor (batch, time, width). "
            f"Received: {encoder!r}, which returns {spec}"
        )
    return tuple(spec.shape)
