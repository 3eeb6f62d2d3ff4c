"""An ensemble of models with averaged predictions."""

from collections.abc import Iterable

import keras
from keras import ops

from keras_bahdanau.layers.sublayers import deserialized, serialized
from keras_bahdanau.models.generation import GenerationMixin
from keras_bahdanau_runtime.errors import argument_error

_SPACES = ("probability", "log_probability")


@keras.saving.register_keras_serializable(package="keras_bahdanau")
class Ensemble(GenerationMixin, keras.Model):
    """Averages the predictions of several models at every step.

        probability:      log p(y) = log (1 / n) sum_m p_m(y)
        log_probability:  log p(y) ~ (1 / n) sum_m log p_m(y)

    Attention weights are averaged over the models. `generate`, `translate`, `score` and `export`
    work as for a single model.

    Args:
        models: At least one `Seq2Seq`; all with the same vocabulary sizes.
        average: "probability" or "log_probability", the space in which predictions are averaged.
        tokenizer: A `Tokenizer`; that of the models if `None`.
        **kwargs: Passed to `keras.Model`.

    Raises:
        ValueError: If there are no models, their vocabulary sizes differ, `average` is unknown, or
            the models have different tokenizers and `tokenizer` is `None`.

    Example:

    >>> models = [RNNSearch(20, 20, units=4, embedding_dim=3, attention_units=3, maxout_units=2)
    ...           for _ in range(2)]
    >>> Ensemble(models).generate([[5, 6, 3]], max_length=4).scores.shape
    (1, 5)
    """

    def __init__(self, models, average="probability", tokenizer=None, **kwargs):
        super().__init__(**kwargs)
        is_iterable = isinstance(models, Iterable)
        models = list(models) if is_iterable else models
        if (
            not is_iterable
            or not models
            or not all(isinstance(model, GenerationMixin) for model in models)
        ):
            raise argument_error(
                "models", "be a list of at least one model, such as a Seq2Seq", models
            )
        sizes = [(m.source_vocabulary_size, m.target_vocabulary_size) for m in models]
        if len(set(sizes)) > 1:
            raise argument_error(
                "models",
                "agree in the sizes of their vocabularies",
                received=f"(source, target) sizes {sizes}",
            )
        if average not in _SPACES:
            raise argument_error("average", f"be one of {_SPACES}", average)
        self.source_vocabulary_size, self.target_vocabulary_size = sizes[0]
        self.models = models
        self.average = average
        self.tokenizer = _shared_tokenizer(models) if tokenizer is None else tokenizer
        self._compiled_searches = {}
        if all(model.built for model in models):
            self.build()  # creates nothing

    def build(self, input_shape=None):
        """Create the weights of models that are not built."""
        for model in self.models:
            if not model.built:
                model.build()
        self.built = True

    def start(self, source):
        """Return memory and state of every model; see `GenerationMixin.start`."""
        memories, states, masks = zip(*[model.start(source) for model in self.models], strict=True)
        return memories, states, masks[0]

    @property
    def copies_source(self):
        """Whether a model can copy source tokens."""
        return any(model.copies_source for model in self.models)

    def copied_ids(self, source):
        """Return the target ids that can be copied; see `GenerationMixin.copied_ids`."""
        ids = [model.copied_ids(source) for model in self.models]
        ids = [each for each in ids if each is not None]
        return ops.concatenate(ids, axis=1) if ids else None

    def step(self, tokens, state, memory, candidates=None):
        """Run one step of every model and average them; see `GenerationMixin.step`."""
        logits, states, weights = zip(
            *[
                model.step(tokens, model_state, model_memory, candidates)
                for model, model_state, model_memory in zip(self.models, state, memory, strict=True)
            ],
            strict=True,
        )
        log_probs = ops.stack([_log_probs(part) for part in logits])
        if self.average == "probability":
            mean = ops.logsumexp(log_probs, axis=0)  # the search normalizes it
        else:
            mean = ops.mean(log_probs, axis=0)
        return mean, states, ops.mean(ops.stack(weights), axis=0)

    def call(self, inputs, training=None):
        """Return averaged log-probabilities `(B, Ty, V)`, with the inputs of a `Seq2Seq`."""
        logits = [model(inputs, training=training) for model in self.models]
        log_probs = ops.stack([_log_probs(part) for part in logits])
        if self.average == "log_probability":
            return ops.log_softmax(ops.mean(log_probs, axis=0))
        return ops.log_softmax(ops.logsumexp(log_probs, axis=0))

    def get_config(self):
        return {**super().get_config(), **serialized(self, "models"), "average": self.average}

    @classmethod
    def from_config(cls, config):
        return cls(**deserialized(config, "models"))


def _log_probs(logits):
    return ops.log_softmax(ops.cast(logits, "float32"), axis=-1)


def _shared_tokenizer(models):
    """Return the tokenizer of all models that have one, or `None`."""
    tokenizers = [model.tokenizer for model in models if model.tokenizer is not None]
    if any(other != tokenizers[0] for other in tokenizers[1:]):
        raise argument_error(
            "models",
            "share one tokenizer, or `tokenizer` be given",
            received="models with different tokenizers",
        )
    return tokenizers[0] if tokenizers else None
