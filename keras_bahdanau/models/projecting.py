"""Training and test steps of a model whose loss may make the logits itself."""

import contextlib
from contextvars import ContextVar

import keras

from keras_bahdanau.losses.projection import Projection, check_metrics

# The model in whose step this is, if its loss makes the logits. Not an attribute of the model, as
# the replicas of TensorFlow are threads that take turns.
_PROJECTING: ContextVar[object] = ContextVar("projecting", default=None)


class ProjectingSteps:
    """Mixin for a `keras.Model`: steps for a loss that `computes_logits`.

    Then, and in steps alone, `projecting` is true: `call` gives what the output layer reads, and
    loss and metrics get a `Projection` of it. All else that calls the model gets logits.

    The model gives `output_weights()`, and as `candidate_seeds` a `keras.random.SeedGenerator`.
    """

    @property
    def projecting(self):
        """Whether `call` is to give what the output layer reads, in the place of logits."""
        return _PROJECTING.get() is self

    @contextlib.contextmanager
    def _step(self):
        losses = keras.tree.flatten(self.loss)
        projects = losses and all(getattr(loss, "computes_logits", False) for loss in losses)
        token = _PROJECTING.set(self if projects else None)
        try:
            yield
        finally:
            _PROJECTING.reset(token)

    def train_step(self, *args, **kwargs):
        """As Keras's."""
        with self._step():
            return super().train_step(*args, **kwargs)

    def test_step(self, *args, **kwargs):
        """As Keras's."""
        with self._step():
            return super().test_step(*args, **kwargs)

    def _symbolic_build(self, *args, **kwargs):
        # Keras's own, not public: before the first step it tries out model and loss, on torch with
        # tensors as large as a real batch's, and so would make all logits once.
        with self._step():
            return super()._symbolic_build(*args, **kwargs)

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        """As Keras's; where `projecting`, it updates the metrics, too.

        They read what the loss finds inside the differentiated function, and outside of it, where
        Keras would update them, JAX knows nothing of that.
        """
        if not self.projecting:
            return super().compute_loss(x, y, y_pred, sample_weight, training)
        needs_correct = any(metric.needs_correct for metric in self._compiled_metrics(y, y_pred))
        kernel, bias = self.output_weights()
        projection = Projection(y_pred, kernel, bias, self.candidate_seeds, training, needs_correct)
        loss = super().compute_loss(x, y, projection, sample_weight, training)
        super().compute_metrics(x, y, projection, sample_weight)
        return loss

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        """As Keras's; where `projecting`, `compute_loss` has updated the metrics."""
        if not self.projecting:
            return super().compute_metrics(x, y, y_pred, sample_weight)
        self._compiled_metrics(y, y_pred)
        return self.get_metrics_result()

    def _compiled_metrics(self, y, y_pred):
        """The metrics that `compile` was given, built."""
        found = []
        for group in self.metrics:
            if hasattr(group, "metrics"):
                if not group.built:
                    group.build(y, y_pred)
                found += group.metrics
        check_metrics(found)
        return found
