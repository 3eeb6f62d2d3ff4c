import keras
import numpy as np
import pytest
from keras import ops

from keras_bahdanau import BeamSearch, GreedySearch, Perplexity, RNNSearch, TokenCrossentropy
from keras_bahdanau.models.compiled import compile_inference

BACKEND = keras.config.backend()


def small():
    return RNNSearch(9, 9, units=4, embedding_dim=3, attention_units=3, maxout_units=2)


@pytest.fixture
def counted(monkeypatch):
    """A model, and how often its search is run by Python: once for each compilation."""
    return small(), calls_of("search", monkeypatch)


def calls_of(name, monkeypatch):
    """A list that grows by one whenever Python runs this method of a model."""
    calls, original = [], getattr(RNNSearch, name)

    def method(self, *args, **kwargs):
        calls.append(1)
        return original(self, *args, **kwargs)

    monkeypatch.setattr(RNNSearch, name, method)
    return calls


def sources(batch, length):
    return np.full((batch, length), 5, "int32")


@pytest.mark.skipif(BACKEND == "torch", reason="torch compiles nothing")
def test_lengths_of_one_bucket_share_one_compilation(counted):
    model, calls = counted
    for length in (5, 7, 8, 1):
        model.generate(sources(2, length), search=GreedySearch(), max_length=3)
    assert len(calls) == 1
    model.generate(sources(2, 9), search=GreedySearch(), max_length=3)
    # TensorFlow's one trace is for every shape.
    assert len(calls) == (1 if BACKEND == "tensorflow" else 2)
    model.generate(sources(2, 5), search=GreedySearch(), max_length=3)
    assert len(calls) == (1 if BACKEND == "tensorflow" else 2)


def test_other_searches_are_other_functions(counted):
    model, calls = counted
    for search, max_length in [(GreedySearch(), 2), (BeamSearch(2), 2), (GreedySearch(), 3)]:
        found = model.generate(sources(1, 2), search=search, max_length=max_length)
        assert found.tokens.shape == (1, search.size, found.lengths.max())
        assert found.lengths.max() <= max_length
    assert len(calls) == 3


def test_new_weights_are_seen():
    layer = keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")
    model = keras.Sequential([keras.Input((2,)), layer])
    function = compile_inference(model, lambda source: layer(ops.cast(source, "float32")))
    source = np.array([[1, 2]], "int32")
    assert ops.convert_to_numpy(function(source)).tolist() == [[3.0]]
    layer.kernel.assign([[10.0], [100.0]])
    assert ops.convert_to_numpy(function(source)).tolist() == [[210.0]]


@pytest.mark.skipif(BACKEND != "torch", reason="the others record no gradients here")
def test_no_gradients_are_recorded():
    layer = keras.layers.Dense(1)
    model = keras.Sequential([keras.Input((2,)), layer])
    function = compile_inference(model, lambda source: layer(ops.cast(source, "float32")))
    assert layer.kernel.value.requires_grad
    assert not function(np.array([[1, 2]], "int32")).requires_grad


def test_refuses_a_backend_it_does_not_know(monkeypatch):
    monkeypatch.setattr(keras.config, "backend", lambda: "numpy")
    with pytest.raises(ValueError, match="'numpy' is not supported: use tensorflow, jax or torch"):
        compile_inference(None, None)


@pytest.mark.skipif(BACKEND != "tensorflow", reason="The others try the step out beforehand.")
def test_the_first_step_of_training_is_traced_once(monkeypatch):
    model, calls = small(), calls_of("call", monkeypatch)
    model.compile("adam", TokenCrossentropy(), metrics=[Perplexity()], jit_compile=False)
    model.fit({"source": sources(2, 4), "target": sources(2, 3)}, sources(2, 3), verbose=0)
    assert len(calls) == 1
