import csv
import functools
import os

import keras
import numpy as np
import pytest
from copy_task import compile_to_copy

from keras_bahdanau import (
    GreedySearch,
    RNNSearch,
    RunCheckpoint,
    TokenCrossentropy,
    Tokenizer,
    TranslationDataset,
    TranslationScore,
)
from keras_bahdanau.callbacks import AlignmentImages, HeldOutLoss
from keras_bahdanau.training import average_checkpoints
from keras_bahdanau_runtime.text.scores import corpus_scores

TEXTS = ["a b", "b a", "c a b", "b c"]


def dense():
    """A compiled model of one layer with a bias."""
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    model.optimizer.build(model.trainable_variables)
    return model


def checkpoint(folder, **options):
    callback = RunCheckpoint(folder, **options)
    callback.set_model(dense())
    return callback


def finish_epochs(callback, scores, first=0, name="val_bleu"):
    """End epochs with these values in the logs. The model's bias is the number of the epoch."""
    for epoch, score in enumerate(scores, start=first):
        callback.model.layers[0].bias.assign([float(epoch + 1)])
        callback.on_epoch_end(epoch, {"loss": 1.0 / (epoch + 1), name: score})


def column(folder, name):
    """The cells of a column of history.csv."""
    with (folder / "history.csv").open(newline="", encoding="utf-8") as file:
        return [row[name] for row in csv.DictReader(file)]


def history(folder):
    epochs, scores = column(folder, "epoch"), column(folder, "val_bleu")
    return list(zip(map(int, epochs), map(float, scores), strict=True))


def epoch_of(path):
    """The epoch that a saved model was saved in, which is its bias."""
    model = keras.saving.load_model(path)
    return int(keras.ops.convert_to_numpy(model.layers[0].bias)[0])


def test_the_last_and_the_best_epoch_and_the_history_are_saved(tmp_path):
    callback = checkpoint(tmp_path)
    assert callback.best is None
    finish_epochs(callback, [3.0, 8.0, 8.0, 5.0])
    assert {path.name for path in tmp_path.iterdir()} == {"last.keras", "best.keras", "history.csv"}
    assert history(tmp_path) == [(1, 3.0), (2, 8.0), (3, 8.0), (4, 5.0)]
    assert epoch_of(tmp_path / "last.keras") == 4
    # The later of two equal epochs is the best.
    assert epoch_of(tmp_path / "best.keras") == 3
    assert float(callback.best["val_bleu"]) == 8.0 and int(callback.best["epoch"]) == 3


def test_a_resumed_run_in_a_new_folder_keeps_the_rows_of_epochs_done_there(tmp_path):
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
    assert epoch_of(tmp_path / "last.keras") == done + 1
    # 6.0 is the best epoch once the epoch with 8.0 is dropped.
    assert epoch_of(tmp_path / "best.keras") == (2 if 8.0 in scores else done + 1)


def test_an_interrupted_save_leaves_the_old_files(tmp_path, monkeypatch):
    callback = checkpoint(tmp_path)
    finish_epochs(callback, [3.0])
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def interrupted_save(path):
        path.write_bytes(b"half a file")
        raise KeyboardInterrupt

    monkeypatch.setattr(callback.model, "save", interrupted_save)
    with pytest.raises(KeyboardInterrupt):
        finish_epochs(callback, [9.0], first=1)
    assert {name: (tmp_path / name).read_bytes() for name in before} == before


def test_a_run_interrupted_between_two_files_can_be_resumed(tmp_path, monkeypatch):
    callback = checkpoint(tmp_path)
    finish_epochs(callback, [3.0])
    replace = os.replace

    def interrupted_replace(source, target):
        if target.name == "last.keras":
            raise KeyboardInterrupt
        return replace(source, target)

    monkeypatch.setattr("os.replace", interrupted_replace)
    with pytest.raises(KeyboardInterrupt):
        finish_epochs(callback, [9.0], first=1)
    monkeypatch.undo()
    assert epoch_of(tmp_path / "last.keras") == 1
    finish_epochs(checkpoint(tmp_path, epochs_done=1), [2.0], first=1)
    assert history(tmp_path) == [(1, 3.0), (2, 2.0)]
    assert epoch_of(tmp_path / "last.keras") == 2


def test_the_history_has_columns_for_updates_and_for_values_that_appear_later(tmp_path):
    callback = checkpoint(tmp_path, monitor="accuracy")
    for epoch, logs in enumerate([{"accuracy": 0.5}, {"accuracy": 0.6, "val_loss": 2.0}]):
        callback.model.optimizer.iterations.assign(5 * (epoch + 1))
        callback.on_epoch_end(epoch, logs)
    assert column(tmp_path, "val_loss") == ["", "2.0"]
    assert column(tmp_path, "update") == ["5", "10"]


def test_a_resumed_run_may_monitor_another_value(tmp_path):
    finish_epochs(checkpoint(tmp_path), [3.0, 8.0])
    callback = checkpoint(tmp_path, monitor="accuracy", epochs_done=2)
    assert callback.best is None
    finish_epochs(callback, [0.0, -1.0], first=2, name="accuracy")
    assert int(callback.best["epoch"]) == 3


def test_an_epoch_with_nan_is_never_the_best(tmp_path):
    finish_epochs(checkpoint(tmp_path), [float("nan"), 2.0, float("nan"), 1.0])
    assert epoch_of(tmp_path / "best.keras") == 2


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
def test_the_name_or_the_mode_decides_whether_the_least_or_the_largest_value_is_the_best(
    tmp_path, monitor, mode, best
):
    callback = checkpoint(tmp_path, monitor=monitor, mode=mode)
    finish_epochs(callback, [3.0, 1.0, 2.0, 4.0, 3.5], name=monitor)
    assert epoch_of(tmp_path / "best.keras") == best
    assert int(callback.best["epoch"]) == best


def saved_epochs(folder):
    """The epoch in each file of a single epoch, by file name."""
    return {path.name: epoch_of(path) for path in folder.glob("epoch-*.keras")}


def test_the_last_epochs_are_saved_in_files_of_their_own(tmp_path):
    (tmp_path / "epoch-best.keras").touch()  # not a file of this callback
    callback = checkpoint(tmp_path, keep=2)
    finish_epochs(callback, [3.0])
    (tmp_path / "epoch-best.keras").unlink()
    assert saved_epochs(tmp_path) == {"epoch-01.keras": 1}
    finish_epochs(callback, [8.0, 5.0], first=1)
    assert saved_epochs(tmp_path) == {"epoch-02.keras": 2, "epoch-03.keras": 3}
    assert (epoch_of(tmp_path / "last.keras"), epoch_of(tmp_path / "best.keras")) == (3, 2)
    average_checkpoints(tmp_path.glob("epoch-*.keras"), tmp_path / "average.keras")
    _, mean = keras.saving.load_model(tmp_path / "average.keras").get_weights()
    assert mean == (2 + 3) / 2
    # A run resumed after the first epoch repeats the second and the third.
    finish_epochs(checkpoint(tmp_path, keep=2, epochs_done=1), [4.0], first=1)
    assert saved_epochs(tmp_path) == {"epoch-02.keras": 2}
    finish_epochs(checkpoint(tmp_path, epochs_done=2), [4.0, 4.0], first=2)
    assert saved_epochs(tmp_path) == {"epoch-02.keras": 2}
    assert not list(tmp_path.glob("writing*"))


KEEP = r"`keep` must be an int of at least 0\. Received: "


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"folder": "nowhere"}, r"`folder` must be a folder that exists\. .*nowhere"),
        ({"keep": -1}, KEEP),
        ({"keep": 1.5}, KEEP),
        ({"keep": None}, KEEP),
        ({"monitor": "wer"}, '`mode` must be "max" or "min" where .* Received: monitor=\'wer\''),
        ({"mode": "maximum"}, '`mode` must be "auto", "max" or "min"\\. Received: \'maximum\''),
    ],
    ids=str,
)
def test_invalid_options_of_a_run_checkpoint_are_refused(tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        RunCheckpoint(**{"folder": tmp_path, **options})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(references=["b", "c"]), "`references` must hold one for each of 1 .*Received: 2"),
        (dict(sources=[3]), r"`sources\[0\]` must be a str"),
        (dict(sources=[], references=[]), "`sources` must hold a sentence"),
        (dict(max_length=0), "`max_length` must be an int of at least 1"),
        (dict(batch_size=0), "`batch_size` must be a positive integer"),
        (dict(search="beam"), "`search` must be a search"),
        (dict(tokenize="klingon"), "`tokenize` must be one of"),
    ],
)
def test_invalid_options_of_a_translation_score_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        TranslationScore(**{"sources": ["a"], "references": ["b"], **options})


def test_a_model_without_a_tokenizer_is_refused_before_training(tmp_path):
    for callback in (TranslationScore(["a"], ["b"]), AlignmentImages(tmp_path, ["a"])):
        callback.set_model(small_model())
        with pytest.raises(ValueError, match="needs a model with a tokenizer"):
            callback.on_train_begin()


def test_patience_counts_the_epochs_before_a_resume(tmp_path):
    callback = checkpoint(tmp_path, patience=3)
    finish_epochs(callback, [3.0, 8.0, 5.0, 7.0])
    assert not (callback.exhausted or callback.model.stop_training)
    callback = checkpoint(tmp_path, patience=3, epochs_done=4)
    finish_epochs(callback, [7.5], first=4)
    assert callback.exhausted and callback.model.stop_training
    assert checkpoint(tmp_path, patience=3, epochs_done=5).exhausted
    assert not checkpoint(tmp_path, patience=0, epochs_done=5).exhausted
    # An equal epoch becomes the best one, but patience counts from the earlier one.
    callback = checkpoint(tmp_path, patience=3, epochs_done=4)
    finish_epochs(callback, [8.0], first=4)
    assert callback.exhausted and callback.best["epoch"] == 5


def test_the_held_out_loss_uses_the_running_mean():
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False)])
    model.compile(keras.optimizers.SGD(1.0, use_ema=True, ema_momentum=0.5), "mse")
    kernel = model.layers[0].kernel
    kernel.assign([[2.0]])
    model.optimizer.build([kernel])
    model.optimizer.iterations.assign(1)  # the mean is not used before the first update
    kernel.assign([[6.0]])
    [mean] = [v for v in model.optimizer.variables if v.name.endswith("_average")]
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


def test_the_held_out_loss_is_the_mean_over_tokens():
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


def test_the_held_out_loss_needs_one_step_per_execution():
    model = dense()
    model.steps_per_execution = 2  # torch refuses it in `compile`
    callback = HeldOutLoss(TranslationDataset([[5, 3]], [[5, 3]]))
    callback.set_model(model)
    for evaluate in (callback.on_train_begin, lambda: callback.score(model)):
        with pytest.raises(ValueError, match=r"`steps_per_execution` .* must be 1 .*Received: 2"):
            evaluate()


def test_a_diverged_training_is_named_when_it_is_validated():
    callback = TranslationScore(["a"], ["a"], tokenizer())
    callback.set_model(small_model())
    callback.model.build()
    [*_, weight] = callback.model.trainable_variables
    weight.assign(keras.ops.full(weight.shape, np.nan))
    with pytest.raises(
        ValueError, match=r"has diverged\. Choose a smaller .* Received: NaN in the"
    ):
        callback.on_epoch_end(0, {})


SCORES = {"val_bleu": [3.0, 8.0, 5.0, 7.0, 9.0], "val_chrf": [30.0, 40.0, 60.0, 50.0, 50.0]}


@pytest.mark.parametrize(("monitor", "best", "last"), [("val_bleu", 2, 4), ("val_chrf", 3, 5)])
def test_early_stopping_and_model_checkpoint_can_monitor_the_scores(
    tmp_path, monkeypatch, monitor, best, last
):
    scores = iter([{"bleu": b, "chrf": c} for b, c in zip(*SCORES.values(), strict=True)])
    monkeypatch.setattr(
        "keras_bahdanau.callbacks.evaluation.corpus_scores", lambda *_: next(scores)
    )
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
    for name, values in SCORES.items():
        assert logs[name] == values[:last]
    assert not np.array_equal(weights[best - 1][0], weights[best][0])
    for restored in (model, keras.saving.load_model(file)):
        for value, expected in zip(restored.get_weights(), weights[best - 1], strict=True):
            np.testing.assert_array_equal(value, expected)


@functools.cache
def tokenizer():
    return Tokenizer.train(TEXTS, TEXTS, vocabulary_size=270)


def small_model(**arguments):
    size = tokenizer().source_vocabulary_size
    sizes = dict(units=6, embedding_dim=5, attention_units=4, maxout_units=3)
    return RNNSearch(size, size, **sizes, **arguments)


def test_a_translation_score_attaches_its_tokenizer_to_the_model():
    model = small_model()
    TranslationScore(["a"], ["b"], tokenizer()).set_model(model)
    assert model.tokenizer is tokenizer()
    TranslationScore(["a"], ["b"]).set_model(model)
    assert model.tokenizer is tokenizer()


def test_fit_computes_scores_and_can_be_resumed_from_the_last_checkpoint(tmp_path):
    ids = [tokenizer().encode_source(text) for text in TEXTS]
    data = TranslationDataset(ids, ids, batch_size=4)
    model = compile_to_copy(small_model(tokenizer=tokenizer()))
    score = TranslationScore(TEXTS, TEXTS, max_length=4, batch_size=4, tokenize="char")
    logs = model.fit(
        data, epochs=2, shuffle=False, verbose=0, callbacks=[score, RunCheckpoint(tmp_path)]
    ).history
    translations = model.translate(TEXTS, GreedySearch(), max_length=4)
    expected = corpus_scores([translation.text for translation in translations], TEXTS, "char")
    assert (logs["val_bleu"][-1], logs["val_chrf"][-1]) == (expected["bleu"], expected["chrf"])
    assert history(tmp_path) == list(enumerate(logs["val_bleu"], start=1))

    loaded = keras.saving.load_model(tmp_path / "last.keras")
    assert loaded.tokenizer == tokenizer()
    done = int(loaded.optimizer.iterations) // len(data)
    assert done == 2
    for old, new in zip(model.get_weights(), loaded.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)
    resumed = RunCheckpoint(tmp_path, monitor="loss", epochs_done=done)
    options = dict(epochs=3, initial_epoch=done, shuffle=False, verbose=0)
    loaded.fit(data, callbacks=[resumed], **options)
    assert column(tmp_path, "epoch") == ["1", "2", "3"]
    losses = [float(loss) for loss in column(tmp_path, "loss")]
    assert losses[2] < losses[0]
