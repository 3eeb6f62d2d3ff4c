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

from keras_bahdanau import AttentiveDecoder, BahdanauAttention
from keras_bahdanau.layers import ClosedLoop, CoverageAttention

B, TX, M, D, UNITS, R, STEPS = 3, 5, 2, 6, 4, 3, 4
MASK = right_mask([5, 2, 1], TX)


def decoder(**arguments):
    return AttentiveDecoder(
        keras.layers.GRUCell(UNITS), BahdanauAttention(3), keras.layers.Dense(R), **arguments
    )


def data(rng):
    return array(rng, B, M), array(rng, B, TX, D)


def by_steps(decoder, first, annotations, next_input, mask=None):
    """Outputs and weights of a loop over `decoder.step`."""
    memory = decoder.memory(annotations, mask)
    state, x, results = decoder.initial_state(memory), first, []
    for _ in range(STEPS):
        output, state, weights = decoder.step(x, state, memory)
        x = next_input(output)
        results.append(numpy((output, weights)))
    return tuple(np.stack(parts, axis=1) for parts in zip(*results, strict=True))


def test_without_a_layer_the_output_is_the_next_input(rng):
    loop, (_, annotations) = decoder(), data(rng)
    first = array(rng, B, R)
    actual = loop.unroll(first, annotations, STEPS)
    assert_close(actual, by_steps(loop, first, annotations, lambda x: x), 1e-6)


def test_known_values_are_read_after_the_last_output(rng):
    loop, (_, annotations) = decoder(), data(rng)
    first, known = array(rng, B, R), array(rng, B, STEPS, 2)
    loop.build((B, STEPS, R + 2), (B, TX, D))
    values = iter([*np.moveaxis(known, 1, 0), known[:, 0]])

    def with_known(output):
        return np.concatenate([numpy(output), next(values)], axis=-1)

    expected = by_steps(loop, with_known(first), annotations, with_known)
    assert_close(loop.unroll(first, annotations, STEPS, known_inputs=known), expected, 1e-6)


def test_gradients_are_finite_if_the_layer_has_no_gradient_at_zero(rng):
    scale = keras.layers.UnitNormalization()
    loop, (_, annotations) = ClosedLoop(decoder(), STEPS, scale), data(rng)
    first = array(rng, B, R)
    loop.build(first.shape, annotations.shape)
    _, gradients = differentiate(loop)(first, annotations)
    for gradient in gradients:
        assert np.isfinite(gradient).all() and gradient.any()


def forecaster(order):
    """A model with a closed loop and, with the same decoder, teacher forcing, in this order."""
    first, past, truth = keras.Input((M,)), keras.Input((None, D)), keras.Input((None, M))
    shared, outputs = decoder(), {}
    for name in order:
        if name == "loop":
            outputs[name], weights = shared.unroll(
                first, past, STEPS, keras.layers.Dense(M), name="loop"
            )
        else:
            outputs[name] = shared(truth, past)
    return keras.Model([first, past, truth], [outputs["loop"], outputs["decoder"], weights])


@pytest.mark.parametrize("order", [("loop", "decoder"), ("decoder", "loop")], ids=" ".join)
def test_a_decoder_shared_with_its_loop_is_saved_once(order, rng, tmp_path):
    model = forecaster(order)
    assert tuple(model.outputs[0].shape) == (None, STEPS, R)
    assert tuple(model.outputs[2].shape) == (None, STEPS, None)
    x = [*data(rng), array(rng, B, 6, M)]
    expected = numpy(model(x))
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert_close(loaded(x), expected, 1e-6)
    assert len(loaded.trainable_weights) == len(model.trainable_weights)
    (shared,) = [layer for layer in loaded.layers if isinstance(layer, AttentiveDecoder)]
    assert loaded.get_layer("loop").decoder is shared


def test_training_to_continue_a_sine_wave_changes_every_weight_and_lowers_the_loss(rng):
    first, past = keras.Input((1,)), keras.Input((None, 1))
    loop = AttentiveDecoder(keras.layers.GRUCell(8), BahdanauAttention(6), keras.layers.Dense(1))
    model = keras.Model([first, past], loop.unroll(first, past, 5)[0])
    model.compile(keras.optimizers.Adam(0.03), "mse")
    start = rng.uniform(0.0, 6.0, size=(32, 1, 1))
    wave = np.sin(start + 0.5 * np.arange(15)[None, :, None]).astype("float32")
    x, y = [wave[:, 9], wave[:, :10]], wave[:, 10:]
    before = model.get_weights()
    history = model.fit(x, y, epochs=15, batch_size=32, verbose=0).history["loss"]
    assert history[-1] < 0.7 * history[0]
    for old, new in zip(before, model.get_weights(), strict=True):
        assert np.abs(new - old).max() > 0
    assert_close(model.predict(x, verbose=0), model(x), 1e-5)


def test_the_implicit_mask_of_the_annotations_is_used(rng):
    tokens = np.array([[3, 4, 5], [6, 0, 0]])
    words, first = keras.layers.Embedding(9, D, mask_zero=True)(tokens), array(rng, 2, M)
    _, weights = decoder().unroll(first, words, STEPS, keras.layers.Dense(M))
    assert not numpy(weights)[1, :, 1:].any() and (numpy(weights)[0] > 0).all()


def test_the_coverage_loss_includes_every_step(rng):
    attention = CoverageAttention(3, coverage_loss_weight=0.5)
    loop = ClosedLoop(AttentiveDecoder(keras.layers.GRUCell(M), attention), STEPS)
    _, weights = loop(*data(rng), annotations_mask=MASK)
    assert_close(loop.losses, [attention.penalty(weights)], 1e-6)


@pytest.mark.parametrize("next_input", [None, keras.layers.Dense(M)], ids=["output", "dense"])
def test_config_round_trip(next_input):
    assert_config_round_trip(ClosedLoop(decoder(), STEPS, next_input))


@pytest.mark.parametrize("policy", POLICIES)
def test_mixed_precision_gives_the_compute_dtype_and_float32_weights(policy, rng):
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
def test_the_input_and_the_next_input_must_have_the_same_width(shape, next_input, message):
    first, annotations = np.zeros(shape, "float32"), np.zeros((B, TX, D), "float32")
    with pytest.raises(ValueError, match=message):
        decoder().unroll(first, annotations, STEPS, next_input)
    symbols = keras.Input(shape[1:]), keras.Input((None, D))
    with pytest.raises(ValueError, match=message):
        decoder().unroll(*symbols, STEPS, next_input)


@pytest.mark.parametrize("shape", [(B, STEPS - 1, 2), (B, 2)])
def test_known_values_must_cover_every_step(shape):
    first, annotations = np.zeros((B, R), "float32"), np.zeros((B, TX, D), "float32")
    message = rf"`known_inputs` must be \(batch, {STEPS}, width\)\. Received: shape "
    with pytest.raises(ValueError, match=message):
        decoder().unroll(first, annotations, STEPS, known_inputs=np.zeros(shape, "float32"))
    symbols = keras.Input((R,)), keras.Input((None, D))
    with pytest.raises(ValueError, match=message):
        decoder().unroll(*symbols, STEPS, known_inputs=keras.Input(shape[1:]))


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("steps", [0, -1, 2.5, None], r"`steps` must be a positive integer\. Received: "),
        (
            "decoder",
            ["x", None, keras.layers.Dense(2), keras.layers.GRU(2)],
            r"`decoder` must be an AttentiveDecoder\. Received: ",
        ),
        ("next_input", [lambda x: x, "dense"], "`next_input` must be None or a Keras layer.* Rec"),
    ],
)
def test_invalid_arguments_are_refused(name, values, message):
    for value in values:
        with pytest.raises(ValueError, match=message):
            ClosedLoop(**{"decoder": decoder(), "steps": STEPS, name: value})
