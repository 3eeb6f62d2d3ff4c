import keras
import numpy as np
import pytest
from layer_checks import numpy

from keras_bahdanau import RNNSearch, RunCheckpoint
from keras_bahdanau.optimizers import ema_weights
from keras_bahdanau.training import average_checkpoints

SIZES = {"units": 4, "embedding_dim": 3, "attention_units": 3, "maxout_units": 2}


@keras.saving.register_keras_serializable(package="test_averaging")
class MixedWeights(keras.layers.Layer):
    """A layer with a float32, a float16 and an int32 weight."""

    def build(self, input_shape):
        self.scale = self.add_weight(shape=(2,), name="scale")
        self.half = self.add_weight(shape=(2,), name="half", dtype="float16", autocast=False)
        self.count = self.add_weight(
            shape=(), name="count", dtype="int32", initializer="zeros", trainable=False
        )

    def call(self, inputs):
        return inputs * self.scale


def save_mixed(path, *values):
    """Save a model of one `MixedWeights` layer with these values, and return the path."""
    model = keras.Sequential([keras.Input((2,)), MixedWeights()])
    model.set_weights([np.asarray(value) for value in values])
    model.save(path)
    return path


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    """Three checkpoints of one model, and the weights in each."""
    folder, rng = tmp_path_factory.mktemp("run"), np.random.default_rng(0)
    model = RNNSearch(7, 8, **SIZES)
    model.build()
    paths, weights = [], []
    for number in range(3):
        model.set_weights([rng.normal(size=w.shape) for w in model.get_weights()])
        weights.append(model.get_weights())
        paths.append(folder / f"epoch-{number}.keras")
        model.save(paths[-1])
    return paths, weights


def test_every_weight_is_the_mean_over_the_checkpoints(checkpoints, tmp_path):
    paths, weights = checkpoints
    output = tmp_path / "average.keras"
    average_checkpoints(iter(paths), output)
    assert [path.name for path in tmp_path.iterdir()] == ["average.keras"]
    averaged = keras.saving.load_model(output)
    for value, *each in zip(averaged.get_weights(), *weights, strict=True):
        np.testing.assert_allclose(value, np.mean(np.float64(each), axis=0), rtol=1e-6, atol=1e-7)
    batch = {"source": np.array([[5, 6, 3]]), "target": np.array([[2, 7]])}
    assert np.isfinite(numpy(averaged(batch))).all()


def test_the_average_of_one_checkpoint_is_that_checkpoint(checkpoints, tmp_path):
    paths, weights = checkpoints
    average_checkpoints([str(paths[1])], str(tmp_path / "average.keras"))
    averaged = keras.saving.load_model(tmp_path / "average.keras")
    for value, expected in zip(averaged.get_weights(), weights[1], strict=True):
        np.testing.assert_array_equal(value, expected)


def test_floats_are_summed_in_float64_and_integers_are_those_of_the_last_file(tmp_path):
    # float32 cannot represent 2^24 + 1, and float16 cannot represent 40000 + 40000.
    values = [
        ([2.0**24, 1.0], [4e4, 1.0], 5),
        ([1.0, 2.0], [4e4, 2.0], 9),
        ([1.0, 3.0], [4e4, 3.0], 8),
    ]
    paths = [save_mixed(tmp_path / f"{i}.keras", *row) for i, row in enumerate(values)]
    average_checkpoints(paths, tmp_path / "average.keras")
    scale, half, count = keras.saving.load_model(tmp_path / "average.keras").get_weights()
    np.testing.assert_array_equal(scale, np.float32([(2**24 + 2) / 3, 2.0]))
    np.testing.assert_array_equal(half, np.float16([4e4, 2.0]))
    assert count == 8


def test_the_output_may_overwrite_one_of_the_files(tmp_path):
    zeros = [0.0, 0.0]
    paths = [save_mixed(tmp_path / f"{x}.keras", [x, 0.0], zeros, 0) for x in (1.0, 3.0)]
    average_checkpoints(paths, paths[0])
    scale, *_ = keras.saving.load_model(paths[0]).get_weights()
    np.testing.assert_array_equal(scale, [2.0, 0.0])


def test_an_interrupted_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = save_mixed(tmp_path / "a.keras", [1.0, 2.0], [0.0, 0.0], 3)
    before = path.read_bytes()

    def interrupted_save(model, path):
        path.write_bytes(b"half a file")
        raise KeyboardInterrupt

    monkeypatch.setattr(keras.Model, "save", interrupted_save)
    with pytest.raises(KeyboardInterrupt):
        average_checkpoints([path], path)
    assert path.read_bytes() == before


def dense(*widths, **kwargs):
    return keras.Sequential([keras.Input((2,)), *(keras.layers.Dense(n, **kwargs) for n in widths)])


@pytest.mark.parametrize(
    ("second", "difference"),
    [
        (lambda: dense(4), r"weight 0 is \('kernel', \(2, 4\)\), not \('kernel', \(2, 3\)\)"),
        (lambda: dense(3, use_bias=False), "it has 1 weights, not 2"),
        (lambda: dense(3, 3), "it has 4 weights, not 2"),
        (
            lambda: keras.Sequential([keras.Input((2,)), keras.layers.Embedding(2, 3)]),
            r"weight 0 is \('embeddings', \(2, 3\)\), not \('kernel', \(2, 3\)\)",
        ),
    ],
)
def test_checkpoints_of_different_models_are_refused(tmp_path, second, difference):
    paths = [tmp_path / "a.keras", tmp_path / "b.keras"]
    dense(3).save(paths[0])
    second().save(paths[1])
    with pytest.raises(ValueError, match=f"b.keras differs from .*a.keras: {difference}"):
        average_checkpoints(paths, tmp_path / "average.keras")
    assert not (tmp_path / "average.keras").exists()


def test_paths_must_be_a_list_and_the_output_a_keras_file(tmp_path):
    for paths in ([], "run/last.keras", tmp_path):
        with pytest.raises(ValueError, match="`paths` must be a list of at least one file"):
            average_checkpoints(paths, tmp_path / "average.keras")
    with pytest.raises(ValueError, match=r"`output` must end with .keras. Received: .*average.h5"):
        average_checkpoints([tmp_path / "a.keras"], tmp_path / "average.h5")


def test_a_missing_file_is_named_in_the_error(checkpoints, tmp_path):
    paths, _ = checkpoints
    with pytest.raises(ValueError, match=r"none\.keras"):
        average_checkpoints([paths[0], tmp_path / "none.keras"], tmp_path / "average.keras")


@keras.saving.register_keras_serializable(package="test_averaging")
def output(_, prediction):
    return prediction


def trained(steps, optimizer):
    """A model of one weight, 1.0 at first, after training steps with a gradient of 1."""
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False)])
    model.set_weights([np.ones((1, 1))])
    model.compile(optimizer, output)
    for _ in range(steps):
        model.train_on_batch(np.ones((1, 1)), np.ones((1, 1)))
    return model


def with_mean():
    return keras.optimizers.SGD(0.5, use_ema=True, ema_momentum=0.5)


def weight_of(model):
    return model.get_weights()[0].item()


def test_the_running_mean_is_used_in_the_block_and_in_saved_checkpoints(tmp_path):
    model = trained(3, with_mean())
    weight = weight_of(model)
    assert weight == pytest.approx(-0.5)  # 1, 0.5, 0, -0.5
    with ema_weights(model):
        mean = weight_of(model)
    assert weight_of(model) == weight
    assert mean == pytest.approx(-0.125)  # 0.5; (0.5 + 0) / 2; (0.25 - 0.5) / 2

    checkpoint = RunCheckpoint(tmp_path, keep=1)
    checkpoint.set_model(model)
    checkpoint.on_epoch_end(0, {"val_bleu": 1.0})
    saved = {
        path.name: weight_of(keras.saving.load_model(path, compile=False))
        for path in tmp_path.glob("*.keras")
    }
    assert saved == {
        "last.keras": weight,
        "best.keras": pytest.approx(mean),
        "epoch-01.keras": pytest.approx(mean),
    }


def test_the_running_mean_of_a_loss_scale_optimizer():
    """Under mixed_float16 Keras wraps the optimizer in a `LossScaleOptimizer`."""
    model = trained(2, keras.optimizers.LossScaleOptimizer(with_mean(), initial_scale=2.0))
    with ema_weights(model):
        assert weight_of(model) == pytest.approx(0.25)  # 0.5; (0.5 + 0) / 2
    assert weight_of(model) == pytest.approx(0.0)


@pytest.mark.parametrize("options", [{}, {"use_ema": True}])
def test_weights_do_not_change_without_a_running_mean_or_before_an_update(options):
    model = trained(0, keras.optimizers.SGD(0.5, **options))
    with ema_weights(model):
        assert weight_of(model) == 1.0


def test_the_weights_are_restored_after_an_interruption():
    model = trained(3, with_mean())
    with pytest.raises(KeyboardInterrupt), ema_weights(model):
        raise KeyboardInterrupt
    assert weight_of(model) == pytest.approx(-0.5)
