import keras
import numpy as np
import pytest
from layer_checks import (
    array,
    assert_close,
    assert_config_round_trip,
    assert_garbage_is_ignored,
    assert_survives_saving,
    numpy,
    right_mask,
)

from keras_bahdanau.layers import WindowNormalization

B, T, TX, V = 3, 4, 6, 2
LENGTHS = [6, 3, 1]
MASK = right_mask(LENGTHS, TX)


def reference(series, window, center, scale, epsilon=1e-5):
    """The normalized series, row by row, for windows of kept steps only."""
    rows = []
    for values, past in zip(series, window, strict=True):
        level = past[-1] if center == "last" else past.mean(axis=0)
        deviation = np.sqrt(past.var(axis=0) + epsilon) if scale else 1.0
        rows.append((values - level) / deviation)
    return np.array(rows)


@pytest.mark.parametrize("scale", [True, False])
@pytest.mark.parametrize("center", ["last", "mean"])
def test_the_level_and_the_deviation_of_the_window_are_removed_and_restored(center, scale, rng):
    layer = WindowNormalization(center, scale)
    series, window = array(rng, B, T, V) + 5, 3 * array(rng, B, TX, V) + 4
    normalized = layer(series, window)
    assert_close(normalized, reference(series, window, center, scale))
    assert_close(layer(normalized, window, inverse=True), series)
    kept = [past[:length] for past, length in zip(window, LENGTHS, strict=True)]
    # The kept steps of a row have another number, so that each has a deviation of its own.
    masked = layer(series, window, window_mask=MASK)
    assert_close(masked, reference(series, kept, center, scale), 2e-3)


def test_further_axes_of_a_forecast_such_as_quantiles_have_the_level_of_their_variable(rng):
    layer, window = WindowNormalization(), array(rng, B, TX, V)
    quantiles = array(rng, B, T, V, 3)
    outputs = layer(quantiles, window, inverse=True)
    for k in range(3):
        assert_close(outputs[..., k], layer(quantiles[..., k], window, inverse=True))


def test_a_constant_window_has_a_finite_scale():
    layer, window = WindowNormalization(epsilon=0.25), np.full((1, TX, 1), 7.0, "float32")
    assert_close(layer(np.array([[[8.0]]]), window), [[[2.0]]])  # (8 - 7) / sqrt(0.25)


def test_masked_steps_of_the_window_change_nothing(rng):
    layer, arrays = WindowNormalization(), [array(rng, B, T, V), array(rng, B, TX, V)]
    layer.build(*[part.shape for part in arrays])
    assert_garbage_is_ignored(layer, arrays, 1, MASK, window_mask=MASK)


def test_the_mask_of_the_window_comes_from_keras_and_that_of_the_series_goes_on(rng):
    window = array(rng, B, TX, V) + 9
    window[~MASK] = 0.0
    masked = keras.layers.Masking()(window)
    layer = WindowNormalization()
    outputs = layer(masked, masked)
    assert_close(outputs[:, :1], layer(window[:, :1], window, window_mask=MASK))
    rows = zip(numpy(outputs), MASK, strict=True)
    kept_mean = np.array([part[keep].mean(axis=0) for part, keep in rows])
    assert_close(keras.layers.GlobalAveragePooling1D()(outputs), kept_mean)


def test_a_model_with_any_length_is_saved(rng, tmp_path):
    past = keras.Input((None, V))
    normalize = WindowNormalization("mean")
    forecast = keras.layers.Dense(V)(normalize(past, past))
    model = keras.Model(past, normalize(forecast, past, inverse=True))
    assert tuple(model.output_shape) == (None, None, V)
    assert_survives_saving(model, array(rng, B, TX, V), tmp_path)
    assert_config_round_trip(WindowNormalization("mean", False, 0.1))


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ([(B, V), (B, TX, V)], r"`series` must be \(3, time, 2\)\. Received: shape \(3, 2\)"),
        ([(B, T, V + 1), (B, TX, V)], "`series` must be .* whose axis `width` is 3"),
        ([(B, T, V), (B, V)], r"`window` must be \(batch, time, width\)\. Received: shape"),
        ([(B + 1, T, V), (B, TX, V)], "`series` must be .* whose axis `batch` is 4"),
    ],
)
def test_series_and_windows_that_do_not_match_are_refused(shapes, message):
    with pytest.raises(ValueError, match=message):
        WindowNormalization()(*[np.zeros(shape, "float32") for shape in shapes])


@pytest.mark.parametrize(("name", "value"), [("center", "first"), ("epsilon", -1.0)])
def test_invalid_arguments_are_refused(name, value):
    with pytest.raises(ValueError, match=f"`{name}` must .* Received: "):
        WindowNormalization(**{name: value})
