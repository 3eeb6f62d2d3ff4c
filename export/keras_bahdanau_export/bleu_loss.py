"""The bound on what smaller numbers or fewer ids may cost in BLEU."""

import logging

from keras_bahdanau_runtime.errors import PrecisionError

logger = logging.getLogger("keras_bahdanau_export")


def enforce_bleu(what, bleu, loss, most):
    """Raises `PrecisionError` if a loss of BLEU is above the most; warns if it is not known.

    Args:
        what: What it was lost by.
        bleu: What is left, or `None`.
        loss: How much was lost, or `None`.
        most: How much may be.
    """
    if loss is None:
        logger.warning(
            "What %s costs in quality was not measured: give texts and references.", what
        )
    elif loss > most:
        raise PrecisionError(
            f"With {what} the model must lose at most {most} BLEU (`max_bleu_loss`). "
            f"Received: a loss of {loss:.2f}, to {bleu:.2f}"
        )
