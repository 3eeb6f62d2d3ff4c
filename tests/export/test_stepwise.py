"""Single steps of an exported model: of the SavedModel, and of ONNX graphs in fixed buffers."""

import dataclasses

import keras
import numpy as np
import pytest
from models import TEXTS

from keras_bahdanau import BeamSearch, GreedySearch
from keras_bahdanau_runtime import Translator
from keras_bahdanau_runtime.ids import BOS, PAD
from keras_bahdanau_runtime.manifest import read_manifest
from keras_bahdanau_runtime.search_settings import ManifestSearch
from keras_bahdanau_runtime.session import MAX_CUDA_GRAPH_SHAPES
from keras_bahdanau_runtime.stepper import Stepper


@pytest.fixture(scope="module")
def signatures(artifact):
    """The functions of the SavedModel."""
    import tensorflow as tf

    return tf.saved_model.load(str(artifact[0] / "saved_model")).signatures


def test_the_saved_model_searches_as_keras_does(signatures, model):
    source = keras.ops.convert_to_tensor([[5, 6, 7, 3], [8, 3, 0, 0]], "int32")
    tokens = signatures["translate"](source=source)["tokens"]
    expected = model.generate(source, search=BeamSearch(3, length_penalty=0.6), max_length=9)
    length = expected.tokens.shape[2]
    np.testing.assert_array_equal(tokens[:, :, :length], expected.tokens)


def test_the_saved_model_steps_as_keras_does(signatures, model):
    source = keras.ops.convert_to_tensor([[5, 6, 7, 3]], "int32")
    encoded = signatures["encode"](source=source)
    step = signatures["step"]
    names = step.structured_input_signature[1]
    inputs = {name: value for name, value in encoded.items() if name in names}
    tokens = keras.ops.convert_to_tensor([BOS], "int32")
    log_probs = step(tokens=tokens, **inputs)["log_probs"].numpy()
    expected = model.generate(source, GreedySearch(), max_length=1).totals[0, 0]
    assert log_probs.max() == pytest.approx(expected, abs=1e-5)


def test_steps_give_the_results_of_a_greedy_search(artifact, model, tokenizer):
    stepper = Stepper(read_manifest(artifact[0]), "CPUExecutionProvider", None)
    for text in TEXTS:
        ids = np.array([tokenizer.encode_source(text)], "int32")
        ours = model.generate(ids, GreedySearch(), max_length=9)
        tokens, state_and_memory = [BOS], stepper.start(ids)
        for i in range(int(ours.lengths[0, 0])):
            log_probs, weights, state = stepper.step(
                np.array(tokens[-1:], "int32"), *state_and_memory
            )
            tokens.append(int(log_probs[0].argmax()))
            state_and_memory = state, state_and_memory[1]
            assert log_probs[0].max() == pytest.approx(ours.log_probs[0, 0, i], abs=1e-5)
            np.testing.assert_allclose(weights[0], ours.alignments[0, 0, i], atol=1e-5)
        np.testing.assert_array_equal(tokens[1:], ours.tokens[0, 0])


def test_steps_in_fixed_buffers_give_the_same_results(artifact):
    manifest = read_manifest(artifact[0])
    free = Stepper(manifest, "CPUExecutionProvider", None)
    fixed = Stepper(manifest, "CPUExecutionProvider", 1, fixed_buffers=True)
    sources = [[[5, 6, 7, 3], [8, 9, 3, 0]], [[9, 9, 3, 0], [5, 8, 7, 3]], [[4, 3], [3, 0]]]
    sources.append([[*[5] * 16, 3], [6, 3, *[PAD] * 15]])  # beyond 16
    for source in (np.array(ids, "int32") for ids in (*sources, sources[0])):
        ours, theirs = free.start(source), fixed.start(source)
        for tokens in ([BOS, BOS], [5, 6], [7, 3], [8, 9]):
            tokens = np.array(tokens, "int32")
            *expected, free_state = free.step(tokens, *ours)
            *results, fixed_state = fixed.step(tokens, *theirs)
            for a, b in zip(results, expected, strict=True):
                np.testing.assert_allclose(a, b, atol=1e-6)
            ours, theirs = (free_state, ours[1]), (fixed_state, theirs[1])


def test_lengths_share_buffers_and_only_buffers_of_the_last_shapes_are_kept(artifact):
    fixed = Stepper(read_manifest(artifact[0]), "CPUExecutionProvider", None, fixed_buffers=True)
    starts = [fixed.start(np.full((1, length), 3, "int32")) for length in (1, 5, 16)]
    buffers = [{id(value) for part in start for value in part.values()} for start in starts]
    assert buffers[0] == buffers[1] == buffers[2]
    for rows in range(2, MAX_CUDA_GRAPH_SHAPES + 2):
        state, memory = fixed.start(np.full((rows, 2), 3, "int32"))
    log_probs, weights, _ = fixed.step(np.full(rows, BOS, "int32"), state, memory)
    assert (len(log_probs), weights.shape) == (rows, (rows, 2))
    with pytest.raises(ValueError, match="must be those of the latest start"):
        fixed.step(np.array([BOS], "int32"), *starts[0])


def test_fixed_buffers_refuse_another_state(artifact):
    fixed = Stepper(read_manifest(artifact[0]), "CPUExecutionProvider", None, fixed_buffers=True)
    state, memory = fixed.start(np.array([[5, 3]], "int32"))
    with pytest.raises(ValueError, match=r"`tokens` must be ints of shape \(1,\).*\(2,\)"):
        fixed.step(np.array([BOS, BOS], "int32"), state, memory)
    tokens = np.array([BOS], "int32")
    *_, after = fixed.step(tokens, state, memory)
    new = fixed.start(np.array([[6, 3]], "int32"))  # the same shape, so the same buffers
    fixed.step(tokens, *new)
    for arguments in ((after, memory), (state, memory), new, (dict(new[0]), new[1])):
        with pytest.raises(ValueError, match="`state` and `memory` must be those of the latest"):
            fixed.step(tokens, *arguments)


def test_a_stream_keeps_to_the_limits_of_the_search(artifact, model, tokenizer):
    translator = Translator(artifact[0])
    ids = np.array([tokenizer.encode_source(TEXTS[0])], "int32")
    free = model.generate(ids, GreedySearch(), max_length=9).tokens[0, 0]
    for limits in (
        {"max_length_ratio": 0.5},
        {"forbidden": (PAD, BOS, int(free[0]))},
        {"no_repeat_ngram": 1},
        {"no_repeat_ngram": 2},
    ):
        # As if the artifact had been exported with these limits.
        search = ManifestSearch(max_length=9, **limits)
        translator.manifest = dataclasses.replace(translator.manifest, search=search)
        ours = model.generate(ids, GreedySearch(**limits), max_length=9).tokens[0, 0]
        assert ours.tolist() != free.tolist()
        assert "".join(translator.stream(TEXTS[0])) == tokenizer.decode(ours)
