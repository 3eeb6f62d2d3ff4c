import csv
import functools
import os

import keras
import numpy as np
import pytest
from copy_task import compile_to_copy

from keras_bahdanau import (
    AlignmentImages,
    GreedySearch,
    HeldOutLoss,
    RNNSearch,
    RunCheckpoint,
    TokenCrossentropy,
    Tokenizer,
    TranslationDataset,
    TranslationScore,
    average_checkpoints,
)
from keras_bahdanau_runtime.text.scores import corpus_scores

TEXTS = ["a b", "b a", "c a b", "b c"]


def dense():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    model.optimizer.build(model.trainable_variables)
    return model


def checkpoint(folder, model=None, **kwargs):
    callback = RunCheckpoint(folder, **kwargs)
    callback.set_model(dense() if model is None else model)
    return callback


def finish_epochs(callback, scores, first=0):
    """Epochs end with these values of `val_bleu`; the model's bias counts them from 1."""
    for epoch, score in enumerate(scores, start=first):
        callback.model.layers[0].bias.assign([float(epoch + 1)])
        callback.on_epoch_end(epoch, {"loss": 1.0 / (epoch + 1), "val_bleu": score})


def history(folder):
    with (folder / "history.csv").open(newline="", encoding="utf-8") as file:
        return [(int(row["epoch"]), float(row["val_bleu"])) for row in csv.DictReader(file)]


def bias(path):
    """The bias of a saved model, which is the epoch it is of."""
    model = keras.saving.load_model(path)
    return int(keras.ops.convert_to_numpy(model.layers[0].bias)[0])


def test_keeps_the_last_the_best_and_the_history(tmp_path):
    callback = checkpoint(tmp_path)
    assert callback.best is None
    finish_epochs(callback, [3.0, 8.0, 8.0, 5.0])
    assert {path.name for path in tmp_path.iterdir()} == {"last.keras", "best.keras", "history.csv"}
    assert history(tmp_path) == [(1, 3.0), (2, 8.0), (3, 8.0), (4, 5.0)]
    assert (bias(tmp_path / "last.keras"), bias(tmp_path / "best.keras")) == (4, 3)
    # Of equals the later one, which has seen more.
    assert float(callback.best["val_bleu"]) == 8.0 and int(callback.best["epoch"]) == 3


def test_rows_are_those_of_the_epochs_they_name(tmp_path):
    """A model that was trained before goes on in a new folder, and is interrupted there."""
    finish_epochs(checkpoint(tmp_path), [3.0, 8.0, 5.0], first=5)
    finish_epochs(checkpoint(tmp_path, epochs_done=6), [6.0], first=6)
    assert history(tmp_path) == [(6, 3.0), (7, 6.0)]


@pytest.mark.parametrize("done", [0, 1, 2, 3])
def test_a_resumed_run_drops_the_rows_of_epochs_it_repeats(tmp_path, done):
    finish_epochs(checkpoint(tmp_path), [3.0, 8.0, 5.0])
    callback = checkpoint(tmp_path, epochs_done=done)
    finish_epochs(callback, [6.0], first=done)
    scores = [3.0, 8.0, 5.0][:done]
    assert history(tmp_path) == [*enumerate(scores, start=1), (done + 1, 6.0)]
    assert bias(tmp_path / "last.keras") == done + 1
    # 6.0 is the best of a run that has forgotten its 8.0.
    assert bias(tmp_path / "best.keras") == (2 if 8.0 in scores else done + 1)


def test_a_kill_while_saving_leaves_what_was_there(tmp_path, monkeypatch):
    callback = checkpoint(tmp_path)
    finish_epochs(callback, [3.0])
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def half(path):
        path.write_bytes(b"half a file")
        raise KeyboardInterrupt

    monkeypatch.setattr(callback.model, "save", half)
    with pytest.raises(KeyboardInterrupt):
        finish_epochs(callback, [9.0], first=1)
    assert {name: (tmp_path / name).read_bytes() for name in before} == before


def test_a_kill_between_the_files_leaves_a_run_that_can_go_on(tmp_path, monkeypatch):
    callback = checkpoint(tmp_path)
    finish_epochs(callback, [3.0])

    replace = os.replace

    def stop(source, target):
        if target.name == "last.keras":
            raise KeyboardInterrupt
        return replace(source, target)

    monkeypatch.setattr("os.replace", stop)
    with pytest.raises(KeyboardInterrupt):
        finish_epochs(callback, [9.0], first=1)
    monkeypatch.undo()
    assert bias(tmp_path / "last.keras") == 1
    finish_epochs(checkpoint(tmp_path, epochs_done=1), [2.0], first=1)
    assert history(tmp_path) == [(1, 3.0), (2, 2.0)]
    assert bias(tmp_path / "last.keras") == 2


def test_values_that_appear_later_get_a_column(tmp_path):
    callback = checkpoint(tmp_path, monitor="accuracy")
    callback.on_epoch_end(0, {"accuracy": 0.5})
    callback.on_epoch_end(1, {"accuracy": 0.6, "val_loss": 2.0})
    with (tmp_path / "history.csv").open(newline="", encoding="utf-8") as file:
        assert [row["val_loss"] for row in csv.DictReader(file)] == ["", "2.0"]


def test_goes_on_from_a_run_that_monitored_something_else(tmp_path):
    finish_epochs(checkpoint(tmp_path), [3.0, 8.0])
    callback = checkpoint(tmp_path, monitor="accuracy", epochs_done=2)
    assert callback.best is None
    for epoch, accuracy in [(2, 0.0), (3, -1.0)]:
        callback.on_epoch_end(epoch, {"accuracy": accuracy})
    assert int(callback.best["epoch"]) == 3


def test_a_value_that_is_no_number_is_never_the_best(tmp_path):
    callback = checkpoint(tmp_path)
    finish_epochs(callback, [float("nan"), 2.0, float("nan"), 1.0])
    assert bias(tmp_path / "best.keras") == 2


def test_the_monitored_value_must_be_in_the_logs(tmp_path):
    with pytest.raises(ValueError, match=r"`monitor` must name .* 'val_bleu'; .*'loss'"):
        checkpoint(tmp_path).on_epoch_end(0, {"loss": 1.0})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("monitor", "mode", "best"),
    [
        ("loss", "auto", 2),
        ("val_loss", "auto", 2),
        ("val_perplexity", "auto", 2),
        ("mean_absolute_error", "auto", 2),
        ("val_bleu", "auto", 4),
        ("val_token_accuracy", "auto", 4),
        ("accuracy_loss", "auto", 2),
        ("wer", "min", 2),
        ("wer", "max", 4),
        ("loss", "max", 4),
    ],
)
def test_the_best_of_a_loss_is_its_least(tmp_path, monitor, mode, best):
    callback = checkpoint(tmp_path, monitor=monitor, mode=mode)
    for epoch, value in enumerate([3.0, 1.0, 2.0, 4.0, 3.5]):
        callback.model.layers[0].bias.assign([float(epoch + 1)])
        callback.on_epoch_end(epoch, {monitor: value})
    assert bias(tmp_path / "best.keras") == best
    assert int(callback.best["epoch"]) == best


@pytest.mark.parametrize(
    ("monitor", "mode", "message"),
    [
        ("wer", "auto", r"`mode` must be \"max\" or \"min\" where .* Received: monitor='wer'"),
        (
            "val_bleu",
            "maximum",
            r"`mode` must be \"auto\", \"max\" or \"min\"\. Received: 'maximum'",
        ),
    ],
)
def test_a_direction_that_nobody_knows_is_refused(tmp_path, monitor, mode, message):
    with pytest.raises(ValueError, match=message):
        RunCheckpoint(tmp_path, monitor=monitor, mode=mode)


def epochs_kept(folder):
    """Number in the name and number in the file of each checkpoint of an epoch."""
    return {path.name: bias(path) for path in folder.glob("epoch-*.keras")}


def test_keeps_the_last_epochs(tmp_path):
    (tmp_path / "epoch-best.keras").touch()  # not its own
    callback = checkpoint(tmp_path, keep=2)
    finish_epochs(callback, [3.0])
    (tmp_path / "epoch-best.keras").unlink()
    assert epochs_kept(tmp_path) == {"epoch-01.keras": 1}
    finish_epochs(callback, [8.0, 5.0], first=1)
    assert epochs_kept(tmp_path) == {"epoch-02.keras": 2, "epoch-03.keras": 3}
    assert (bias(tmp_path / "last.keras"), bias(tmp_path / "best.keras")) == (3, 2)
    average_checkpoints(tmp_path.glob("epoch-*.keras"), tmp_path / "average.keras")
    _, mean = keras.saving.load_model(tmp_path / "average.keras").get_weights()
    assert mean == (2 + 3) / 2
    # A run that goes on after the first epoch repeats the second and the third.
    finish_epochs(checkpoint(tmp_path, keep=2, epochs_done=1), [4.0], first=1)
    assert epochs_kept(tmp_path) == {"epoch-02.keras": 2}
    finish_epochs(checkpoint(tmp_path, epochs_done=2), [4.0, 4.0], first=2)
    assert epochs_kept(tmp_path) == {"epoch-02.keras": 2}
    assert not list(tmp_path.glob("writing*"))


def test_refuses_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(ValueError, match=r"`folder` must be a folder that exists\. .*nowhere"):
        RunCheckpoint(tmp_path / "nowhere")


def test_refuses_references_that_are_not_one_for_each_source():
    with pytest.raises(ValueError, match=r"`references` must hold one for each of 1 .*Received: 2"):
        TranslationScore(["a man"], ["ein Mann", "x"])
    with pytest.raises(ValueError, match=r"`sources\[0\]` must be a str"):
        TranslationScore([3], ["ein Mann"])


@pytest.mark.parametrize(
    "wrong, message",
    [
        (dict(sources=[], references=[]), "`sources` must hold a sentence"),
        (dict(max_length=0), "`max_length` must be a positive integer"),
        (dict(batch_size=0), "`batch_size` must be a positive integer"),
        (dict(search="beam"), "`search` must be a search"),
        (dict(tokenize="klingon"), "`tokenize` must be one of"),
    ],
)
def test_what_an_epoch_would_be_lost_for_is_refused_before(wrong, message):
    with pytest.raises(ValueError, match=message):
        TranslationScore(**{"sources": ["a"], "references": ["b"], **wrong})


@pytest.mark.parametrize("make", [lambda folder: TranslationScore(["a"], ["b"]),
                                  lambda folder: AlignmentImages(folder, ["a"])])  # fmt: skip
def test_a_model_without_a_tokenizer_is_refused_before_it_is_trained(tmp_path, make):
    callback = make(tmp_path)
    callback.set_model(small_model())
    with pytest.raises(ValueError, match="needs a model with a tokenizer"):
        callback.on_train_begin()


@pytest.mark.parametrize("keep", [-1, 1.5, None])
def test_refuses_to_keep_no_number_of_epochs(tmp_path, keep):
    with pytest.raises(ValueError, match=r"`keep` must be an int of at least 0\. Received: "):
        RunCheckpoint(tmp_path, keep=keep)


def test_patience_counts_the_epochs_of_an_earlier_process_too(tmp_path):
    callback = checkpoint(tmp_path, patience=3)
    finish_epochs(callback, [3.0, 8.0, 5.0, 7.0])
    assert not (callback.exhausted or callback.model.stop_training)
    callback = checkpoint(tmp_path, patience=3, epochs_done=4)
    finish_epochs(callback, [7.5], first=4)
    assert callback.exhausted and callback.model.stop_training
    assert checkpoint(tmp_path, patience=3, epochs_done=5).exhausted
    assert not checkpoint(tmp_path, patience=0, epochs_done=5).exhausted
    # Of equals the later one is kept, but it is no better.
    callback = checkpoint(tmp_path, patience=3, epochs_done=4)
    finish_epochs(callback, [8.0], first=4)
    assert callback.exhausted and callback.best["epoch"] == 5


def test_the_update_of_each_epoch_stands_in_the_history(tmp_path):
    callback = checkpoint(tmp_path)
    for updates in (5, 10):
        callback.model.optimizer.iterations.assign(updates)
        finish_epochs(callback, [1.0], first=updates // 5 - 1)
    with (tmp_path / "history.csv").open(newline="", encoding="utf-8") as file:
        assert [row["update"] for row in csv.DictReader(file)] == ["5", "10"]


def test_the_loss_on_held_out_pairs_is_that_of_the_running_mean():
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False)])
    model.compile(keras.optimizers.SGD(1.0, use_ema=True, ema_momentum=0.5), "mse")
    kernel = model.layers[0].kernel
    kernel.assign([[2.0]])
    model.optimizer.build([kernel])
    model.optimizer.iterations.assign(1)  # before an update there is no mean
    kernel.assign([[6.0]])
    [mean] = [each for each in model.optimizer.variables if each.name.endswith("_average")]
    mean.assign([[4.0]])

    class Ones(keras.utils.PyDataset):
        def __len__(self):
            return 1

        def __getitem__(self, index):
            return np.ones((1, 1)), np.ones((1, 1))

    callback, logs = HeldOutLoss(Ones()), {"loss": 0.0}
    callback.set_model(model)
    callback.on_epoch_end(0, logs)
    assert logs == {"loss": 0.0, "val_loss": (4.0 - 1.0) ** 2}
    assert float(keras.ops.convert_to_numpy(kernel)[0, 0]) == 6.0


def test_the_loss_on_held_out_pairs_is_the_mean_over_their_tokens():
    texts = ["a", "b a c a b c", "c a b", "b c", "a b c a"]
    ids = [tokenizer().encode_source(text) for text in texts]
    model = small_model()
    model.compile("sgd", TokenCrossentropy())
    losses = []
    for source, target in zip(ids, ids, strict=True):
        logits = model({"source": np.array([source]), "target": np.array([[2, *target[:-1]]])})
        logits = keras.ops.convert_to_numpy(logits)[0].astype("float64")
        sums = np.log(np.exp(logits).sum(axis=-1))
        losses += list(sums - logits[np.arange(len(target)), target])
    for batch_size in (1, 2, 4, 5):
        pairs = TranslationDataset(ids, ids, batch_size=batch_size, shuffle=False)
        assert HeldOutLoss(pairs).score(model)["loss"] == pytest.approx(np.mean(losses), rel=1e-5)
    with pytest.raises(ValueError, match="`dataset` must be a TranslationDataset"):
        HeldOutLoss((ids, ids))


def test_the_loss_on_held_out_pairs_needs_that_of_each_batch():
    model = dense()
    model.steps_per_execution = 2  # which torch refuses in `compile`
    callback = HeldOutLoss(TranslationDataset([[5, 3]], [[5, 3]]))
    callback.set_model(model)
    for evaluate in (callback.on_train_begin, lambda: callback.score(model)):
        with pytest.raises(ValueError, match=r"`steps_per_execution` .* must be 1 .*Received: 2"):
            evaluate()


SCORES = {"val_bleu": [3.0, 8.0, 5.0, 7.0, 9.0], "val_chrf": [30.0, 40.0, 60.0, 50.0, 50.0]}


@pytest.mark.parametrize(("monitor", "best", "last"), [("val_bleu", 2, 4), ("val_chrf", 3, 5)])
def test_early_stopping_and_model_checkpoint_read_the_scores(
    tmp_path, monkeypatch, monitor, best, last
):
    scores = iter([{"bleu": b, "chrf": c} for b, c in zip(*SCORES.values(), strict=True)])
    monkeypatch.setattr("keras_bahdanau.training.callbacks.corpus_scores", lambda *_: next(scores))
    weights = []
    model = dense()
    model.translate = lambda *_, **__: []
    file = tmp_path / "best.keras"
    logs = model.fit(
        np.ones((4, 2)),
        np.ones((4, 1)),
        epochs=9,
        verbose=0,
        callbacks=[
            TranslationScore(["a"], ["a"], tokenizer()),
            keras.callbacks.EarlyStopping(
                monitor=monitor, mode="max", patience=2, restore_best_weights=True
            ),
            keras.callbacks.ModelCheckpoint(file, monitor=monitor, mode="max", save_best_only=True),
            keras.callbacks.LambdaCallback(
                on_epoch_end=lambda *_: weights.append(model.get_weights())
            ),
        ],
    ).history
    assert {name: logs[name] for name in SCORES} == {
        name: values[:last] for name, values in SCORES.items()
    }
    assert not np.array_equal(weights[best - 1][0], weights[best][0])
    for found in (model.get_weights(), keras.saving.load_model(file).get_weights()):
        for value, expected in zip(found, weights[best - 1], strict=True):
            np.testing.assert_array_equal(value, expected)


@functools.cache
def tokenizer():
    return Tokenizer.train(TEXTS, TEXTS, vocabulary_size=270)


def small_model(**arguments):
    size = tokenizer().source_vocabulary_size
    sizes = dict(units=6, embedding_dim=5, attention_units=4, maxout_units=3)
    return RNNSearch(size, size, **sizes, **arguments)


def test_a_score_gives_its_tokenizer_to_the_model():
    model = small_model()
    TranslationScore(["a"], ["b"], tokenizer()).set_model(model)
    assert model.tokenizer is tokenizer()
    TranslationScore(["a"], ["b"]).set_model(model)
    assert model.tokenizer is tokenizer()


def test_a_run_in_fit_scores_keeps_and_resumes(tmp_path):
    ids = [tokenizer().encode_source(text) for text in TEXTS]
    data = TranslationDataset(ids, ids, batch_size=4)
    model = compile_to_copy(small_model(tokenizer=tokenizer()))
    score = TranslationScore(TEXTS, TEXTS, max_length=4, batch_size=4, tokenize="char")
    logs = model.fit(
        data, epochs=2, shuffle=False, verbose=0, callbacks=[score, RunCheckpoint(tmp_path)]
    ).history
    found = model.translate(TEXTS, GreedySearch(), max_length=4)
    expected = corpus_scores([translation.text for translation in found], TEXTS, "char")
    assert (logs["val_bleu"][-1], logs["val_chrf"][-1]) == (expected["bleu"], expected["chrf"])
    assert history(tmp_path) == list(enumerate(logs["val_bleu"], start=1))

    again = keras.saving.load_model(tmp_path / "last.keras")
    assert again.tokenizer == tokenizer()
    done = int(again.optimizer.iterations) // len(data)
    assert done == 2
    for old, new in zip(model.get_weights(), again.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)
    again.fit(
        data,
        epochs=3,
        initial_epoch=done,
        shuffle=False,
        verbose=0,
        callbacks=[RunCheckpoint(tmp_path, monitor="loss", epochs_done=done)],
    )
    with (tmp_path / "history.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["epoch"]) for row in rows] == [1, 2, 3]
    assert float(rows[2]["loss"]) < float(rows[0]["loss"])
