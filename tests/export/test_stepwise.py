"""Single steps of an exported model: of the SavedModel, and of ONNX graphs."""

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
