"""The sequence-to-sequence model: embeddings, encoder, bridge, attentive decoder, output layer."""

import contextlib
import inspect
import math
from collections.abc import Sequence
from contextvars import ContextVar

import keras
from keras import ops

from keras_bahdanau.data.batching import EpochDataset
from keras_bahdanau.distribution import first_replica_loss
from keras_bahdanau.initializers import clone_initializer
from keras_bahdanau.layers.attention.fixed import FixedContext
from keras_bahdanau.layers.bridge import SOURCES, Bridge, StateBridge
from keras_bahdanau.layers.copying import WORD_LOGIT, Copied, PointerGenerator, copies_token
from keras_bahdanau.layers.decoder import AttentiveDecoder
from keras_bahdanau.layers.dtype_policies import check_policy, computing_in
from keras_bahdanau.layers.scheduled_sampling import ScheduledSampling
from keras_bahdanau.layers.sequences import as_list, call_masked, check_dense
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
from keras_bahdanau.losses.projection import Projection, check_metrics
from keras_bahdanau.models.generation import GenerationMixin
from keras_bahdanau.models.saved_models import warn_about_script_classes
from keras_bahdanau.shapes import check_shape
from keras_bahdanau_runtime.checks import check_positive, check_range
from keras_bahdanau_runtime.errors import argument_error
from keras_bahdanau_runtime.ids import EOS, PAD, UNK

# The model in whose training or test step this code runs, if its loss computes the logits. This is
# not an attribute of the model, because the replicas of TensorFlow are threads that share it.
_model_without_logits: ContextVar[object] = ContextVar("model_without_logits", default=None)

_TINY = 1e-30  # probability; a smaller one would have a share of 0 / 0


@keras.saving.register_keras_serializable(package="keras_bahdanau")
class Seq2Seq(GenerationMixin, keras.Model):
    """Encoder-decoder with attention, which trains with `fit` and searches with `generate`.

    Args:
        source_vocabulary_size: Number of source ids.
        target_vocabulary_size: Number of target ids `V`.
        embedding_dim: Width `M` of the target embedding, and by default of the source embedding.
        encoder: A layer called as `encoder(inputs, mask=mask)` that returns `(B, Tx, D)`, such as
            `BidirectionalEncoder` or a Keras recurrent layer with `return_sequences=True`. With
            `return_state=True` it also returns its final states for a `StateBridge`. A layer
            without a mask argument, such as `Conv1D(D, 3, padding="same")`, gets zeros at masked
            positions. So does a model, which must handle masks between its own layers itself.
        decoder: An `AttentiveDecoder`.
        bridge: Source of the decoder's first state: the name of a summary (see `Bridge`), "last"
            for an encoder that reads in one direction, or a layer called as
            `bridge(annotations, mask=mask)`, if it accepts a mask; a `StateBridge` is called with
            the final states of the encoder.
        dropout: Dropout rate of embeddings, annotations and readout, in [0, 1), or a triple of
            their rates.
        tie_embeddings: Whether the output layer is the transposed target embedding. The decoder's
            output must then have the width `embedding_dim`.
        join_embeddings: Whether to concatenate each annotation with the embedding of its token, so
            that the decoder attends to `(B, Tx, D + Ms)`: tokens with and without their context
            (the source-side bridging of arXiv 1711.05380).
        scheduled_sampling: A `ScheduledSampling`, for training on the model's own tokens, or
            `None`. The embeddings of own tokens get no dropout.
        guided_alignment: Weight of the `AlignmentCrossentropy` of the attention weights in the
            loss. It has an effect only if the inputs contain an "alignment".
        kernel_initializer: Initializer of embeddings and output layer. `None` for normal embeddings
            of variance `1 / M`, which have a norm of about 1, and Keras's default for the output
            layer.
        copy: Whether the decoder can also copy source tokens: False, a `PointerGenerator`, or True
            for one with a vocabulary that both sides share.
        tokenizer: The `Tokenizer` for `translate`; `None` for a model of ids. It can also be
            attached later: `model.tokenizer = tokenizer`. It is part of the `.keras` file but not
            of the config.
        read_source_end: Whether the encoder reads the end token of a source. With False an end
            token that is the last token is masked like padding, for a model that was trained on
            sources without it.
        source_embedding_dim: Width `Ms` of the source embedding; `embedding_dim` if `None`.
        **kwargs: Passed to `keras.Model`.

    Call arguments:
        inputs: `{"source": (B, Tx) int32, "target": (B, Ty) int32}`, padded with 0 at any position.
            `target` contains the previous token of each output, so it starts with `BOS`. The logits
            of a padded step are those of the step before it. With "alignment", `(B, Ty, Tx)`
            float32 reference weights, the attention is guided in training.

    Returns:
        Logits `(B, Ty, V)`.

    Raises:
        ValueError: If a size is not a positive integer, a dropout rate or `guided_alignment` is out
            of range, a layer or the inputs have the wrong type, the encoder does not return only
            annotations, or has no backward half although the bridge reads it, or the tokenizer has
            more ids than the model.

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

    _config_layers = ("encoder", "decoder", "bridge", "scheduled_sampling", "copy")

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
        copy: bool | PointerGenerator = False,
        kernel_initializer=None,
        tokenizer=None,
        read_source_end: bool = True,
        source_embedding_dim: int | None = None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        if source_embedding_dim is None:
            source_embedding_dim = embedding_dim
        check_positive(
            source_vocabulary_size=source_vocabulary_size,
            target_vocabulary_size=target_vocabulary_size,
            embedding_dim=embedding_dim,
            source_embedding_dim=source_embedding_dim,
        )
        check_range("guided_alignment", guided_alignment, float, 0)
        _check_layers(encoder, decoder, bridge, scheduled_sampling)
        _check_encoder(encoder, bridge)
        self.source_vocabulary_size = source_vocabulary_size
        self.target_vocabulary_size = target_vocabulary_size
        self.embedding_dim = embedding_dim
        self.source_embedding_dim = source_embedding_dim
        self.dropout = _dropout_rates(dropout)
        self.tie_embeddings = tie_embeddings
        self.join_embeddings = join_embeddings
        self.read_source_end = read_source_end
        self.scheduled_sampling = scheduled_sampling
        self.guided_alignment = guided_alignment
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.encoder = encoder
        self.decoder = decoder
        self.copy = PointerGenerator(dtype=self.dtype_policy, name="copy") if copy is True else copy
        self._check_copy()
        if isinstance(bridge, str):
            bridge = Bridge(decoder.state_sizes, bridge, dtype=self.dtype_policy, name="bridge")
        self.bridge = bridge
        # Each initializer draws a seed, so models of equal widths keep the random numbers that they
        # had before the widths could differ.
        target_initializer = source_initializer = _unit_length(embedding_dim)
        if source_embedding_dim != embedding_dim:
            source_initializer = _unit_length(source_embedding_dim)
        self.source_embedding = keras.layers.Embedding(
            source_vocabulary_size - self._copied_words,
            source_embedding_dim,
            embeddings_initializer=self._initializer(source_initializer),
            dtype=self.dtype_policy,
            name="source_embedding",
        )
        self.target_embedding = keras.layers.ReversibleEmbedding(
            target_vocabulary_size - self._copied_words,
            embedding_dim,
            embeddings_initializer=self._initializer(target_initializer),
            dtype=self.dtype_policy,
            name="target_embedding",
        )
        self.output_layer = None
        if not tie_embeddings:
            self.output_layer = keras.layers.Dense(
                target_vocabulary_size - self._copied_words,
                kernel_initializer=self._initializer("glorot_uniform"),
                dtype=self.dtype_policy,
                name="output_layer",
            )
        self.embedding_dropout, self.annotation_dropout, self.readout_dropout = (
            keras.layers.Dropout(rate, dtype=self.dtype_policy) for rate in self.dropout
        )
        self.tokenizer = tokenizer
        self._compiled_searches = {}
        self.candidate_seeds = keras.random.SeedGenerator()
        self.training_dtype_policy = "float32"

    def _check_copy(self):
        """Raise a `ValueError` if the arguments do not allow `copy`."""
        if self.copy is False or self.copy is None:
            self.copy = None
            return
        if not isinstance(self.copy, PointerGenerator):
            raise argument_error("copy", "be a bool or a PointerGenerator", self.copy)
        self.copy.check_sizes(self.source_vocabulary_size, self.target_vocabulary_size)
        if isinstance(self.decoder.attention, FixedContext):
            raise argument_error(
                "copy", "be False for a FixedContext, which has no attention", self.copy
            )
        if self.scheduled_sampling is not None:
            raise argument_error(
                "scheduled_sampling", "be None with `copy`", self.scheduled_sampling
            )

    def _initializer(self, default):
        initializer = default if self.kernel_initializer is None else self.kernel_initializer
        return clone_initializer(initializer)

    def build(self, input_shape=None):
        """Create all weights. Every width is known from the arguments, so no shape is needed."""
        if self.built:
            return
        embedded_source = (None, None, self.source_embedding_dim)
        embedded = (None, None, self.embedding_dim)
        self.source_embedding.build((None, None))
        self.target_embedding.build((None, None))
        build_sublayer(self.encoder, embedded_source)
        # Keras computes the output spec, unlike the shape, of any layer with a `call`.
        inputs = keras.KerasTensor(embedded_source, self.compute_dtype)
        spec = self.encoder.compute_output_spec(inputs)
        with_states = isinstance(self.bridge, StateBridge)
        annotations, *states = _encoder_shapes(self.encoder, spec, with_states)
        build_sublayer(self.bridge, states if with_states else annotations)
        if self.join_embeddings:
            annotations = (*annotations[:-1], annotations[-1] + self.source_embedding_dim)
        build_sublayer(self.decoder, embedded, annotations)
        outputs = tuple(self.decoder.compute_output_shape(embedded, annotations))
        if self.output_layer is not None:
            self.output_layer.build(outputs)
        elif outputs[-1] != self.embedding_dim:
            raise ValueError(
                "Argument `tie_embeddings` needs a decoder output as wide as `embedding_dim`, "
                f"{self.embedding_dim}. Received: a decoder output of width {outputs[-1]}"
            )
        if self.copy is not None:
            build_sublayer(self.copy, (None, None, self.target_vocabulary_size), outputs)
            if self.copy.attention is not None:
                build_sublayer(self.copy.attention, outputs, annotations)
        self.built = True

    def fit(self, *args, **kwargs):
        """As in Keras, with three differences.

        `class_weight` must be `None`: see `TokenCrossentropy(class_weight=)`. The batches of an
        `EpochDataset`, such as `TranslationDataset`, keep the order of the dataset: for them
        `shuffle` is False by default.

        A warning names the classes of the model that are defined in the script or notebook that
        runs, because `export` on JAX and torch cannot load them.
        """
        warn_about_script_classes(self)
        arguments = _checked_arguments(super().fit, args, kwargs)
        if isinstance(arguments.get("x"), EpochDataset):
            arguments.setdefault("shuffle", False)
        return super().fit(**arguments)

    def train_on_batch(self, *args, **kwargs):
        """As in Keras, but without `class_weight`: see `TokenCrossentropy(class_weight=)`."""
        _checked_arguments(super().train_on_batch, args, kwargs)
        return super().train_on_batch(*args, **kwargs)

    def predict(self, x, *args, **kwargs):
        """As in Keras: logits `(N, Ty, V)` of all batches, which must have the same width `Ty`."""
        _check_same_width(x)
        return super().predict(x, *args, **kwargs)

    def make_train_function(self, force=False):
        """As in Keras, after creating all variables; a step that creates some is traced twice."""
        if not self.built:
            self.build()
        if not self.optimizer.built:
            self.optimizer.build(self.trainable_variables)
        return super().make_train_function(force)

    @property
    def training_dtype_policy(self):
        """Name of the dtype policy of float32 layers in training steps.

        With "mixed_bfloat16", `fit` and `train_on_batch` compute losses and gradients of the
        float32 weights in bfloat16. Everything else, such as `evaluate`, `translate` and `export`,
        computes in float32, so the results do not depend on how the model was trained. A `.keras`
        file contains the policy if the model is compiled. "mixed_float16" needs an optimizer in a
        `keras.optimizers.LossScaleOptimizer`. Layers with another policy than "float32" keep it.

        Setting it raises a `ValueError` if it is none of "float32", "mixed_bfloat16" and
        "mixed_float16".

        Example:

        ```python
        model.training_dtype_policy = "mixed_bfloat16"
        model.compile("adam", TokenCrossentropy())
        model.fit(dataset)
        ```
        """
        return self._training_dtype_policy

    @training_dtype_policy.setter
    def training_dtype_policy(self, name):
        check_policy("training_dtype_policy", name)
        self._training_dtype_policy = name
        self.train_function = None  # a compiled step keeps its dtypes

    def get_compile_config(self):
        """As in Keras, with the dtype policy of training steps if it is not "float32"."""
        config = super().get_compile_config()
        if config is None or self.training_dtype_policy == "float32":
            return config
        return {**config, "training_dtype_policy": self.training_dtype_policy}

    def compile_from_config(self, config):
        """As in Keras, with the dtype policy of training steps."""
        config = dict(config)
        self.training_dtype_policy = config.pop("training_dtype_policy", "float32")
        super().compile_from_config(config)

    @property
    def _returns_features(self):
        """Whether `call` returns the input of the output layer instead of logits.

        This is the case in training and test steps with a loss that computes logits itself, such as
        `TokenCrossentropy(chunk_size=512)`. Loss and metrics then get a `Projection`.
        """
        return _model_without_logits.get() is self

    @contextlib.contextmanager
    def _step(self):
        losses = keras.tree.flatten(self.loss)
        computes_logits = losses and all(getattr(loss, "computes_logits", False) for loss in losses)
        token = _model_without_logits.set(self if computes_logits else None)
        try:
            yield
        finally:
            _model_without_logits.reset(token)

    def train_step(self, *args, **kwargs):
        with self._step(), computing_in(self.training_dtype_policy, self):
            return super().train_step(*args, **kwargs)

    def test_step(self, *args, **kwargs):
        with self._step():
            return super().test_step(*args, **kwargs)

    def _symbolic_build(self, *args, **kwargs):
        # A private method of Keras that calls model and loss before the first step. On torch it
        # uses tensors with the size of a real batch, so it would compute all logits once.
        with self._step():
            return super()._symbolic_build(*args, **kwargs)

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        """As in Keras. With a loss that computes logits itself, it also updates the metrics.

        These metrics read results of the loss. On JAX the results are available only inside the
        differentiated function, but Keras updates metrics outside of it.
        """
        _check_reads_logits("loss", keras.tree.flatten(self.loss))
        if not self._returns_features:
            return super().compute_loss(x, y, y_pred, sample_weight, training)
        needs_correct = any(m.needs_correct for m in self._projection_metrics(y, y_pred))
        kernel, bias = self.output_weights()
        features, copied = y_pred if self.copy is not None else (y_pred, None)
        projection = Projection(
            features, kernel, bias, self.candidate_seeds, training, needs_correct, copied
        )
        loss = super().compute_loss(x, y, projection, sample_weight, training)
        super().compute_metrics(x, y, projection, sample_weight)
        return loss

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        """As in Keras, unless `compute_loss` has already updated the metrics."""
        if self._returns_features:
            self._projection_metrics(y, y_pred)
            return self.get_metrics_result()
        results = super().compute_metrics(x, y, y_pred, sample_weight)
        _check_reads_logits("metrics", self._compiled_metrics())
        return results

    def _projection_metrics(self, y, y_pred):
        """Build the metrics of `compile`, check that they can read a `Projection`, return them."""
        if self.copy is not None:
            y_pred, _ = y_pred
        for group in self._metric_groups():
            if not group.built:
                group.build(y, y_pred)
        check_metrics(self._compiled_metrics())
        return self._compiled_metrics()

    def _compiled_metrics(self):
        return [metric for group in self._metric_groups() for metric in group.metrics]

    def _metric_groups(self):
        return [group for group in self.metrics if hasattr(group, "metrics")]

    def call(self, inputs, training=None):
        _check_inputs(inputs)
        outputs, weights, copies = self._outputs(inputs, training)
        if not self._returns_features:
            logits = self._logits(outputs)
            return logits if copies is None else self.copy.mix(logits, outputs, weights, copies)
        if copies is None:
            return outputs
        mass = self.copy.copied_mass(weights, copies)
        return outputs, Copied(self.copy.gate(outputs), mass, copies.ids)

    def _outputs(self, inputs, training):
        """Run encoder and decoder.

        Returns:
            The inputs of the output layer `(B, Ty, R)`, and with `copy` the copied attention
            weights `(B, Ty, Tx)` and the `Copies`, else `None`.
        """
        annotations, mask, cell_state = self.encode(inputs["source"], training=training)
        target = inputs["target"]
        embedded = self.embedding_dropout(
            self._embed(self.target_embedding, target), training=training
        )
        feedback = None
        if self.scheduled_sampling is not None and training:
            feedback = self._own_tokens(*self.scheduled_sampling(target, training=True))
        # A fixed context has no attention weights to guide.
        is_fixed = isinstance(getattr(self.decoder, "attention", None), FixedContext)
        is_guided = "alignment" in inputs and not is_fixed
        needs_weights = is_guided or self.copy is not None
        outputs = self.decoder(
            embedded,
            annotations,
            annotations_mask=mask,
            initial_state=cell_state,
            inputs_mask=ops.not_equal(target, PAD),
            feedback=feedback,
            return_attention_scores=needs_weights,
            training=training,
        )
        outputs, weights = outputs if needs_weights else (outputs, None)
        if is_guided:
            loss = guided_alignment_loss(ops.convert_to_tensor(inputs["alignment"]), weights)
            # The decoder clears its losses at every call. The losses of the model itself would stay
            # on JAX, where Keras identifies them by the `id` of tensors that no longer exist.
            self.decoder.add_loss(first_replica_loss(self.guided_alignment * loss))
        outputs = self.readout_dropout(outputs, training=training)
        if self.copy is None:
            return outputs, None, None
        copies = self.copy.copies(inputs["source"], annotations, mask)
        if self.copy.attention is not None:
            weights = self.copy.attend(outputs, copies)
        return outputs, weights, copies

    def _own_tokens(self, is_own, uniform):
        """Return the decoder's `feedback`, which replaces true tokens by those of the model."""

        def feedback(t, embedded, output):
            ids = self.scheduled_sampling.predict_tokens(
                self._logits(output), ops.take(uniform, t, axis=1)
            )
            is_replaced = ops.expand_dims(ops.take(is_own, t, axis=1), -1)
            return ops.where(is_replaced, self._embed(self.target_embedding, ids), embedded)

        return feedback

    def encode(self, source, training=None, right_padded=False):
        """Return the annotations, their mask and the decoder's first cell state.

        Args:
            source: `(B, Tx)` int32 tensor, padded with 0.
            training: Whether the call is part of training.
            right_padded: Whether the padding is at the right only. `BidirectionalEncoder` and
                `Bridge` then need not reorder the annotations.

        Returns:
            `(annotations, mask, cell_state)`: `(B, Tx, D)`, `(B, Tx)` bool, and the output of the
            bridge.
        """
        mask = ops.not_equal(source, PAD)
        if not self.read_source_end:
            # Only the last token, because the mask must be right-padded where the source is.
            # Not `ops.pad`, which onnxruntime does not have for ints on CUDA.
            following = ops.concatenate([source[:, 1:], ops.zeros_like(source[:, :1])], axis=1)
            is_end = ops.logical_and(ops.equal(source, EOS), ops.equal(following, PAD))
            mask = ops.logical_and(mask, ops.logical_not(is_end))
        embedded = self.embedding_dropout(
            self._embed(self.source_embedding, source), training=training
        )
        arguments = {"right_padded": right_padded, "training": training}
        annotations, *states = as_list(call_masked(self.encoder, embedded, mask, **arguments))
        if isinstance(self.bridge, StateBridge):
            cell_state = self.bridge(keras.tree.flatten(states))
        else:
            cell_state = call_masked(self.bridge, annotations, mask, **arguments)
        if self.join_embeddings:
            annotations = ops.concatenate([annotations, embedded], axis=-1)
        return self.annotation_dropout(annotations, training=training), mask, cell_state

    def start(self, source):
        """Return the encoded source and the initial state; see `GenerationMixin.start`."""
        annotations, mask, cell_state = self.encode(source, right_padded=True)
        memory = self.decoder.memory(annotations, mask)
        state = self.decoder.initial_state(memory, cell_state)
        if self.copy is not None:
            memory = memory, self.copy.copies(source, annotations, mask)
        return memory, state, mask

    @property
    def copies_source(self):
        """Whether the model can copy source tokens."""
        return self.copy is not None

    scores_copies = copies_source

    def copied_ids(self, source):
        """Return the target ids `(B, Tx)` that can be copied; see `GenerationMixin.copied_ids`."""
        return None if self.copy is None else self.copy.ids_of(source)

    def step(self, tokens, state, memory, candidates=None):
        """Return logits, state and weights of one step; see `GenerationMixin.step`."""
        logits, state, weights, _ = self._copying_step(tokens, state, memory, candidates)
        return logits, state, weights

    def _copying_step(self, tokens, state, memory, candidates=None):
        """As `step`.

        Returns:
            Logits, state and weights, and with `copy` the copied part of the probabilities, else
            `None`: a function without arguments that returns `(R, Tx)`, see
            `PointerGenerator.copied_part`.
        """
        memory, copies = (memory, None) if self.copy is None else memory
        outputs, state, weights = self.decoder.step(
            self._embed(self.target_embedding, tokens), state, memory
        )
        if candidates is None:
            logits = self._logits(outputs)
        else:
            logits = self._candidate_logits(candidates, outputs)
            if copies is not None:
                copies = copies.among(candidates, self.target_vocabulary_size)
        if copies is None:
            return logits, state, weights, None
        batch = ops.shape(copies.ids)[0]
        grouped, features, copied = (
            ops.reshape(rows, (batch, -1, *ops.shape(rows)[1:]))
            for rows in (logits, outputs, weights)
        )
        if self.copy.attention is not None:
            copied = self.copy.attend(features, copies)
        mixed = self.copy.mix(grouped, features, copied, copies)

        def copied_part():
            part = self.copy.copied_part(features, copied, copies)
            return ops.reshape(ops.cast(part, "float32"), ops.shape(weights))

        return ops.reshape(mixed, ops.shape(logits)), state, weights, copied_part

    def forced_scores(self, source, target):
        """Score given targets; see `GenerationMixin.forced_scores`.

        With `copy`, `copied` is the quotient of the probability that was copied from a source
        token and that of the target token.
        """
        if self.copy is None:
            return super().forced_scores(source, target)
        memory, state, _ = self.start(source)

        def step(tokens, state):
            logits, state, weights, copied_part = self._copying_step(tokens, state, memory)
            weights = ops.concatenate([ops.cast(weights, "float32"), copied_part()], axis=-1)
            return logits, state, weights

        scores = self._score_with_steps(step, state, source, target, num_weights=2)
        length = ops.shape(source)[1]
        weights, copied = scores.alignments[..., :length], scores.alignments[..., length:]
        _, copies = memory
        probabilities = ops.maximum(ops.exp(ops.expand_dims(scores.log_probs, -1)), _TINY)
        copied = ops.where(
            copies_token(copies, ops.cast(target, "int32")), copied / probabilities, 0.0
        )
        return scores._replace(alignments=weights, copied=copied)

    @property
    def _copied_words(self):
        """Number of the last ids of both sides, which have no embedding and are only copied."""
        return 0 if self.copy is None else self.copy.copied_words

    def _embed(self, embedding, ids):
        """Return the embeddings of ids; that of `UNK` for words that are only copied."""
        if self._copied_words:
            ids = ops.where(ids < embedding.input_dim, ids, UNK)
        return embedding(ids)

    def _logits(self, outputs):
        if self.output_layer is None:
            # Keras on torch returns float32 under a float64 policy.
            logits = self.target_embedding(outputs, reverse=True)
            logits = ops.cast(logits, self.compute_dtype)
        else:
            logits = self.output_layer(outputs)
        if not self._copied_words:
            return logits
        padding = [*[[0, 0]] * (len(logits.shape) - 1), [0, self._copied_words]]
        return ops.pad(logits, padding, constant_values=WORD_LOGIT)

    def _candidate_logits(self, candidates, outputs):
        """Return the logits `(R, n)` of some ids `(n,)`, with `PAD` for the `V - n` other ids.

            log sum_{v not in C} exp(l_v)  ~  log(V - n) + mean_v l_v

        Label smoothing gives the other ids nearly equal probabilities, whose sum is not small.
        Without them, every token would get a bonus.
        """
        kernel, bias = self.output_weights(candidates)
        if bias is None:
            bias = ops.zeros_like(candidates, dtype=kernel.dtype)
        others = self.target_vocabulary_size - candidates.shape[0]
        if others:
            full_kernel, full_bias = self.output_weights()
            pieces = self.target_embedding.input_dim  # without words that are only copied
            mean_bias = 0.0 if full_bias is None else ops.mean(full_bias[:pieces])
            mean_kernel = ops.mean(full_kernel[:, :pieces], axis=1, keepdims=True)
            is_pad = ops.equal(candidates, PAD)
            kernel = ops.where(is_pad, mean_kernel, kernel)
            bias = ops.where(is_pad, math.log(others) + mean_bias, bias)
        return ops.matmul(outputs, ops.cast(kernel, outputs.dtype)) + ops.cast(bias, outputs.dtype)

    def output_weights(self, ids=None):
        """Return the kernel `(R, n)` and the bias `(n,)`, or `None`, of the logits of some ids.

        Args:
            ids: `(n,)` int32 tensor; all ids if `None`.

        Returns:
            `(kernel, bias)`. `R` is the width of the decoder's output.

        Raises:
            ValueError: If the output layer is quantized.
        """

        def select(weight, axis, of_words=0.0):
            weight = ops.convert_to_tensor(weight)
            if not keras.backend.is_float_dtype(weight.dtype):
                raise ValueError(
                    "Arguments `chunk_size` and `sampled` of a loss, and `shortlist` of a search, "
                    "must be None for a model with a quantized output layer. Received: weights of "
                    f"{keras.backend.standardize_dtype(weight.dtype)}"
                )
            if self._copied_words:
                padding = [[0, 0] for _ in weight.shape]
                padding[axis][1] = self._copied_words
                weight = ops.pad(weight, padding, constant_values=of_words)
            return weight if ids is None else ops.take(weight, ids, axis=axis)

        if self.output_layer is None:
            table, bias = self.target_embedding.embeddings, None
            if self._copied_words:
                bias = select(ops.zeros((table.shape[0],), table.dtype), 0, WORD_LOGIT)
            return ops.transpose(select(table, 0)), bias
        kernel, bias = self.output_layer.kernel, self.output_layer.bias
        return select(kernel, 1), select(bias, 0, WORD_LOGIT)

    def get_config(self):
        return {
            **super().get_config(),
            **serialized(self, *self._config_layers),
            "source_vocabulary_size": self.source_vocabulary_size,
            "target_vocabulary_size": self.target_vocabulary_size,
            "embedding_dim": self.embedding_dim,
            "source_embedding_dim": self.source_embedding_dim,
            "dropout": self.dropout,
            "tie_embeddings": self.tie_embeddings,
            "join_embeddings": self.join_embeddings,
            "read_source_end": self.read_source_end,
            "guided_alignment": self.guided_alignment,
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
            "layer_settings": record_settings(self._own_layers()),
        }

    def _own_layers(self):
        """Return the layers that the model creates itself, which the config does not contain."""
        layers = [self.source_embedding, self.target_embedding, self.output_layer]
        return [layer for layer in layers if layer is not None]

    @classmethod
    def from_config(cls, config):
        # Files of earlier versions lack some of these keys.
        config = {**dict.fromkeys(cls._config_layers), **config}
        arguments = deserialized(config, *cls._config_layers)
        settings = pop_settings(arguments)
        model = cls(**arguments)
        apply_settings(model._own_layers(), settings)
        return model


def _unit_length(width):
    """Return an initializer of embeddings with a norm of about 1."""
    return keras.initializers.RandomNormal(stddev=width**-0.5)


def _dropout_rates(dropout):
    """Return the dropout rates of embeddings, annotations and readout."""
    is_sequence = isinstance(dropout, Sequence) and not isinstance(dropout, str)
    rates = list(dropout) if is_sequence else [dropout] * 3
    if len(rates) != 3:
        raise argument_error(
            "dropout", "be a share, or three: of embeddings, annotations and readout", dropout
        )
    for rate in rates:
        check_range("dropout", rate, float, 0, 1, open_high=True)
    return rates


def _check_layers(encoder, decoder, bridge, scheduled_sampling):
    """Raise a `ValueError` unless the layers of a `Seq2Seq` have the right types."""
    layer = keras.layers.Layer
    if not isinstance(encoder, layer):
        raise argument_error(
            "encoder", "be a Keras layer, such as BidirectionalEncoder(64)", encoder
        )
    if not isinstance(decoder, AttentiveDecoder):
        raise argument_error("decoder", "be an AttentiveDecoder", decoder)
    if not isinstance(bridge, layer) and bridge not in SOURCES:
        raise argument_error("bridge", f"be one of {SOURCES} or a Keras layer", bridge)
    if not (scheduled_sampling is None or isinstance(scheduled_sampling, ScheduledSampling)):
        raise argument_error(
            "scheduled_sampling", "be a ScheduledSampling or None", scheduled_sampling
        )


def _check_encoder(encoder, bridge):
    """Raise a `ValueError` if the arguments of an encoder show that it cannot work.

    Args:
        encoder: The layer that returns annotations.
        bridge: The name of a summary (see `Bridge`) or a layer, as in a saved model. A layer is not
            checked.
    """
    if hasattr(encoder, "state_size") and not isinstance(encoder, keras.layers.RNN):
        raise argument_error(
            "encoder",
            "be a layer that reads sequences, not a cell; write keras.layers.RNN(cell, "
            "return_sequences=True)",
            encoder,
        )
    last = last_layer(encoder)
    with_states = isinstance(bridge, StateBridge)
    returns_state = getattr(last, "return_state", with_states)
    returns_sequences = getattr(last, "return_sequences", True)
    if returns_state != with_states or not returns_sequences:
        expected = (
            "annotations (batch, time, width) and its final states for a StateBridge"
            if with_states
            else "annotations (batch, time, width) and nothing else without a StateBridge"
        )
        raise argument_error(
            "encoder",
            f"return {expected}; write return_sequences=True and return_state={with_states}",
            received=f"return_sequences={returns_sequences} and return_state={returns_state}",
        )
    if bridge in ("backward_first", "ends"):
        _check_bidirectional(encoder, bridge)


def _check_bidirectional(encoder, bridge):
    """Raise a `ValueError` if the last recurrent layer of an encoder reads in one direction."""
    layer = next(filter(_is_recurrent, reversed(all_layers(encoder))), None)
    is_concatenated = isinstance(layer, keras.layers.Bidirectional) and layer.merge_mode == "concat"
    if layer is not None and not is_concatenated:
        raise argument_error(
            "bridge",
            f'not be "{bridge}" with an encoder whose annotations are not [forward ; '
            'backward]; write bridge="last" for one that reads in one direction',
            encoder,
        )


def _is_recurrent(layer):
    return isinstance(layer, (keras.layers.Bidirectional, keras.layers.RNN))


def _encoder_shapes(encoder, spec, with_states):
    """Return the shapes of the annotations and of all states from the output spec of an encoder.

    Raises:
        ValueError: If the output is not one tensor `(batch, time, width)`, with states `(batch,
            width)` if `with_states`.
    """
    shapes = [tuple(part.shape) for part in keras.tree.flatten(spec)]
    if len(shapes[0]) != 3 or (len(shapes) > 1) != with_states:
        expected = ", and final states for a StateBridge" if with_states else ""
        raise argument_error(
            "encoder",
            f"return annotations, one tensor (batch, time, width){expected}",
            received=f"{encoder!r}, which returns {spec}",
        )
    return shapes


def _check_inputs(inputs):
    """Raise a `ValueError` unless the inputs of a `Seq2Seq` contain ids of both sides, by rows."""
    if not isinstance(inputs, dict) or not {"source", "target"} <= set(inputs):
        raise argument_error(
            "inputs",
            'be a dict with the ids "source" and "target"',
            received=str(sorted(inputs) if isinstance(inputs, dict) else type(inputs).__name__),
        )
    check_dense("Seq2Seq", **inputs)
    batch = None
    for name in ("source", "target"):
        check_shape(name, inputs[name], "batch time", of="Seq2Seq", batch=batch)
        batch, steps = inputs[name].shape
        if steps == 0:
            raise argument_error(
                name,
                "have at least one position",
                received=f"shape {tuple(inputs[name].shape)}",
                of="Seq2Seq",
            )


def _check_same_width(batches):
    """Raise a `ValueError` if `predict` cannot concatenate the outputs of these batches."""
    if isinstance(batches, EpochDataset):
        widths = sorted({shape[-1] for shape in batches.shapes})
        if len(widths) > 1:
            raise argument_error(
                "x",
                "have batches of one target width, because their outputs become one array; "
                "write [model.predict_on_batch(dataset[i][0]) for i in range(len(dataset))], "
                "or call `generate` for translations",
                received=f"{type(batches).__name__} with widths {widths}",
                of="`predict`",
            )


def _checked_arguments(method, args, kwargs):
    """Raise a `ValueError` if the arguments of `fit` or `train_on_batch` have a `class_weight`.

    Args:
        method: The method of `keras.Model`.
        args: Its positional arguments.
        kwargs: Its keyword arguments.

    Returns:
        All arguments by name.
    """
    arguments = inspect.signature(method).bind_partial(*args, **kwargs).arguments
    if arguments.get("class_weight") is not None:
        raise argument_error(
            "class_weight",
            "be None for a Seq2Seq, because Keras makes one weight for each row of it, not "
            "for each token; write TokenCrossentropy(class_weight={3: 5.0}), or pass a "
            "`sample_weight` (B, Ty) such as np.where(labels == 3, 5.0, 1.0)",
            received=str(arguments["class_weight"])[:80],
        )
    return arguments


def _check_reads_logits(argument, functions):
    """Raise a `ValueError` if a loss or metric would treat the logits of a `Seq2Seq` as softmax.

    Args:
        argument: "loss" or "metrics", for the message.
        functions: List of losses or metrics in any form that `compile` accepts.
    """
    for function in functions:
        if function is not None and not _reads_logits(function):
            raise argument_error(
                argument,
                "read logits, which a Seq2Seq returns; write TokenCrossentropy(), which "
                "leaves out padding, or "
                "keras.losses.SparseCategoricalCrossentropy(from_logits=True)",
                received=f"{function!r}, which reads probabilities",
                of="`compile`",
            )


def _reads_logits(function):
    if isinstance(function, str):
        if function.lower() in ("crossentropy", "ce"):  # Keras chooses the function by shapes
            return False
        function = keras.losses.get(function)
    if isinstance(function, keras.metrics.Metric):
        return getattr(function, "from_logits", True)
    if isinstance(function, keras.losses.Loss):
        return function.get_config().get("from_logits", True)
    parameter = inspect.signature(function).parameters.get("from_logits")
    return parameter is None or parameter.default is not False
