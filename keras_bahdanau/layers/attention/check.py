"""Check of an attention mechanism: padding, steps, beams, dtypes, saving and gradients."""

import inspect
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops, tree

from keras_bahdanau.layers.attention.base import (
    MEMORY_SIGNATURE,
    SCORES_SIGNATURE,
    STEP_SIGNATURE,
    Attention,
    ScoredAttention,
    missing_method,
)
from keras_bahdanau.layers.attention.multi_source import MultiSourceAttention
from keras_bahdanau.layers.dtype_policies import replace_policies
from keras_bahdanau.layers.sequences import as_list, flatten
from keras_bahdanau_runtime.errors import argument_error

_QUERY_WIDTH, _VALUE_WIDTH = 6, 8  # of a layer that is not built
_LENGTHS, _PADDED, _QUERIES, _BEAM = (5, 3, 1), 5, 3, 2
_TOLERANCE = 1e-4  # largest difference of two float32 results that should be equal
_REDUCED_TOLERANCE = 0.1  # mean difference from float32 under another dtype policy
_SCALES = (1.0, 0.3, 0.1)  # of random weights, until each of them has had a gradient


def check_attention(
    attention, query_width: int | None = None, value_width: int | list[int] | None = None
):
    """Check that a mechanism works in training, decoding, a beam search and a saved model.

    Call it in a test of your own mechanism. It uses a copy of the layer with random weights, so the
    layer stays as it is. These are the checks:

    - methods: `memory`, `step` and `scores` accept the arguments that the base classes pass;
    - call: the shapes, dtypes and numbers of a call;
    - padding: neither more padding nor other numbers at masked positions change a context, and a
      fully masked source gives finite numbers;
    - steps: a step keeps the shapes and dtypes of the state, and steps give the results of a call;
    - beam: `B * G` queries of a step attend to a memory of `B` rows;
    - dtypes: the results under "mixed_float16" and, except on JAX, "float64";
    - saving: `get_config`, the registration of the class, and a model in a `.keras` file;
    - gradients: they are finite, and each trainable weight has one.

    Args:
        attention: An `Attention`, built or not.
        query_width: Width `N` of the queries of a layer that is not built; 6 if `None`.
        value_width: Width `D` of its annotations, or a list of widths for a
            `MultiSourceAttention`; 8 if `None`.

    Raises:
        ValueError: If `attention` is not an `Attention`, or a check fails. The message lists all
            faults.

    Example:

    >>> check_attention(BahdanauAttention(units=4))
    >>> class Unfinished(Attention):
    ...     pass
    >>> check_attention(Unfinished())
    Traceback (most recent call last):
    ValueError: Unfinished fails `check_attention`:
    - methods: Unfinished has no method `memory`. Define `memory(values, key=None, mask=None, ...
    - methods: Unfinished has no method `step`. Define `step(query, memory, state=(), ...
    """
    if not isinstance(attention, Attention):
        raise argument_error(
            "attention", "be an Attention, such as BahdanauAttention(64)", attention
        )
    faults = _Faults(type(attention).__name__)
    weights = attention.get_weights()
    _check_methods(attention, faults)
    if not faults:
        case = _make_case(attention, query_width, value_width, faults)
        # A call needs a valid state, and all other checks need a call.
        is_callable = (
            case is not None
            and faults.run("steps", _check_state, case)
            and faults.run("call", _check_call, case)
        )
        for name, check in _CHECKS.items() if is_callable else ():
            faults.run(name, check, case)
    if weights:  # without a valid config, the layer itself was used
        attention.set_weights(weights)
    faults.enforce()


class _Faults:
    """The faults of a mechanism: each has the name of a check and a description.

    Args:
        owner: Name of the mechanism's class.
    """

    def __init__(self, owner: str):
        self._owner = owner
        self._lines: list[str] = []
        self._error: Exception | None = None

    def __bool__(self) -> bool:
        return bool(self._lines)

    def add(self, name: str, description: str) -> None:
        """Add a fault that the check `name` has found."""
        self._lines.append(f"- {name}: {description}")

    def run(self, name: str, function: Callable[..., Any], *arguments: Any) -> bool:
        """Run a part of a check, and return whether it found no fault.

        Args:
            name: Name of the check.
            function: Yields descriptions of faults. An error that it raises is a fault, too.
            *arguments: Arguments of the function.
        """
        before = len(self._lines)
        try:
            for description in function(*arguments):
                self.add(name, description)
        except Exception as error:  # the code of a mechanism can raise any error
            self._error = self._error or error
            message = " ".join(str(error).split())
            self.add(name, f"{type(error).__name__}: {message:.600}")
        return len(self._lines) == before

    def enforce(self) -> None:
        """Raise a `ValueError` that lists the faults, if there are any."""
        if self._lines:
            lines = "\n".join(self._lines)
            raise ValueError(f"{self._owner} fails `check_attention`:\n{lines}") from self._error


# --- The mechanism and its inputs -----------------------------------------------------------------


class _Case(NamedTuple):
    """A built mechanism with random weights, and its inputs.

    Attributes:
        layer: The mechanism.
        is_copy: Whether the layer was made from the config of the mechanism.
        queries: `(B, Tq, N)` float32 array.
        values: `(B, Tx, D)` float32 array, or a list of them for several sources.
        mask: `(B, Tx)` bool array, or a list of them.
    """

    layer: Attention
    is_copy: bool
    queries: np.ndarray
    values: Any
    mask: Any

    @property
    def mask_without_last_row(self) -> Any:
        """The mask, with a last row that is fully masked."""
        keep = np.arange(len(_LENGTHS))[:, None] < len(_LENGTHS) - 1
        return tree.map_structure(lambda mask: mask & keep, self.mask)

    def call(self, values: Any, mask: Any, rows: slice = slice(None)) -> np.ndarray:
        """Return the contexts of a call with some rows of the queries."""
        return _numpy(self.layer(self.queries[rows], values, value_mask=mask))

    def random(self) -> np.random.Generator:
        """Return a new generator of the numbers of a check."""
        return np.random.default_rng(1)


def _make_case(attention, query_width, value_width, faults):
    """Return the `_Case` of a mechanism, or `None` if it cannot be built."""
    copies = []
    faults.run("saving", _copy, attention, copies)
    layer = copies[0] if copies else attention
    sources = flatten(getattr(attention, "attentions", attention))
    if attention.built and all(hasattr(source, "_value_width") for source in sources):
        query_width = sources[0]._query_width
        value_width = [source._value_width for source in sources]
    widths = value_width if isinstance(value_width, list) else [value_width] * len(sources)
    random = np.random.default_rng(0)
    rows = len(_LENGTHS)
    queries = _normal(random, rows, _QUERIES, query_width or _QUERY_WIDTH)
    values = [_normal(random, rows, _PADDED, width or _VALUE_WIDTH) for width in widths]
    mask = [_right_mask(_LENGTHS, _PADDED)] * len(values)
    if not isinstance(attention, MultiSourceAttention):
        [values], [mask] = values, mask
    case = _Case(layer, bool(copies), queries, values, mask)
    if not layer.built and not faults.run("call", _build, layer, case):
        return None
    _draw_weights(layer, random)
    return case


def _copy(attention, copies):
    """Append a layer with the config of a mechanism to `copies`, and yield faults of the config."""
    config = attention.get_config()
    kinds = inspect.Parameter
    arguments = [
        parameter.name
        for parameter in inspect.signature(type(attention).__init__).parameters.values()
        if parameter.kind not in (kinds.VAR_POSITIONAL, kinds.VAR_KEYWORD)
    ]
    missing = [name for name in arguments[1:] if name not in config]
    if missing:
        names = ", ".join(f"`{name}`" for name in missing)
        yield (
            f"the result of `get_config` lacks {names}, so a loaded layer would have the default. "
            "Add all arguments of the class."
        )
    copies.append(type(attention).from_config(config))
    if copies[0].get_config() != config:
        yield "a layer from `from_config(get_config())` has another `get_config()`."
    replace_policies(copies[0], "float32")


def _build(layer, case):
    """Build a mechanism for the inputs of a case."""
    layer.build(case.queries.shape, tree.map_structure(lambda array: array.shape, case.values))
    if not hasattr(layer, "_query_width") and not isinstance(layer, MultiSourceAttention):
        yield (
            "`build` must begin with `super().build(query_shape, value_shape, key_shape)`, which "
            "stores the widths."
        )


def _draw_weights(layer, random, scale=1.0):
    """Set each trainable weight to random numbers around its initial constant, or around zero.

    Args:
        layer: A built layer.
        random: A NumPy generator.
        scale: Factor of the standard deviations, which are 0.5, or less for wide inputs.
    """
    for weight in layer.trainable_variables:
        initial = _numpy(weight)
        center = initial if initial.size and np.ptp(initial) == 0 else 0.0
        # A product with a kernel of large numbers would saturate the softmax.
        deviation = scale * min(0.5, max(1, np.prod(initial.shape[:-1])) ** -0.5)
        value = center + random.normal(scale=deviation, size=initial.shape)
        value = ops.cast(value, weight.dtype)
        weight.assign(value if weight.constraint is None else weight.constraint(value))


def _normal(random, *shape):
    return random.normal(size=shape).astype("float32")


def _right_mask(lengths, steps):
    return np.arange(steps)[None, :] < np.asarray(lengths)[:, None]


def _numpy(tensor):
    """Return a tensor as an array; float16 and bfloat16 as float32."""
    if keras.backend.standardize_dtype(tensor.dtype) in ("float16", "bfloat16"):
        tensor = ops.cast(tensor, "float32")
    return np.asarray(ops.convert_to_numpy(tensor))


def _dtype(tensor):
    return keras.backend.standardize_dtype(tensor.dtype)


def _mean_of_heads(weights):
    weights = _numpy(weights)
    return weights.mean(axis=1) if weights.ndim == 4 else weights


def _difference(actual, expected):
    """Return the largest difference of an array from the expected one.

    It is infinite if their shapes differ, or if `actual` has NaN or infinity.
    """
    if actual.shape != expected.shape or not np.isfinite(actual).all():
        return np.inf
    return np.abs(actual - expected).max(initial=0.0)


def _edit(values, mask, function):
    """Return `function(values, mask)` for one source, or a list for several ones."""
    if not isinstance(values, list):
        return function(values, mask)
    return [function(*source) for source in zip(values, mask, strict=True)]


# --- The checks -----------------------------------------------------------------------------------


def _check_methods(attention, faults):
    """Add faults for missing methods, and for methods that do not accept the usual arguments."""
    calls = [
        (Attention, MEMORY_SIGNATURE, (0, 0, 0, 0), {"steps": 0}),
        (Attention, MEMORY_SIGNATURE, (0,), {"mask": 0, "training": 0, "steps": 0}),
        (Attention, STEP_SIGNATURE, (0, 0, 0, 0, 0), {}),
        (Attention, STEP_SIGNATURE, (0, 0, 0), {"training": 0, "t": 0}),
    ]
    if isinstance(attention, ScoredAttention):
        calls.append((ScoredAttention, SCORES_SIGNATURE, (0, 0), {"chunked": 0}))
    wrong = set()
    for base, expected, positional, by_name in calls:
        name = expected.partition("(")[0]
        method = getattr(type(attention), name)
        if name in wrong:
            continue
        if method is getattr(base, name):
            wrong.add(name)
            faults.add("methods", str(missing_method(attention, base.__name__, expected)))
            continue
        signature = inspect.signature(method)
        try:
            signature.bind(attention, *positional, **by_name)
        except TypeError:
            wrong.add(name)
            faults.add(
                "methods",
                f"`{name}` must accept the arguments of `{expected}`, but is `{name}{signature}`.",
            )


def _check_call(case):
    """Check the results of a call."""
    layer = case.layer
    context, weights = layer(
        case.queries, case.values, value_mask=case.mask, return_attention_scores=True
    )
    widths = tree.map_structure(lambda array: array.shape[-1], case.values)
    rows, positions = len(_LENGTHS), _PADDED * len(as_list(case.values))
    expected = (rows, _QUERIES, layer.context_width(widths))
    if tuple(context.shape) != expected:
        yield f"the contexts must have shape {expected}, but have {tuple(context.shape)}."
    shape = tuple(weights.shape)
    if len(shape) not in (3, 4) or (shape[0], *shape[-2:]) != (rows, _QUERIES, positions):
        yield (
            f"the weights must have shape {(rows, _QUERIES, positions)}, or (batch, heads, "
            f"queries, positions), but have {shape}."
        )
    for name, tensor, dtype in (
        ("contexts", context, layer.compute_dtype),
        ("weights", weights, "float32"),
    ):
        if _dtype(tensor) != dtype:
            yield f"the {name} must be {dtype}, but are {_dtype(tensor)}."
        if not np.isfinite(_numpy(tensor)).all():
            yield f"the {name} have NaN or infinity."


def _check_padding(case):
    """Check that masked positions have no influence."""
    layer, values, mask = case.layer, case.values, case.mask
    expected = case.call(values, mask)
    more = 3

    def extend(array, fill):
        return np.pad(array, [(0, 0), (0, more), (0, 0)], constant_values=fill)

    longer = [
        _edit(values, mask, lambda array, keep: extend(array, 7.0)),
        _edit(values, mask, lambda array, keep: np.pad(keep, [(0, 0), (0, more)])),
    ]
    difference = _difference(case.call(*longer), expected)
    if difference > _TOLERANCE:
        yield (
            f"{more} more masked positions change the contexts by {difference:.2g}. Use "
            "`source_lengths(memory)` and `source_positions(memory)` instead of the padded length, "
            "and `masked_softmax` for the weights."
        )
    row = slice(1, 2)
    alone = _edit(values, mask, lambda array, keep: array[row, : _LENGTHS[1]])
    difference = _difference(case.call(alone, None, row), expected[row])
    if difference > _TOLERANCE:
        yield (
            f"a source alone, without padding and without a mask, has contexts that differ by "
            f"{difference:.2g} from those in a padded batch."
        )
    garbage = _edit(values, mask, lambda array, keep: np.where(keep[..., None], array, np.nan))
    difference = _difference(case.call(garbage, mask), expected)
    if difference > _TOLERANCE:
        yield (
            f"NaN at masked positions changes the contexts by {difference:.2g}. Begin `memory` "
            "with `prepare_memory`, which sets these positions to zero."
        )
    _, weights = layer(case.queries, values, value_mask=mask, return_attention_scores=True)
    is_real = np.concatenate(as_list(mask), axis=1)[:, None]
    largest = np.abs(np.where(is_real, 0.0, _mean_of_heads(weights))).max()
    if largest > _TOLERANCE:
        yield f"masked positions have weights of up to {largest:.2g}. Use `masked_softmax`."
    actual = case.call(values, case.mask_without_last_row)
    if not np.isfinite(actual).all() or _difference(actual[:2], expected[:2]) > _TOLERANCE:
        yield (
            "a fully masked source, such as a row that fills up a batch, gives NaN or infinity, or "
            "changes other rows. Use `masked_softmax`, and divide by `ops.maximum(lengths, 1.0)`."
        )


class _Steps(NamedTuple):
    """Results of steps.

    Attributes:
        contexts: `(B * G, Tq, D)` array.
        weights: `(B * G, Tq, Tx)` array.
        dtypes: Dtypes of the context and of the weights of a step.
        states: Shapes and dtypes of the state, before the first step and after each one.
    """

    contexts: np.ndarray
    weights: np.ndarray
    dtypes: tuple
    states: list


def _run_steps(layer, queries, values, mask, beam=1):
    """Return the `_Steps` of queries `(B * beam, Tq, N)` and a memory of `B` rows."""
    queries, values, mask = tree.map_structure(ops.convert_to_tensor, (queries, values, mask))
    memory = layer.memory(values, mask=mask, steps=queries.shape[1])
    state = layer.initial_state(memory)
    state = tree.map_structure(lambda part: ops.repeat(part, beam, axis=0), state)
    states, contexts, weights = [_kinds(state)], [], []
    for t in range(queries.shape[1]):
        context, weight, state = layer.step(queries[:, t], memory, state, t=t)
        contexts.append(_numpy(context))
        weights.append(_numpy(weight))
        states.append(_kinds(state))
    dtypes = _dtype(context), _dtype(weight)
    return _Steps(np.stack(contexts, 1), np.stack(weights, 1), dtypes, states)


def _kinds(state):
    """Return shape and dtype of each tensor of a state."""
    return [(tuple(part.shape), _dtype(part)) for part in flatten(state)]


def _check_state(case):
    """Check that a step keeps the shapes and dtypes of the state, as a loop needs it."""
    steps = _run_steps(case.layer, case.queries[:, :1], case.values, case.mask)
    before, after = steps.states
    if after != before:
        yield (
            f"the state must keep its shapes and dtypes, but is {after} after a step and {before} "
            "before it."
        )


def _check_steps(case):
    """Check that steps give the results of a call, and keep no state in the layer."""
    layer, inputs = case.layer, (case.queries, case.values, case.mask)
    context, weights = layer(
        case.queries, case.values, value_mask=case.mask, return_attention_scores=True
    )
    expected = {"contexts": _numpy(context), "weights": _mean_of_heads(weights)}
    steps = _run_steps(layer, *inputs)
    for name, array in expected.items():
        difference = _difference(getattr(steps, name), array)
        if difference > _TOLERANCE:
            yield (
                f"the {name} of `step` differ from those of a call by {difference:.2g}. If a step "
                "depends on those before it, use `Attention` or `HistoryAttention` as the base "
                "class: their call runs the steps in order."
            )
    if _difference(_run_steps(layer, *inputs).contexts, steps.contexts) > _TOLERANCE:
        yield (
            "the same steps give other contexts when they run again. Return the state from `step`, "
            "and do not store it in the layer."
        )


def _check_beam(case):
    """Check that several queries can share a row of the memory."""
    rows, count, width = case.queries.shape
    queries = _normal(case.random(), rows * _BEAM, count, width)
    repeated = tree.map_structure(
        lambda array: np.repeat(array, _BEAM, axis=0), (case.values, case.mask)
    )
    expected = _run_steps(case.layer, queries, *repeated)
    actual = _run_steps(case.layer, queries, case.values, case.mask, _BEAM)
    for name in ("contexts", "weights"):
        difference = _difference(getattr(actual, name), getattr(expected, name))
        if difference > _TOLERANCE:
            yield (
                f"with {_BEAM} queries per row of the memory the {name} of `step` differ by "
                f"{difference:.2g} from those of a memory with a row per query. Use "
                "`group_queries`, `group_rows` and `ungroup`; in `scores`, tensors of the source "
                "need an axis of size 1 for the queries."
            )


def _check_dtypes(case):
    """Check the results under other dtype policies."""
    if not case.is_copy:
        return  # `get_config` has faults, which are reported
    expected = case.call(case.values, case.mask)
    # JAX computes float64 in float32 unless its own option says otherwise.
    is_jax = keras.config.backend() == "jax"
    for policy in ("mixed_float16", *([] if is_jax else ["float64"])):
        layer = type(case.layer).from_config({**case.layer.get_config(), "dtype": policy})
        list(_build(layer, case))
        layer.set_weights(case.layer.get_weights())
        context, weights = layer(
            case.queries, case.values, value_mask=case.mask, return_attention_scores=True
        )
        steps = _run_steps(layer, case.queries, case.values, case.mask)
        for name, expected_dtype, dtype in (
            ("contexts", layer.compute_dtype, _dtype(context)),
            ("weights", "float32", _dtype(weights)),
            ("contexts of `step`", layer.compute_dtype, steps.dtypes[0]),
            ("weights of `step`", "float32", steps.dtypes[1]),
        ):
            if dtype != expected_dtype:
                yield f"under {policy!r} the {name} must be {expected_dtype}, but are {dtype}."
        context = _numpy(context)
        if not np.isfinite(context).all():
            yield (
                f"under {policy!r} the contexts have NaN or infinity. float16 ends at 65504: "
                "compute scores in float32, and mask them by `masked_softmax`."
            )
        elif np.abs(context - expected).mean() > _REDUCED_TOLERANCE:
            yield (
                f"under {policy!r} the contexts differ by {np.abs(context - expected).mean():.2g} "
                "in the mean from those in float32. Compute scores and positions in float32."
            )


def _check_saving(case):
    """Check that a model with the mechanism can be saved and loaded."""
    cls = type(case.layer)
    if keras.saving.get_registered_object(keras.saving.get_registered_name(cls)) is not cls:
        yield (
            "the class is not registered. Write @keras.saving.register_keras_serializable(package="
            '"NAME") above it, with a name of your own.'
        )
        return
    if cls.__module__ == "__main__":
        yield (
            "the class is defined in the script or notebook that runs, where no other process "
            "finds it. Move it to a module and import it from there."
        )
    if not case.is_copy:
        return  # `get_config` has faults, which are reported
    model = _make_model(case)
    inputs = flatten([case.queries, case.values, case.mask])
    expected = _numpy(model(inputs))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.keras")
        model.save(path)
        loaded = keras.saving.load_model(path)
    difference = _difference(_numpy(loaded(inputs)), expected)
    if difference > _TOLERANCE:
        yield (
            f"the contexts of a loaded model differ by {difference:.2g}. Create all weights with "
            "`add_weight`, and add all arguments to `get_config`."
        )


def _make_model(case, *projections):
    """Return a functional model of the mechanism.

    Args:
        case: A `_Case`.
        *projections: A layer for the queries, and one for each source.
    """
    queries = keras.Input(case.queries.shape[1:])
    values = [keras.Input((None, array.shape[-1])) for array in as_list(case.values)]
    mask = [keras.Input((None,), dtype="bool") for _ in values]
    tensors = [queries, *values]
    if projections:
        tensors = [layer(part) for layer, part in zip(projections, tensors, strict=True)]
    arguments = tensors[1:], mask
    if not isinstance(case.values, list):
        arguments = tensors[1], mask[0]
    contexts = case.layer(tensors[0], arguments[0], value_mask=arguments[1])
    return keras.Model([queries, *values, *mask], contexts)


def _check_gradients(case):
    """Check that each weight has a finite gradient, by updates of stochastic gradient descent."""
    random, without = case.random(), {weight.path for weight in case.layer.trainable_variables}
    arrays = [case.queries, *as_list(case.values)]
    # Their gradients are those of the queries and of the values.
    projections = [keras.layers.Dense(array.shape[-1]) for array in arrays]
    model = _make_model(case, *projections)
    model.compile(keras.optimizers.SGD(1.0), "mse", run_eagerly=True, jit_compile=False)
    inputs = flatten([case.queries, case.values, case.mask_without_last_row])
    targets = 10 * _normal(random, *_numpy(model(inputs)).shape)
    for scale in _SCALES:
        _draw_weights(model, random, scale)
        before = [_numpy(weight) for weight in model.trainable_variables]
        with warnings.catch_warnings():
            # Keras's warning about weights without gradients. They are reported below.
            warnings.simplefilter("ignore", UserWarning)
            model.train_on_batch(inputs, targets)
        for weight, old in zip(model.trainable_variables, before, strict=True):
            new = _numpy(weight)
            if not np.isfinite(new).all():
                name = weight.path if weight.path in without else "queries or annotations"
                yield (
                    f"the gradient of {name} has NaN or infinity. Keep the arguments of functions "
                    "such as `sqrt`, `log`, `normalize` and division away from zero, also at "
                    "masked positions and for a fully masked source, whose length is 0."
                )
                return
            if not np.array_equal(new, old):
                without.discard(weight.path)
        if not without:
            return
    yield (
        f"the contexts have no gradient by the weights {sorted(without)}. Use them in the contexts "
        "without rounding or `stop_gradient`, or set `trainable=False`."
    )


_CHECKS = {
    "padding": _check_padding,
    "steps": _check_steps,
    "beam": _check_beam,
    "dtypes": _check_dtypes,
    "saving": _check_saving,
    "gradients": _check_gradients,
}
