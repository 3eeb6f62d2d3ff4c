"""Step graphs that are invalid, return wrong values, or take too much time or memory."""

import numpy as np
import pytest
from copy_artifact import COPY_ENCODER, COPY_STEP, COPY_STEPS, make

from keras_bahdanau_runtime import Stepper, Translator
from keras_bahdanau_runtime.errors import CorruptArtifactError, LimitError, RunError


def test_stream_returns_the_text_piece_by_piece(tmp_path):
    translator = Translator(make(tmp_path / "a", steps=COPY_STEPS))
    assert list(translator.stream("a man on")) == ["a", " man", " on"]
    assert list(translator.stream("a man on a bike", max_length=2)) == ["a", " man"]
    assert list(translator.stream(" ")) == []
    short = make(tmp_path / "b", steps=COPY_STEPS, search={"name": "greedy", "max_length": 2})
    assert list(Translator(short).stream("a man on a bike")) == ["a", " man"]


@pytest.mark.parametrize(
    "limits, expected",
    [
        ({"forbidden": [0, 1, 2, 5_000_000]}, ["a", " man", " on", " a"]),
        ({"forbidden": [0, 1, 2, 3]}, ["a", " man", " on", " a", "!"]),  # "!" has the lowest id
        ({"min_length": 6, "forbidden": [0, 1, 2]}, ["a", " man", " on", " a", "!"]),
        ({"min_length": 5, "forbidden": [0, 1, 2]}, ["a", " man", " on", " a"]),
        ({"no_repeat_ngram": 1, "forbidden": [0, 1, 2, 3]}, ["a", " man", " on", "!", '"']),
        ({"no_repeat_ngram": 2}, ["a", " man", " on", " a"]),
    ],
)
def test_stream_applies_the_constraints_of_the_search(tmp_path, limits, expected):
    search = {"name": "greedy", "max_length": 5, **limits}
    translator = Translator(make(tmp_path / "a", steps=COPY_STEPS, search=search))
    assert list(translator.stream("a man on a")) == expected


NOT_STEPS = {
    "another input": ("int32[batch] tokens", "int32[batch] words"),
    "another output": ("next_state_0", "next_state_1"),
    "a memory that the encoder does not return": ("memory_0", "memory_1"),
    "a state of another type": ("int32[batch] state_0", "int64[batch] state_0"),
}


@pytest.mark.parametrize("name", NOT_STEPS)
def test_step_graphs_that_do_not_match_the_encoder_are_refused(tmp_path, name):
    step = COPY_STEP.replace(*NOT_STEPS[name])
    if "int64" in step.split("=>")[0]:
        step = step.replace(
            "next_state_0 = Add (state_0, next)", "next_state_0 = Add (tokens, next)"
        )
    translator = Translator(make(tmp_path / "a", steps=(COPY_ENCODER, step)))
    with pytest.raises(CorruptArtifactError, match=r"expected step\.onnx to read"):
        translator.stream("a man")
    assert translator.translate(["a man"])[0].text == "a man"


LIES = {
    "an id too large": "Add (flat, large)",
    "a negative id": "Neg (flat)",
    "a row too many": "Concat <axis = 0> (flat, flat)",
}


@pytest.mark.parametrize("name", LIES)
def test_invalid_tokens_of_a_step_are_refused(tmp_path, name):
    step = COPY_STEP.replace("Identity (flat)", LIES[name])
    step = step.replace("int32 next = {1}", "int32 next = {1}, int32 large = {290}")
    translator = Translator(make(tmp_path / "a", steps=(COPY_ENCODER, step)))
    with pytest.raises(RunError, match="must return one id below 290"):
        list(translator.stream("a man"))


@pytest.mark.parametrize("graph, name", [(0, "state_0"), (1, "next_state_0")])
def test_state_with_another_number_of_rows_is_refused(tmp_path, graph, name):
    steps = list(COPY_STEPS)
    steps[graph] = steps[graph].replace(f"    {name} =", "    last =").rstrip("}\n")
    steps[graph] += f"\n    {name} = Concat <axis = 0> (last, last)\n}}\n"
    translator = Translator(make(tmp_path / "a", steps=steps))
    with pytest.raises(RunError, match=r"must return a state of 1 rows.*state_0 of shape \(2,\)"):
        list(translator.stream("a man"))


@pytest.mark.parametrize(
    "odds, wrong",
    [
        ("int64[1] size = {290}", "int64[1] size = {291}"),
        (
            "log_probs = OneHot (row, size, odds)",
            "both = Concat <axis = 0> (row, row)\n    log_probs = OneHot (both, size, odds)",
        ),
    ],
    ids=["a token too many", "a row too many"],
)
def test_log_probabilities_of_another_shape_are_refused(tmp_path, odds, wrong):
    steps = COPY_ENCODER, COPY_STEP.replace(odds, wrong)
    stepper = Translator(make(tmp_path / "a", steps=steps)).open_stepper()
    state, memory = stepper.start(np.array([[5, 6, 3]], "int32"))
    with pytest.raises(RunError, match="must return log-probabilities of shape"):
        stepper.step(np.array([2], "int32"), state, memory)


def test_invalid_ids_for_a_stepper_are_refused(tmp_path):
    manifest = Translator(make(tmp_path / "a", steps=COPY_STEPS)).manifest
    stepper = Stepper(manifest, "CPUExecutionProvider", None)
    for wrong, message in (
        (np.zeros((0, 3), "int32"), "must be a non-empty integer array"),
        ([[-5, 3]], "must hold ids from 0 to 289"),
        ([[290, 3]], "must hold ids from 0 to 289"),
        ([[5, 0, 3]], "must hold padding"),
    ):
        with pytest.raises(ValueError, match=f"`source` {message}"):
            stepper.start(np.array(wrong))
    state, memory = stepper.start(np.array([[5, 6, 3]]))  # of int64
    for wrong in ([2, 2], [2.0], [[2]], []):
        with pytest.raises(ValueError, match=r"`tokens` must be ints of shape \(1,\)"):
            stepper.step(np.array(wrong), state, memory)
    for wrong in (-1, 290, 2**32 + 2):
        with pytest.raises(ValueError, match="`tokens` must hold ids from 0 to 289"):
            stepper.step(np.array([wrong]), state, memory)
    log_probs, *_ = stepper.step(np.array([2]), state, memory)
    assert log_probs.argmax() == 5


def test_step_has_time_and_memory_limits(tmp_path):
    endless = COPY_STEP.replace(
        "row = Cast",
        """sure = Cast <to = 9> (next)
    spun = Loop <body = again (int64 i, bool go, int64[1] n) => (bool still, int64[1] after) {
        still = Identity (go)
        after = Add (n, n)
    }> (endless, sure, one)
    row = Cast""",
    ).replace("int32 next = {1}", "int32 next = {1}, int64 endless = {9223372036854775807}")
    path = make(tmp_path / "a", steps=(COPY_ENCODER, endless))
    with pytest.raises(LimitError, match=r"longer than 0\.2 s"):
        list(Translator(path, timeout=0.2).stream("a man"))
    large = COPY_STEP.replace(
        "row = Cast",
        "width = Mul (second, many)\n    taken = ConstantOfShape (width)\n    row = Cast",
    ).replace("int32 next = {1}", "int32 next = {1}, int64[1] many = {100000000}")
    path = make(tmp_path / "b", steps=(COPY_ENCODER, large))
    with pytest.raises(LimitError, match="could not run"):
        list(Translator(path, megabytes=30).stream("a man"))


def test_steps_of_a_replaced_artifact_are_refused(tmp_path):
    path = tmp_path / "a"
    translator = Translator(make(path, steps=COPY_STEPS))
    make(path, steps=(COPY_ENCODER, COPY_STEP.replace("-9.0", "-8.0")), overwrite=True)
    with pytest.raises(CorruptArtifactError, match="replaced since"):
        translator.stream("a man")
