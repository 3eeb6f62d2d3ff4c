import keras
import numpy as np
import pytest
from layer_checks import array, assert_close

from keras_bahdanau.losses import QuantileLoss

QUANTILES = [0.1, 0.5, 0.8]


def reference(y_true, y_pred):
    """The mean over the quantiles, one loss for each value."""
    losses = np.zeros(y_true.shape)
    for place, value in np.ndenumerate(y_true):
        for quantile, prediction in zip(QUANTILES, y_pred[place], strict=True):
            is_above = value > prediction
            share = quantile if is_above else 1 - quantile
            losses[place] += share * abs(value - prediction) / len(QUANTILES)
    return losses


@pytest.mark.parametrize("shape", [(4,), (2, 3), (2, 3, 2)])
def test_the_loss_is_the_mean_of_weighted_absolute_errors(shape, rng):
    y_true, y_pred = array(rng, *shape), array(rng, *shape, 3)
    expected = reference(y_true, y_pred)
    assert_close(QuantileLoss(QUANTILES)(y_true, y_pred), expected.mean())
    assert_close(QuantileLoss(QUANTILES, reduction="none")(y_true, y_pred), expected)
    weight = rng.uniform(size=shape).astype("float32")
    weighted = QuantileLoss(QUANTILES)(y_true, y_pred, sample_weight=weight)
    assert_close(weighted, (expected * weight).mean())


def test_training_finds_the_quantiles_of_the_data():
    values = np.arange(101, dtype="float32")[:, None]  # the quantile q is 100 q
    middle = keras.initializers.Constant(50)
    level = keras.layers.Dense(3, use_bias=False, kernel_initializer=middle)
    model = keras.Sequential([keras.Input((1,)), level, keras.layers.Reshape((1, 3))])
    rate = keras.optimizers.schedules.PolynomialDecay(3.0, 200, 0.01)
    model.compile(keras.optimizers.Adam(rate), QuantileLoss(QUANTILES))
    model.fit(np.ones((101, 1)), values, batch_size=101, epochs=200, verbose=0)
    assert_close(level.get_weights()[0], [[10.0, 50.0, 80.0]], 1.0)


def test_config_round_trip():
    loss = QuantileLoss((0.2, 0.9), reduction="sum", name="spread")
    assert QuantileLoss.from_config(loss.get_config()).get_config() == loss.get_config()
    copy = keras.losses.deserialize(keras.losses.serialize(loss))
    assert copy.get_config() == loss.get_config()


@pytest.mark.parametrize("shapes", [((2, 3), (2, 3)), ((2, 3), (2, 3, 4)), ((2, 3), (2, 4, 3))])
def test_predictions_of_another_shape_are_refused(shapes):
    message = r"`y_pred` must have .* 3 quantiles\. Received: y_true of shape \(2, 3\), y_pred of "
    with pytest.raises(ValueError, match=message):
        QuantileLoss(QUANTILES)(*map(np.zeros, shapes))


@pytest.mark.parametrize("quantiles", [[], 0.5, [0.0, 0.5], [0.5, 1.0], ["a"]])
def test_numbers_that_are_no_quantiles_are_refused(quantiles):
    with pytest.raises(ValueError, match=r"`quantiles.* must .* Received: "):
        QuantileLoss(quantiles)
