"""What a search asks of the step that it is given."""

import keras
from keras import tree


def checked_step(step):
    """A step function that raises a `ValueError` unless it returns what `Search` says.

    State and rows are compared at the first call, as later ones do the same.
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
            _compare_states(state, after)
            compared = True
        return logits, after, weights

    return checked


def _compare_rows(tokens, shapes):
    rows = tokens.shape[0]
    if any(None not in (rows, shape[0]) and shape[0] != rows for shape in shapes):
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
    if not (hasattr(other, "shape") and len(one.shape) == len(other.shape)):
        return False
    sizes = zip(one.shape, other.shape, strict=True)
    alike = all(None in pair or pair[0] == pair[1] for pair in sizes)
    return alike and _dtype(one) == _dtype(other)


def _dtype(part):
    return keras.backend.standardize_dtype(part.dtype)


def _told(part):
    return f"{_dtype(part)} {tuple(part.shape)}" if hasattr(part, "shape") else repr(part)
