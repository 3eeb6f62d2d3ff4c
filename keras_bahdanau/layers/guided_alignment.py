"""Guided alignment: attention weights held to a reference alignment."""

from keras import ops

from keras_bahdanau.distribution import batch_mean


def alignment_losses(reference, weights):
    """`-sum_j A_ij log a_ij` in nats for each target word, `A`'s rows normalised to sum to one.

    The gradient is finite even where a weight is zero.

    Args:
        reference: `(B, Ty, Tx)` non-negative links, counts or probabilities.
        weights: `(B, Ty, Tx)` attention weights, whose rows sum to one.

    Returns:
        `(B, Ty)` float32 tensor, zero for a row of zeros in `reference`.

    Raises:
        ValueError: If the two differ in shape.
    """
    known = zip(reference.shape, weights.shape, strict=False)
    if len(reference.shape) != len(weights.shape) or any(
        None not in sizes and sizes[0] != sizes[1] for sizes in known
    ):
        raise ValueError(
            "The reference alignment and the attention weights must both be (B, Ty, Tx). "
            f"Received: shapes {tuple(reference.shape)} and {tuple(weights.shape)}"
        )
    reference, weights = ops.cast(reference, "float32"), ops.cast(weights, "float32")
    total = ops.sum(reference, axis=-1)
    # Far below any weight that matters, and its reciprocal is finite.
    entropies = reference * ops.log(ops.maximum(weights, 1e-30))
    return -ops.sum(entropies, axis=-1) / ops.where(total > 0.0, total, 1.0)


def aligned(reference):
    """`(B, Ty)` bool: which target words `reference` `(B, Ty, Tx)` aligns to anything."""
    return ops.any(ops.greater(reference, 0), axis=-1)


def guidance(reference, weights):
    """The mean of `alignment_losses` over the aligned words of the whole batch, for `add_loss`."""
    counted = ops.cast(aligned(reference), "float32")
    losses = alignment_losses(reference, weights)
    return batch_mean(ops.sum(losses * counted), ops.sum(counted))
