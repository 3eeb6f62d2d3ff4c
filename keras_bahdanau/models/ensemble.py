"""Several models that generate as one."""

from collections.abc import Iterable

import keras
from keras import ops

from keras_bahdanau.layers.sublayers import deserialized, serialized
from keras_bahdanau.models.generation import GenerationMixin

_SPACES = ("probability", "log_probability")


@keras.saving.register_keras_serializable(package="keras_bahdanau")
class Ensemble(GenerationMixin, keras.Model):
    """Averages the predictions of several models at every step.

        probability:      log p(y) = log (1 / n) sum_m p_m(y)
        log_probability:  log p(y) ~ (1 / n) sum_m log p_m(y)

    Attention weights are the mean over the models. `generate`, `score` and `search` are those of a
    single model.

    Args:
        models: At least one `Seq2Seq`; all with the same vocabulary sizes.
        average: "probability" or "log_probability", the space in which predictions are averaged.
        tokenizer: The `Tokenizer` of the models' texts; that of the models if `None`.
        **kwargs: Passed to `keras.Model`.

    Raises:
        ValueError: If there are no models, their vocabularies differ in size, `average` is unknown,
            or the models' tokenizers differ and none is given.

    Example:

    >>> models = [RNNSearch(20, 20, units=4, embedding_dim=3, attention_units=3, maxout_units=2)
    ...           for _ in range(2)]
    >>> Ensemble(models).generate([[5, 6, 3]], max_length=4).scores.shape
    (1, 5)
    """

    def __init__(self, models, average="probability", tokenizer=None, **kwargs):
        super().__init__(**kwargs)
        listed = list(models) if isinstance(models, Iterable) else []
        if not listed or not all(isinstance(model, GenerationMixin) for model in listed):
            raise ValueError(
                "Argument `models` must be a list of at least one model, such as a Seq2Seq. "
                f"Received: {models!r}"
            )
        models = listed
        sizes = [(m.source_vocabulary_size, m.target_vocabulary_size) for m in models]
        if len(set(sizes)) > 1:
            raise ValueError(
                "Argument `models` must agree in the sizes of their vocabularies. "
                f"Received: (source, target) sizes {sizes}"
            )
        if average not in _SPACES:
            raise ValueError(f"Argument `average` must be one of {_SPACES}. Received: {average!r}")
        self.source_vocabulary_size, self.target_vocabulary_size = sizes[0]
        self.models = models
        self.average = average
        self.tokenizer = _shared_tokenizer(models) if tokenizer is None else tokenizer
        self._compiled_searches = {}
        if all(model.built for model in models):
            self.build()  # which leaves nothing to make

    def build(self, input_shape=None):
        """Makes the weights of models that have none yet."""
        for model in self.models:
            if not model.built:
                model.build()
        self.built = True

    def start(self, source):
        """The memory and the state of every model; see `GenerationMixin.start`."""
        memories, states, masks = zip(*[model.start(source) for model in self.models], strict=True)
        return memories, states, masks[0]

    def step(self, tokens, state, memory, candidates=None):
        """One step of every model, averaged; see `GenerationMixin.step`."""
        found = [
            model.step(tokens, *parts, candidates)
            for model, *parts in zip(self.models, state, memory, strict=True)
        ]
        log_probs = ops.stack(
            [ops.log_softmax(ops.cast(logits, "float32"), axis=-1) for logits, _, _ in found]
        )
        if self.average == "probability":
            mean = ops.logsumexp(log_probs, axis=0)  # the search normalises
        else:
            mean = ops.mean(log_probs, axis=0)
        weights = ops.mean(ops.stack([part for _, _, part in found]), axis=0)
        return mean, tuple(state for _, state, _ in found), weights

    def call(self, inputs, training=None):
        """The averaged log-probabilities `(B, Ty, V)` of teacher forcing; see `Seq2Seq`."""
        logits = [model(inputs, training=training) for model in self.models]
        log_probs = ops.stack([ops.log_softmax(ops.cast(part, "float32")) for part in logits])
        if self.average == "log_probability":
            return ops.log_softmax(ops.mean(log_probs, axis=0))
        return ops.log_softmax(ops.logsumexp(log_probs, axis=0))

    def get_config(self):
        return {**super().get_config(), **serialized(self, "models"), "average": self.average}

    @classmethod
    def from_config(cls, config):
        return cls(**deserialized(config, "models"))


def _shared_tokenizer(models):
    """The one tokenizer of all models that have any, or `None`."""
    tokenizers = [model.tokenizer for model in models if model.tokenizer is not None]
    if any(other != tokenizers[0] for other in tokenizers[1:]):
        raise ValueError(
            "Argument `models` must share one tokenizer, or `tokenizer` be given. "
            "Received: models whose tokenizers differ"
        )
    return tokenizers[0] if tokenizers else None
