"""What a search asks of the step, and of all else, that it is given."""

import keras
from keras import ops, tree


def checked_start(start, state, limits, prefix, memory_mask, noise, drawn):
    """The first tokens as an int32 tensor, after a look at what comes with them.

    Args:
        start: `(B,)` ints.
        state: Nest of tensors with `B` rows.
        limits: `(B,)` ints, or `None`.
        prefix: `(B, P)` ints, or `None`.
        memory_mask: `(B, Tx)` bool, or `None`.
        noise: Numbers `(B, *drawn)`, or `None`.
        drawn: Hypotheses of a sentence and number of steps.

    Raises:
        ValueError: If one of them has another shape or dtype.
    """
    start = ops.convert_to_tensor(start)
    if len(start.shape) != 1 or "int" not in _dtype(start):
        raise ValueError(
            f"Argument `start` must be ints of shape (batch,). Received: {_told(start)}"
        )
    rows = start.shape[0]
    for part in tree.flatten(state):
        if not getattr(part, "shape", ()) or not _fits(part.shape[:1], (rows,)):
            raise ValueError(
                f"Argument `state` must hold tensors of {rows} rows, as `start` has. "
                f"Received: {_told(part)}"
            )
    for name, given, shape in (
        ("limits", limits, (rows,)),
        ("prefix", prefix, (rows, None)),
    ):
        if given is not None and not (
            _fits(getattr(given, "shape", ()), shape) and "int" in _dtype(given)
        ):
            raise ValueError(
                f"Argument `{name}` must be ints of shape {shape}. Received: {_told(given)}"
            )
    if memory_mask is not None and not (
        _fits(getattr(memory_mask, "shape", ()), (rows, None)) and _dtype(memory_mask) == "bool"
    ):
        raise ValueError(
            f"Argument `memory_mask` must be bool of shape ({rows}, memory length), True = keep. "
            f"Received: {_told(memory_mask)}"
        )
    if noise is not None and not _fits(getattr(noise, "shape", ()), (rows, *drawn)):
        raise ValueError(
            f"Argument `noise` must be of shape {(rows, *drawn)}. Received: {_told(noise)}"
        )
    return ops.cast(start, "int32")


def checked_step(step, memory_length=None):
    """A step function that raises a `ValueError` unless it returns what `Search` says.

    State and shapes are compared at the first call, as later ones do the same.
    """
    compared = False

    def checked(tokens, state):
        nonlocal compared
        found = step(tokens, state)
        if not isinstance(found, (tuple, list)) or len(found) != 3:
            kind = type(found).__name__
            count = f" of {len(found)}" if isinstance(found, (tuple, list)) else ""
            raise ValueError(
                "Argument `step` must return (logits, state, weights); the weights of what has no "
                f"attention are ops.zeros((rows, 1)). Received: {kind}{count}"
            )
        logits, after, weights = found
        shapes = [getattr(part, "shape", None) for part in (logits, weights)]
        if any(shape is None or len(shape) != 2 for shape in shapes):
            raise ValueError(
                "Argument `step` must return logits (rows, vocabulary) and weights "
                f"(rows, memory length). Received: shapes {shapes[0]} and {shapes[1]}"
            )
        if not compared:
            _compare_rows(tokens, shapes)
            if isinstance(memory_length, int) and not _fits(shapes[1], (None, memory_length)):
                raise ValueError(
                    f"Argument `step` must return weights of as many places as `memory_length`, "
                    f"{memory_length}. Received: shape {tuple(shapes[1])}"
                )
            _compare_states(state, after)
            compared = True
        return logits, after, weights

    return checked


def _compare_rows(tokens, shapes):
    rows = tokens.shape[0]
    if not all(_fits(shape[:1], (rows,)) for shape in shapes):
        raise ValueError(
            f"Argument `step` must return logits and weights of as many rows as tokens, {rows}. "
            f"Received: shapes {tuple(shapes[0])} and {tuple(shapes[1])}"
        )


def _compare_states(before, after):
    """Raises a `ValueError` unless a state came back in the structure, shapes and dtypes it had."""
    try:
        tree.assert_same_structure(before, after)
        same = all(map(_alike, tree.flatten(before), tree.flatten(after)))
    except (TypeError, ValueError):
        same = False
    if not same:
        told = [tree.map_structure(_told, state) for state in (before, after)]
        raise ValueError(
            "Argument `step` must return the state in the structure, shapes and dtypes that it "
            f"had, {told[0]}. Received: {told[1]}"
        )


def _alike(one, other):
    return (
        hasattr(other, "shape") and _fits(one.shape, other.shape) and _dtype(one) == _dtype(other)
    )


def _fits(shape, expected):
    """Whether two shapes are the same, as far as they are known."""
    return len(shape) == len(expected) and all(
        None in pair or pair[0] == pair[1] for pair in zip(shape, expected, strict=True)
    )


def _dtype(part):
    return keras.backend.standardize_dtype(part.dtype)


def _told(part):
    return f"{_dtype(part)} {tuple(part.shape)}" if hasattr(part, "shape") else repr(part)
