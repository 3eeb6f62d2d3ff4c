import keras
import numpy as np
import pytest
from layer_checks import numpy

from keras_bahdanau import RNNSearch, RunCheckpoint, average_checkpoints, running_mean

SIZES = {"units": 4, "embedding_dim": 3, "attention_units": 3, "maxout_units": 2}


@keras.saving.register_keras_serializable(package="test_averaging")
class Counting(keras.layers.Layer):
    """Has a weight of each kind."""

    def build(self, input_shape):
        self.scale = self.add_weight(shape=(2,), name="scale")
        self.half = self.add_weight(shape=(2,), name="half", dtype="float16", autocast=False)
        self.count = self.add_weight(
            shape=(), name="count", dtype="int32", initializer="zeros", trainable=False
        )

    def call(self, inputs):
        return inputs * self.scale


def counting(*values):
    model = keras.Sequential([keras.Input((2,)), Counting()])
    model.set_weights([np.asarray(value) for value in values])
    return model


def saved(model, path):
    model.save(path)
    return path


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    """Three files of one model, and the weights in each."""
    folder, rng = tmp_path_factory.mktemp("run"), np.random.default_rng(0)
    model = RNNSearch(7, 8, **SIZES)
    model.build()
    paths, weights = [], []
    for number in range(3):
        model.set_weights([rng.normal(size=w.shape) for w in model.get_weights()])
        weights.append(model.get_weights())
        paths.append(saved(model, folder / f"epoch-{number}.keras"))
    return paths, weights


def test_is_the_mean_of_every_weight(checkpoints, tmp_path):
    paths, weights = checkpoints
    output = tmp_path / "average.keras"
    average_checkpoints(iter(paths), output)
    assert [path.name for path in tmp_path.iterdir()] == ["average.keras"]
    averaged = keras.saving.load_model(output)
    for value, *each in zip(averaged.get_weights(), *weights, strict=True):
        np.testing.assert_allclose(value, np.mean(np.float64(each), axis=0), rtol=1e-6, atol=1e-7)
    batch = {"source": np.array([[5, 6, 3]]), "target": np.array([[2, 7]])}
    assert np.isfinite(numpy(averaged(batch))).all()


def test_of_one_file_is_that_file(checkpoints, tmp_path):
    paths, weights = checkpoints
    average_checkpoints([str(paths[1])], str(tmp_path / "average.keras"))
    averaged = keras.saving.load_model(tmp_path / "average.keras")
    for value, expected in zip(averaged.get_weights(), weights[1], strict=True):
        np.testing.assert_array_equal(value, expected)


def test_sums_in_double_precision_and_counts_of_the_last(tmp_path):
    # 2^24 + 1 is no float32, and 40000 + 40000 no float16.
    values = [
        ([2.0**24, 1.0], [4e4, 1.0], 5),
        ([1.0, 2.0], [4e4, 2.0], 9),
        ([1.0, 3.0], [4e4, 3.0], 8),
    ]
    paths = [saved(counting(*v), tmp_path / f"{k}.keras") for k, v in enumerate(values)]
    average_checkpoints(paths, tmp_path / "average.keras")
    scale, half, count = keras.saving.load_model(tmp_path / "average.keras").get_weights()
    np.testing.assert_array_equal(scale, np.float32([(2**24 + 2) / 3, 2.0]))
    np.testing.assert_array_equal(half, np.float16([4e4, 2.0]))
    assert count == 8


def test_the_output_may_be_one_of_the_files(tmp_path):
    paths = [
        saved(counting([value, 0.0], [0.0, 0.0], 0), tmp_path / f"{value}.keras")
        for value in (1.0, 3.0)
    ]
    average_checkpoints(paths, paths[0])
    scale, *_ = keras.saving.load_model(paths[0]).get_weights()
    np.testing.assert_array_equal(scale, [2.0, 0.0])


def test_a_kill_while_writing_leaves_what_was_there(tmp_path, monkeypatch):
    path = saved(counting([1.0, 2.0], [0.0, 0.0], 3), tmp_path / "a.keras")
    before = path.read_bytes()

    def half(model, path):
        path.write_bytes(b"half a file")
        raise KeyboardInterrupt

    monkeypatch.setattr(keras.Model, "save", half)
    with pytest.raises(KeyboardInterrupt):
        average_checkpoints([path], path)
    assert path.read_bytes() == before


def dense(*widths, **kwargs):
    return keras.Sequential([keras.Input((2,)), *(keras.layers.Dense(n, **kwargs) for n in widths)])


@pytest.mark.parametrize(
    ("other", "difference"),
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
def test_refuses_files_of_different_models(tmp_path, other, difference):
    paths = [saved(dense(3), tmp_path / "a.keras"), saved(other(), tmp_path / "b.keras")]
    with pytest.raises(ValueError, match=f"b.keras differs from .*a.keras: {difference}"):
        average_checkpoints(paths, tmp_path / "average.keras")
    assert not (tmp_path / "average.keras").exists()


def test_refuses_no_files_one_file_and_other_endings(tmp_path):
    for paths in ([], "run/last.keras", tmp_path):
        with pytest.raises(ValueError, match="`paths` must be a list of at least one file"):
            average_checkpoints(paths, tmp_path / "average.keras")
    with pytest.raises(ValueError, match=r"`output` must end with .keras. Received: .*average.h5"):
        average_checkpoints([tmp_path / "a.keras"], tmp_path / "average.h5")


def test_names_a_file_that_is_not_there(checkpoints, tmp_path):
    paths, _ = checkpoints
    with pytest.raises(ValueError, match=r"none\.keras"):
        average_checkpoints([paths[0], tmp_path / "none.keras"], tmp_path / "average.keras")


@keras.saving.register_keras_serializable(package="test_averaging")
def output(_, found):
    return found


def descending(**options):
    """A model of one weight, 1.0, whose gradient is 1: a step of 0.5 takes it down by that."""
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False)])
    model.set_weights([np.ones((1, 1))])
    model.compile(keras.optimizers.SGD(0.5, **options), output)
    return model


def test_the_running_mean_holds_in_the_block_alone(tmp_path):
    model = descending(use_ema=True, ema_momentum=0.5)
    for _ in range(3):
        model.train_on_batch(np.ones((1, 1)), np.ones((1, 1)))
    weight = model.get_weights()[0].item()
    assert weight == pytest.approx(-0.5)  # 1, 0.5, 0, -0.5
    with running_mean(model):
        mean = model.get_weights()[0].item()
    assert model.get_weights()[0].item() == weight
    assert mean == pytest.approx(-0.125)  # 0.5; (0.5 + 0) / 2; (0.25 - 0.5) / 2

    checkpoint = RunCheckpoint(tmp_path, keep=1)
    checkpoint.set_model(model)
    checkpoint.on_epoch_end(0, {"val_bleu": 1.0})
    found = {
        path.name: keras.saving.load_model(path, compile=False).get_weights()[0].item()
        for path in tmp_path.glob("*.keras")
    }
    assert found == {
        "last.keras": weight,
        "best.keras": pytest.approx(mean),
        "epoch-01.keras": pytest.approx(mean),
    }


def test_the_running_mean_under_a_scaled_loss():
    """Under mixed_float16 Keras wraps the optimiser."""
    model = descending()
    inner = keras.optimizers.SGD(0.5, use_ema=True, ema_momentum=0.5)
    model.compile(keras.optimizers.LossScaleOptimizer(inner, initial_scale=2.0), output)
    for _ in range(2):
        model.train_on_batch(np.ones((1, 1)), np.ones((1, 1)))
    with running_mean(model):
        assert model.get_weights()[0].item() == pytest.approx(0.25)  # 0.5; (0.5 + 0) / 2
    assert model.get_weights()[0].item() == pytest.approx(0.0)


@pytest.mark.parametrize("options", [{}, {"use_ema": True}])
def test_without_a_running_mean_or_an_update_nothing_changes(options):
    model = descending(**options)
    with running_mean(model):
        assert model.get_weights()[0].item() == 1.0


def test_the_weights_come_back_after_an_interruption():
    model = descending(use_ema=True, ema_momentum=0.5)
    for _ in range(3):
        model.train_on_batch(np.ones((1, 1)), np.ones((1, 1)))
    with pytest.raises(KeyboardInterrupt), running_mean(model):
        raise KeyboardInterrupt
    assert model.get_weights()[0].item() == pytest.approx(-0.5)
