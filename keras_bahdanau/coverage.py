"""What a decoder has attended to so far, and the price of attending to it again."""

from keras import ops


def coverage_penalty(weights, mask=None):
    """Share of each step's attention that goes where earlier steps have been.

    The coverage of source place j before step i is the sum of its weights so far (See et al. 2017,
    arXiv 1704.04368, Eq. 10 and 12); a step pays for the overlap:

        c_ij = sum over i' < i of a_i'j
        penalty_i = sum_j min(a_ij, c_ij)

    It is zero at the first step and never above one. To keep a decoder from repeating itself, add
    its mean over real steps, times some factor, to the loss.

    Args:
        weights: `(B, Ty, Tx)` attention weights of all steps.
        mask: `(B, Ty)` bool tensor, True at real target steps; the others pay nothing and cover
            nothing. `None` if all are.

    Returns:
        `(B, Ty)` float32 tensor.

    Raises:
        ValueError: If `weights` is not `(B, Ty, Tx)`.

    Example:

    >>> import numpy as np
    >>> weights = np.array([[[1.0, 0.0], [0.25, 0.75], [0.0, 1.0]]])
    >>> [float(penalty) for penalty in coverage_penalty(weights)[0]]
    [0.0, 0.25, 0.75]
    """
    if len(weights.shape) != 3:
        raise ValueError(
            "Argument `weights` must be (batch, target steps, source steps). "
            f"Received: shape {tuple(weights.shape)}"
        )
    weights = ops.cast(weights, "float32")
    if mask is not None:
        weights = ops.where(ops.expand_dims(mask, -1), weights, 0.0)
    before = ops.pad(ops.cumsum(weights, axis=1)[:, :-1], ((0, 0), (1, 0), (0, 0)))
    return ops.sum(ops.minimum(weights, before), axis=-1)
