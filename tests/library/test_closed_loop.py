import keras
import numpy as np
import pytest
from gradients import differentiate
from keras import ops
from layer_checks import (
    POLICIES,
    array,
    assert_close,
    assert_config_round_trip,
    dtype_policy,
    numpy,
    right_mask,
)

from keras_bahdanau import AttentiveDecoder, BahdanauAttention, ClosedLoop, CoverageAttention

B, TX, M, D, UNITS, R, STEPS = 3, 5, 2, 6, 4, 3, 4
MASK = right_mask([5, 2, 1], TX)


def decoder(**arguments):
    return AttentiveDecoder(
        keras.layers.GRUCell(UNITS), BahdanauAttention(3), keras.layers.Dense(R), **arguments
    )


def data(rng):
    return array(rng, B, M), array(rng, B, TX, D)


def by_steps(decoder, first, annotations, next_input, mask=None):
    """Outputs and weights of the loop written by hand."""
    memory = decoder.memory(annotations, mask)
    state, x, outputs, weights = decoder.initial_state(memory), first, [], []
    for _ in range(STEPS):
        output, state, alignment = decoder.step(x, state, memory)
        x = next_input(output)
        outputs.append(numpy(output))
        weights.append(numpy(alignment))
    return np.stack(outputs, 1), np.stack(weights, 1)


def test_without_a_layer_the_output_is_the_next_input(rng):
    loop, (_, annotations) = decoder(), data(rng)
    first = array(rng, B, R)
    actual = loop.unroll(first, annotations, STEPS)
    assert_close(actual, by_steps(loop, first, annotations, lambda x: x), 1e-6)


def test_every_gradient_is_finite_where_a_layer_has_none_at_zero(rng):
    scale = keras.layers.UnitNormalization()
    loop, (_, annotations) = ClosedLoop(decoder(), STEPS, scale), data(rng)
    first = array(rng, B, R)
    loop.build(first.shape, annotations.shape)
    _, gradients = differentiate(loop)(first, annotations)
    for gradient in gradients:
        assert np.isfinite(gradient).all() and gradient.any()


def forecaster(order):
    """The next values, and beside them one step ahead of true ones by the same decoder."""
    first, past, truth = keras.Input((M,)), keras.Input((None, D)), keras.Input((None, M))
    both = decoder()
    outputs = [None, None]
    for i in order:
        if i == 0:
            outputs[0], weights = both.unroll(
                first, past, STEPS, keras.layers.Dense(M), name="loop"
            )
        else:
            outputs[1] = both(truth, past)
    return keras.Model([first, past, truth], [*(outputs[i] for i in order), weights])


@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["loop first", "decoder first"])
def test_a_decoder_trained_beside_its_loop_is_saved_once(order, rng, tmp_path):
    model = forecaster(order)
    assert tuple(model.outputs[order.index(0)].shape) == (None, STEPS, R)
    assert tuple(model.outputs[2].shape) == (None, STEPS, None)
    x = [*data(rng), array(rng, B, 6, M)]
    expected = numpy(model(x))
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert_close(loaded(x), expected, 1e-6)
    assert len(loaded.trainable_weights) == len(model.trainable_weights)
    (beside,) = [part for part in loaded.layers if isinstance(part, AttentiveDecoder)]
    assert loaded.get_layer("loop").decoder is beside


def test_a_wave_is_continued(rng):
    first, past = keras.Input((1,)), keras.Input((None, 1))
    waves = AttentiveDecoder(keras.layers.GRUCell(8), BahdanauAttention(6), keras.layers.Dense(1))
    model = keras.Model([first, past], waves.unroll(first, past, 5)[0])
    model.compile(keras.optimizers.Adam(0.03), "mse")
    start = rng.uniform(0.0, 6.0, size=(32, 1, 1))
    wave = np.sin(start + 0.5 * np.arange(15)[None, :, None]).astype("float32")
    x, y = [wave[:, 9], wave[:, :10]], wave[:, 10:]
    before = model.get_weights()
    history = model.fit(x, y, epochs=15, batch_size=32, verbose=0).history["loss"]
    assert history[-1] < 0.7 * history[0]
    for was, now in zip(before, model.get_weights(), strict=True):
        assert np.abs(now - was).max() > 0
    assert_close(model.predict(x, verbose=0), model(x), 1e-5)


def test_masks_travel_with_the_annotations(rng):
    tokens = np.array([[3, 4, 5], [6, 0, 0]])
    words, first = keras.layers.Embedding(9, D, mask_zero=True)(tokens), array(rng, 2, M)
    dense = keras.layers.Dense(M)
    _, weights = decoder().unroll(first, words, STEPS, dense)
    assert not numpy(weights)[1, :, 1:].any() and (numpy(weights)[0] > 0).all()


def test_a_coverage_loss_counts_every_step(rng):
    attention = CoverageAttention(3, coverage_loss=0.5)
    loop = AttentiveDecoder(keras.layers.GRUCell(M), attention)
    layer = ClosedLoop(loop, STEPS)
    _, weights = layer(*data(rng), annotations_mask=MASK)
    (loss,) = layer.losses
    assert_close(loss, attention.penalty(weights), 1e-6)


@pytest.mark.parametrize("next_input", [None, keras.layers.Dense(M)], ids=["output", "dense"])
def test_config_round_trip(next_input):
    assert_config_round_trip(ClosedLoop(decoder(), STEPS, next_input))


@pytest.mark.parametrize("policy", POLICIES)
def test_mixed_precision(policy, rng):
    with dtype_policy(policy):
        loop, x = decoder(), data(rng)
        dense = keras.layers.Dense(M)
        outputs, weights = loop.unroll(*x, STEPS, dense, annotations_mask=MASK)
    assert keras.backend.standardize_dtype(outputs.dtype) == loop.compute_dtype
    assert keras.backend.standardize_dtype(weights.dtype) == "float32"
    expected = by_steps(loop, *x, dense, MASK)
    actual = ops.cast(outputs, "float32"), weights
    assert_close(actual, tuple(np.asarray(part, "float32") for part in expected), 0.05)


@pytest.mark.parametrize(
    ("shape", "next_input", "message"),
    [
        ((B, M), None, r"`next_input` .* width 3 .* width 2, .*Dense\(2\). Received: None.* 3"),
        ((B, M), keras.layers.Dense(5), r"`next_input` .* write .*Dense\(2\). Rec.* width 5"),
        ((B, 4, M), None, r"`first` must be \(batch, width\).* Received: shape \(\w+, 4, 2\)"),
    ],
)
def test_widths_must_meet(shape, next_input, message):
    first, annotations = np.zeros(shape, "float32"), np.zeros((B, TX, D), "float32")
    with pytest.raises(ValueError, match=message):
        decoder().unroll(first, annotations, STEPS, next_input)
    symbols = keras.Input(shape[1:]), keras.Input((None, D))
    with pytest.raises(ValueError, match=message):
        decoder().unroll(*symbols, STEPS, next_input)


@pytest.mark.parametrize("steps", [0, -1, 2.5, None])
def test_steps_must_be_a_positive_integer(steps):
    with pytest.raises(ValueError, match=r"`steps` must be a positive integer\. Received: "):
        ClosedLoop(decoder(), steps)


@pytest.mark.parametrize("wrong", ["x", None, keras.layers.Dense(2), keras.layers.GRU(2)])
def test_decoder_must_be_one(wrong):
    with pytest.raises(ValueError, match=r"`decoder` must be an AttentiveDecoder\. Received: "):
        ClosedLoop(wrong, STEPS)


@pytest.mark.parametrize("next_input", [lambda x: x, "dense"])
def test_next_input_must_be_a_layer(next_input):
    with pytest.raises(ValueError, match=r"`next_input` must be None or a Keras layer.* Received"):
        ClosedLoop(decoder(), STEPS, next_input)
