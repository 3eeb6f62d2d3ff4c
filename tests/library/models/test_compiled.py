import keras
import numpy as np
import pytest
from keras import ops

from keras_bahdanau import BeamSearch, GreedySearch, Perplexity, RNNSearch, TokenCrossentropy
from keras_bahdanau.models.generation import compile_inference

BACKEND = keras.config.backend()


def small_model():
    return RNNSearch(9, 9, units=4, embedding_dim=3, attention_units=3, maxout_units=2)


def calls_of(name, monkeypatch):
    """A list that grows by one whenever Python runs this method: once for each compilation."""
    calls, original = [], getattr(RNNSearch, name)

    def method(self, *args, **kwargs):
        calls.append(1)
        return original(self, *args, **kwargs)

    monkeypatch.setattr(RNNSearch, name, method)
    return calls


def sources(batch, length):
    return np.full((batch, length), 5, "int32")


@pytest.mark.skipif(BACKEND == "torch", reason="torch compiles nothing")
def test_lengths_of_one_bucket_share_one_compilation(monkeypatch):
    model, calls = small_model(), calls_of("search", monkeypatch)
    for length in (5, 7, 8, 1):
        model.generate(sources(2, length), search=GreedySearch(), max_length=3)
    assert len(calls) == 1
    model.generate(sources(2, 9), search=GreedySearch(), max_length=3)
    model.generate(sources(2, 5), search=GreedySearch(), max_length=3)
    # TensorFlow traces the search once for all shapes.
    assert len(calls) == (1 if BACKEND == "tensorflow" else 2)


def test_each_search_and_maximum_length_is_compiled_separately(monkeypatch):
    model, calls = small_model(), calls_of("search", monkeypatch)
    for search, max_length in [(GreedySearch(), 2), (BeamSearch(2), 2), (GreedySearch(), 3)]:
        result = model.generate(sources(1, 2), search=search, max_length=max_length)
        assert result.tokens.shape == (1, search.num_hypotheses, result.lengths.max())
        assert result.lengths.max() <= max_length
    assert len(calls) == 3


def compiled_layer(layer):
    model = keras.Sequential([keras.Input((2,)), layer])
    return compile_inference(model, lambda source: layer(ops.cast(source, "float32")))


def test_a_compiled_function_uses_new_weights():
    layer = keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")
    function = compiled_layer(layer)
    source = np.array([[1, 2]], "int32")
    assert ops.convert_to_numpy(function(source)).tolist() == [[3.0]]
    layer.kernel.assign([[10.0], [100.0]])
    assert ops.convert_to_numpy(function(source)).tolist() == [[210.0]]


@pytest.mark.skipif(BACKEND != "torch", reason="the other backends record no gradients here")
def test_inference_records_no_gradients():
    layer = keras.layers.Dense(1)
    function = compiled_layer(layer)
    assert layer.kernel.value.requires_grad
    assert not function(np.array([[1, 2]], "int32")).requires_grad


def test_an_unsupported_backend_is_refused(monkeypatch):
    monkeypatch.setattr(keras.config, "backend", lambda: "numpy")
    with pytest.raises(ValueError, match="'numpy' is not supported: use tensorflow, jax or torch"):
        compile_inference(None, None)


@pytest.mark.skipif(BACKEND != "tensorflow", reason="the other backends run a trial step")
def test_the_first_training_step_is_traced_once(monkeypatch):
    model, calls = small_model(), calls_of("call", monkeypatch)
    model.compile("adam", TokenCrossentropy(), metrics=[Perplexity()], jit_compile=False)
    model.fit({"source": sources(2, 4), "target": sources(2, 3)}, sources(2, 3), verbose=0)
    assert len(calls) == 1
