"""Options of a run, option files, and runs from Python."""

import csv
import dataclasses
import io
import itertools
import json
import os
import re
import resource
import shutil
import sys
import types

import keras
import numpy as np
import pytest
from rich.console import Console

from keras_bahdanau import BeamSearch, Tokenizer, TrainingOptions, TranslationDataset, train
from keras_bahdanau.callbacks import ResumableEpochs
from keras_bahdanau.layers.dtype_policies import replace_policies
from keras_bahdanau.training.precision import resolve_dtype_policy
from keras_bahdanau.training.run import _compiled_shapes, _evaluators, build, load_best
from keras_bahdanau_runtime.files import try_lock
from keras_bahdanau_runtime.option_files import read_options

PAIRS = [(f"say {word} {n}", f"{n} {word[::-1]}") for word in ("abc", "bcd") for n in range(9)]
# torch compiles nothing, so the model may be larger.
MODEL = (
    {"encoder_layers": 2, "encoder_dropout": 0.1, "loss_chunk_size": 20, "sampled_softmax": 40}
    if keras.config.backend() == "torch"
    else {"conditional": False, "join_embeddings": False, "sampled_softmax": 40}
)
# Options that the pairs would choose.
EXPLICIT = {
    **{"tokenizer": "bpe", "joint": True, "normalization": "none", "best_by": "bleu"},
    **{"dropout": 0.2, "annotation_dropout": 0.3, "label_smoothing": 0.1},
    **{"learning_rate": 4e-3, "patience": 0, "copy": False},
}
# The end of the line about a run, on each backend.
COMPILES = {
    "torch": r"torch\.",
    "tensorflow": r"tensorflow\. Tracing at the first batch\.",
    "jax": r"jax\. Compiling at the first batch of each shape\.",
}
LENGTH = {"max_length": 20}
TRAINING = {"learning_rate": 1e-3, "ema": 0.0, "label_smoothing": 0.1}
TEXTS = {
    "source": "a.src",
    "target": "a.tgt",
    "validation_source": "b.src",
    "validation_target": "b.tgt",
}


def options(**values):
    return TrainingOptions(**{**TEXTS, **values})


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run from Python: options, best.keras, console output, and the logs of a callback."""
    folder = tmp_path_factory.mktemp("run")
    texts = {name: folder / f"{name}.txt" for name in TEXTS}
    for name, path in texts.items():
        pairs = PAIRS[:3] if name.startswith("validation") else PAIRS
        side = 0 if name.endswith("source") else 1
        path.write_text("".join(f"{pair[side]}\n" for pair in pairs), encoding="utf-8")
    chosen = TrainingOptions(
        **texts, vocabulary_size=270, units=5, embedding_dim=4, attention_units=3,
        epochs=2, max_length=16, readout_dropout=0.5, bpe_dropout=0.1, ema=0.5, average=1,
        accumulate=2, batch_size=3, every=2, log_dir=folder / "logs", **EXPLICIT, **MODEL,
    )  # fmt: skip
    output, epoch_logs = io.StringIO(), []
    best = train(
        chosen,
        folder / "run",
        callbacks=[
            keras.callbacks.LambdaCallback(on_epoch_end=lambda _, logs: epoch_logs.append(logs))
        ],
        console=Console(file=output, width=200),
    )
    return chosen, best, output.getvalue(), epoch_logs


def test_the_optimizer_has_the_schedule_and_running_mean_of_the_options(finished):
    _, best, *_ = finished
    optimizer = keras.saving.load_model(best.parent / "last.keras").optimizer
    # The mean moves at every batch, so the two batches of an update together give `ema`.
    assert optimizer.ema_momentum**optimizer.gradient_accumulation_steps == pytest.approx(0.5)
    schedule = optimizer.get_config()["learning_rate"]["config"]
    # The default warm-up is half a pass, which is one of its three updates.
    expected = {"shape": "cosine", "updates": 6, "warmup": 1, "batches": 2}
    assert schedule.items() >= expected.items()


@pytest.mark.skipif(keras.config.backend() != "tensorflow", reason="Others take any shape.")
def test_one_batch_between_validations_is_refused_for_several_shapes(finished, tmp_path):
    chosen, *_ = finished
    lone = dataclasses.replace(chosen, accumulate=1, batch_size=18, every=None, log_dir=None)
    with pytest.raises(ValueError, match=r"`every` must be at least 2 on TensorFlow .* smaller"):
        train(lone, tmp_path / "run", verbose=False)


def test_a_run_leaves_its_models_options_history_and_logs(finished):
    chosen, best, output, epoch_logs = finished
    assert sorted(path.name for path in best.parent.iterdir()) == [
        "average.keras", "best.keras", "corpus", "epoch-03.keras", "history.csv", "last.keras",
        "options.json", "texts.json",
    ]  # fmt: skip
    recorded = TrainingOptions.from_file(best.parent / "options.json")
    assert recorded == dataclasses.replace(chosen, dtype_policy=resolve_dtype_policy("auto"))
    # 18 pairs are 6 batches of 3, so 3 updates of 2 batches. Two passes are 6 updates.
    assert [row["update"] for row in history(best.parent)] == ["2", "4", "6"]
    assert all({"loss", "val_bleu", "val_chrf"} <= set(logs) for logs in epoch_logs)
    start, first, *lines = output.splitlines()
    assert re.fullmatch(
        r"18 pairs, \d+ target tokens, 6 batches per pass in \d+ shapes; 6 updates, a checkpoint "
        r"every 2; [\d,]+ weights on " + COMPILES[keras.config.backend()],
        start,
    ), start
    assert re.fullmatch(r"in epoch 1/3: batch 1 of 4  loss \d\.\d{3}", first)
    assert lines[0].startswith("epoch 1/3  update 2  ")
    assert len(lines) == len(epoch_logs) == 3
    assert len(list(chosen.log_dir.iterdir())) == 1
    model = keras.saving.load_model(best)
    assert isinstance(model.translate(["say abc 1"])[0].text, str)
    assert model.encoder.dropout == chosen.encoder_dropout


def test_a_run_that_is_judged_by_exact_matches_shows_them(finished, tmp_path):
    chosen, *_ = finished
    judged = dataclasses.replace(
        chosen, best_by="exact", epochs=1, every=None, average=0, log_dir=None
    )
    output = io.StringIO()
    train(judged, tmp_path / "run", console=Console(file=output))
    assert re.search(r"  exact 0\.0  symbol errors \d+\.\d  \d+ s$", output.getvalue().rstrip())
    assert "BLEU" not in output.getvalue()


def test_an_interrupted_run_restores_standard_output(finished, tmp_path):
    chosen, *_ = finished
    before = sys.stdout

    def interrupt(epoch, logs):
        assert sys.stdout is not before  # the progress bar replaces it
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(
            dataclasses.replace(chosen, log_dir=None),
            tmp_path / "run",
            callbacks=[keras.callbacks.LambdaCallback(on_epoch_end=interrupt)],
            console=Console(file=io.StringIO(), force_terminal=True),
        )
    assert sys.stdout is before


def history(run):
    with (run / "history.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def weights(path):
    model = keras.saving.load_model(path)
    optimizer = getattr(model, "optimizer", None)  # averaged models have none
    variables = [*model.weights, *(optimizer.variables if optimizer else [])]
    return [keras.ops.convert_to_numpy(variable) for variable in variables]


def test_an_interrupted_run_ends_with_the_weights_of_an_unbroken_one(finished, tmp_path):
    chosen, best, *_ = finished

    def interrupt(epoch, logs):
        if epoch == 1:
            raise KeyboardInterrupt

    stop = keras.callbacks.LambdaCallback(on_epoch_end=interrupt)
    with pytest.raises(KeyboardInterrupt):
        train(chosen, tmp_path / "run", callbacks=[stop], verbose=False)
    assert len(history(tmp_path / "run")) == 1
    keras.utils.set_random_seed(5)  # a new process has another random state
    train(chosen, tmp_path / "run", resume=True, verbose=False)
    # torch's kernels may sum in another order.
    tolerance = {"rtol": 1e-4, "atol": 1e-6} if keras.config.backend() == "torch" else {"rtol": 0}
    for name in ("last.keras", "best.keras", "average.keras"):
        resumed, expected = weights(tmp_path / "run" / name), weights(best.parent / name)
        for weight, other in zip(resumed, expected, strict=True):
            np.testing.assert_allclose(weight, other, **tolerance)


@pytest.mark.parametrize(("option", "value"), [("seed", 8), ("rank", 1), ("epoch", 1)])
def test_each_epoch_seed_and_process_has_its_own_random_draws(option, value):
    model = keras.Sequential([keras.Input((9,)), keras.layers.Dropout(0.5)])
    data = TranslationDataset([[4, 3]], [[5, 3]])

    def draws(seed=7, rank=0, epoch=0):
        callback = ResumableEpochs(data, seed, rank)
        callback.set_model(model)
        callback.on_epoch_begin(epoch)
        masks = [keras.ops.convert_to_numpy(model(np.ones((9, 9)), training=True)) for _ in "ab"]
        return np.array([*masks, np.random.uniform(size=(9, 9))])

    repeated, changed = draws(), draws(**{option: value})
    np.testing.assert_array_equal(draws(), repeated)
    assert all((new != old).any() for new, old in zip(changed, repeated, strict=True))


def test_resuming_a_finished_run_says_so_and_changes_nothing(finished, capfd, caplog):
    chosen, best, *_ = finished
    before = best.read_bytes()
    assert train(chosen, best.parent, resume=True, verbose=False) == best
    assert best.read_bytes() == before
    assert capfd.readouterr().err == ""
    assert f"The run in {best.parent} is finished at update " in caplog.text


def test_the_folder_of_another_run_is_refused(finished, tmp_path):
    chosen, best, *_ = finished
    with pytest.raises(ValueError, match=r"`output` must be a new folder, or `resume`"):
        train(chosen, best.parent)
    other = dataclasses.replace(chosen, units=6)
    with pytest.raises(ValueError, match=r"`options` must be those of .*`units` was 5, is 6"):
        train(other, best.parent, resume=True)
    values = chosen.to_dict()
    values["width"] = values.pop("units")
    (tmp_path / "options.json").write_text(json.dumps(values))
    with pytest.raises(ValueError, match=r"`output` must be .* of this version.*`width`"):
        train(chosen, tmp_path, resume=True)


def as_earlier_version(path):
    """Give the model in a file, with its optimizer, the policy of its training steps."""
    model = keras.saving.load_model(path)
    model.training_dtype_policy = "float32"
    replace_policies(model, "mixed_bfloat16")
    model.save(path)


def test_a_run_that_was_saved_in_bfloat16_answers_in_float32(copied):
    _, folder = copied
    plain = load_best(folder)
    as_earlier_version(folder / "best.keras")
    assert keras.saving.load_model(folder / "best.keras").compute_dtype == "bfloat16"
    batch = {"source": np.array([[5, 6, 3]]), "target": np.array([[2, 7, 8]])}
    loaded = load_best(folder)
    logits = [keras.ops.convert_to_numpy(model(batch)) for model in (plain, loaded)]
    np.testing.assert_array_equal(*logits)
    assert load_best(folder, dtype_policy="mixed_bfloat16").decoder.cell.compute_dtype == "bfloat16"
    for name in ("auto", "int8", None):
        with pytest.raises(ValueError, match="Argument `dtype_policy` must be one of"):
            load_best(folder, dtype_policy=name)


def test_a_run_that_was_saved_in_bfloat16_is_resumed_in_bfloat16_and_saved_in_float32(
    finished, tmp_path
):
    chosen = dataclasses.replace(
        finished[0], dtype_policy="mixed_bfloat16", log_dir=None, average=0, best_by="loss"
    )

    def interrupt(epoch, logs):
        if epoch == 1:
            raise KeyboardInterrupt

    stop = keras.callbacks.LambdaCallback(on_epoch_end=interrupt)
    with pytest.raises(KeyboardInterrupt):
        train(chosen, tmp_path / "run", callbacks=[stop], verbose=False)
    as_earlier_version(tmp_path / "run" / "last.keras")
    # The run keeps its policy, even if "auto" is another one on this machine.
    chosen = dataclasses.replace(chosen, dtype_policy="auto")
    train(chosen, tmp_path / "run", resume=True, verbose=False)
    model = keras.saving.load_model(tmp_path / "run" / "last.keras")
    assert (model.compute_dtype, model.training_dtype_policy) == ("float32", "mixed_bfloat16")
    assert int(model.optimizer.iterations) == 6


def test_a_full_folder_of_temporary_files_is_named(finished, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))  # a real write error of the system
    try:
        with pytest.raises(OSError, match=re.escape(str(tmp_path))):
            load_best(finished[1].parent)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_run_without_a_tokenizer_is_refused(finished, tmp_path):
    chosen, best, *_ = finished
    with pytest.raises(ValueError, match=r"`run` must be the folder of a training run.*no best"):
        load_best(tmp_path)
    (tmp_path / "options.json").write_text(json.dumps(chosen.to_dict()))
    for name in ("best.keras", "last.keras"):
        model = keras.saving.load_model(best.parent / name)
        model.tokenizer = None
        model.save(tmp_path / name)
    with pytest.raises(ValueError, match=r"`run` must .*whose best\.keras holds no tokenizer"):
        load_best(tmp_path)
    with pytest.raises(ValueError, match=r"`run` must .*whose last\.keras holds no tokenizer"):
        train(chosen, tmp_path, resume=True)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("source", 3, "must be a path. Received: 3"),
        ("model", "transformer", "must be one of 'rnnsearch', 'rnnencdec'. Received: 'transformer"),
        ("vocabulary_size", 259, "must be an int of at least 260 and at most 1048576. "),
        ("vocabulary_size", 10**9, "must be an int of at least 260 and at most 1048576. "),
        ("joint", "yes", "must be true or false. Received: 'yes'"),
        ("tie_embeddings", 1, "must be true or false. Received: 1"),
        ("units", 0, "must be an int of at least 1. Received: 0"),
        ("loss_chunk_size", 0, "must be an int of at least 1. Received: 0"),
        ("sampled_softmax", 1.5, "must be an int of at least 1. Received: 1.5"),
        ("units", "256", "must be an int of at least 1. Received: '256'"),
        ("epochs", True, "must be an int of at least 1. Received: True"),
        ("every", 0, "must be an int of at least 1. Received: 0"),
        ("updates", 2.0, "must be an int of at least 1. Received: 2.0"),
        ("dropout", 1.0, "must be a number of at least 0 and below 1. Received: 1.0"),
        ("label_smoothing", -0.1, "must be a number of at least 0 and below 1. Received: -0.1"),
        ("learning_rate", 0, "must be a number above 0. Received: 0"),
        ("learning_rate", float("nan"), "must be a number above 0. Received: nan"),
        ("clip_norm", float("inf"), "must be a finite number above 0. Received: inf"),
        ("warmup", -1, "must be an int of at least 0. Received: -1"),
        (
            "dtype_policy",
            "float16",
            "must be one of 'auto', 'float32', 'mixed_bfloat16'. Received: 'float16'",
        ),
        ("schedule", "linear", "must be one of 'cosine', 'inverse-sqrt', 'constant'. Received"),
        (
            "best_by",
            "ter",
            "must be one of 'loss', 'bleu', 'chrf', 'exact', 'ser'. Received: 'ter'",
        ),
        ("tokenize", None, "must be a name. Received: None"),
        ("patience", -1, "must be an int of at least 0. Received: -1"),
        ("validation_source", [], "must be a path, or several. Received: []"),
        ("validation_source", ["a", 3], "must be a path, or several. Received: ['a', 3]"),
        ("readout_dropout", "", "must be a number of at least 0 and below 1. Received: ''"),
        ("max_length", 1, "must be an int of at least 2 and at most 1048576. Received: 1"),
        ("seed", 2**31, "must be an int of at least 0 and at most 2147483647."),
    ],
)
def test_options_out_of_range_are_refused(name, value, message):
    with pytest.raises(ValueError) as error:
        options(**{name: value})
    assert str(error.value).startswith(f"Argument `{name}` {message}")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"unit": 3}, r"Argument `unit` must be an option .* Did you mean `units`\? .*unit=3"),
        ({"Batch-Size": 3}, r"`Batch-Size` .* Did you mean `batch_size`\?"),
        ({"xyz": None}, r"`xyz` must be .* The options are \['tokenizer', .*'source', .*'seed'\]"),
        ({7: 1}, r"`7` must be an option"),
    ],
)
def test_an_unknown_option_is_refused_with_the_nearest_name(values, message):
    with pytest.raises(ValueError, match=message):
        TrainingOptions.from_values({**TEXTS, **values})


def test_missing_options_are_listed():
    with pytest.raises(ValueError, match="Argument `source`, `validation_source` must be given"):
        TrainingOptions.from_values({"target": "a", "validation_target": "b"})


def test_files_of_earlier_versions_have_other_option_names(tmp_path):
    current = options(loss_chunk_size=7, dtype_policy="mixed_bfloat16", validation_beam_size=3)
    names = {
        "loss_chunk_size": "loss_chunk",
        "dtype_policy": "precision",
        "validation_beam_size": "validation_beam",
    }
    old = {names.get(name, name): value for name, value in current.to_dict().items()}
    (tmp_path / "options.json").write_text(json.dumps(old))
    assert TrainingOptions.from_file(tmp_path / "options.json") == current


def test_options_that_contradict_each_other_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"`validation_target` must have as many .* 2 and 1"):
        options(validation_source=["a", "b"])
    for updates in (3, 25):
        with pytest.raises(ValueError, match=rf"`updates` must be a multiple of .*={updates}, eve"):
            options(updates=updates, every=10)
    with pytest.raises(ValueError, match=r"`every` must be given with `updates`"):
        options(updates=20)
    for value in ({"vocabulary_size": 900}, {"joint": False}):
        with pytest.raises(ValueError, match="must be left out for a prepared corpus"):
            options(source=tmp_path, target=None, **value)


@pytest.mark.parametrize(
    ("values", "dropouts"),
    [
        ({}, (0.2, 0.3, 0.4)),
        ({"dropout": 0}, (0, 0, 0)),
        ({"dropout": 0.1, "readout_dropout": 0.4}, (0.1, 0.1, 0.4)),
        ({"annotation_dropout": 0.7}, (0.2, 0.7, 0.4)),
    ],
)
def test_dropout_is_the_default_of_the_three_dropout_rates(values, dropouts):
    assert options(**values).dropouts_after() == dropouts


def test_the_loss_is_chunked_by_default_on_a_single_device():
    assert options().chunk_size == 512
    assert options(devices=2).chunk_size is None
    assert options(devices=2, loss_chunk_size=7).chunk_size == 7


def test_yaml_and_json_files_give_the_same_options(tmp_path):
    text = "".join(f"{name}: {value}\n" for name, value in TEXTS.items())
    (tmp_path / "run.yaml").write_text(
        text + "units: 8\nlearning_rate: 3e-3\nwarmup: 2\nclip_norm: 1_0.5\njoint: false\n"
    )
    expected = options(units=9, learning_rate=0.003, warmup=2, clip_norm=10.5, joint=False)
    assert TrainingOptions.from_file(tmp_path / "run.yaml", units=9) == expected
    (tmp_path / "run.json").write_text(json.dumps(expected.to_dict()))
    assert TrainingOptions.from_file(tmp_path / "run.json") == expected


# Ten lists of nine aliases each: 9**9 words.
ALIASES = "a0: &a0 word\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 10)
)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "run.yml",
            "- units\n- 8\n",
            r"must contain .*run\.yml', which contains \['units', 8",
        ),
        ("run.json", "[1]", r"must contain a mapping .* which contains \[1\]"),
        ("run.json", "null", r"must contain a mapping .* which contains None"),
        ("run.yaml", "units: [8", r"must be YAML\. Received: .*run\.yaml.*line 1"),
        ("run.yaml", "units: !!python/name:os.system", r"must be YAML\."),
        ("run.json", "units: 8", r"must be JSON\. Received: .*run\.json.*line 1"),
        ("run.json", b"\xff\xfe\xfa", r"must be JSON\."),
        ("run.yaml", b"a: \xff", r"must be YAML\."),
        ("run.yaml", "units: 8\nepochs: 2\nunits: 9\n", r"must be YAML\..*'units' occurs 2"),
        ("run.json", '{"units": 8, "units": 9}', r"must be JSON\..*'units' occurs 2 times"),
        ("run.yaml", "a: " + "[" * 5000, r"must be YAML\..*in more than 100 lists"),
        ("run.yaml", "a: " + "[" * 150 + "]" * 150, ".*in more than 100 lists and mappings"),
        ("run.json", '{"a":' * 150 + "1" + "}" * 150, ".*in more than 100 lists and mappings"),
        ("run.yaml", ALIASES, ".*aliases that expand it to more than 1048576 characters"),
        ("run.yaml", "a: &a [*a]", ".*an alias of a value that contains it"),
        ("run.yaml", "a: " + "9" * 5000, ".*a number of 5000 characters"),
        ("run.yaml", "a: !!bool x", r"must be YAML\."),
        ("run.yaml", "a: !!timestamp x", r"must be YAML\."),
        ("run.yaml", "a" * 2**20 + ": 1", "must be a file of at most 1048576 bytes"),
        ("run.toml", "units = 8", r"must end with \.json, \.yaml or \.yml\. Received: .*run\.toml"),
    ],
)
def test_files_without_valid_options_are_refused(tmp_path, name, text, message):
    (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ValueError, match="Argument `config` " + message):
        read_options(tmp_path / name)


def test_an_empty_yaml_file_holds_no_options(tmp_path):
    (tmp_path / "run.yaml").write_text("# nothing yet\n")
    assert read_options(tmp_path / "run.yaml") == {}


@pytest.fixture
def copied(finished, tmp_path):
    """Options and folder of a copy of the finished run and its texts, which a test may change."""
    chosen, best, *_ = finished
    shutil.copytree(best.parent, tmp_path / "run")
    texts = {name: tmp_path / f"{name}.txt" for name in TEXTS}
    for path in texts.values():
        shutil.copy(best.parent.parent / path.name, path)
    chosen = dataclasses.replace(chosen, **texts)
    (tmp_path / "run" / "options.json").write_text(json.dumps(chosen.to_dict()))
    return chosen, tmp_path / "run"


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("change", [b"say more 1\n", b""])
def test_a_run_is_not_resumed_with_changed_texts(copied, name, change):
    chosen, folder = copied
    path = chosen.source.parent / f"{name}.txt"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:-1], change or lines[0]]))
    with pytest.raises(ValueError, match=f"the texts that the run was started with.*`{name}`"):
        train(chosen, folder, resume=True, verbose=False)


def test_a_callback_that_stops_training_stops_it_at_the_next_checkpoint(finished, tmp_path):
    """A run could not be resumed from a checkpoint in between."""
    chosen, *_ = finished

    def stop(batch, logs):
        if batch == 1:
            callback.model.stop_training = True

    callback = keras.callbacks.LambdaCallback(on_train_batch_end=stop)
    train(chosen, tmp_path / "run", callbacks=[callback], verbose=False)
    [row] = history(tmp_path / "run")
    assert row["update"] == "2"  # the value of `every`
    train(chosen, tmp_path / "run", resume=True, verbose=False)
    whole = history(finished[1].parent)
    assert [row["update"] for row in history(tmp_path / "run")] == [row["update"] for row in whole]


def test_a_folder_without_options_is_not_resumed(finished, tmp_path):
    chosen, best, *_ = finished
    shutil.copy(best.parent / "last.keras", tmp_path)
    before = (tmp_path / "last.keras").read_bytes()
    with pytest.raises(ValueError, match=r"`output` .*has a last\.keras and no options\.json"):
        train(chosen, tmp_path, resume=True, verbose=False)
    assert (tmp_path / "last.keras").read_bytes() == before


def test_two_processes_do_not_train_in_one_folder(copied):
    chosen, folder = copied
    with try_lock(folder) as is_locked:
        assert is_locked
        with pytest.raises(ValueError, match="no other process trains in"):
            train(chosen, folder, resume=True, verbose=False)
    train(chosen, folder, resume=True, verbose=False)


@pytest.mark.parametrize(
    "garbage", [b"\0\xff\xfe", b"a,b\n1,2\n", b"epoch,val_bleu\n1,high\n", b"epoch\n1,2,3\n"]
)
def test_a_damaged_history_is_refused(copied, garbage):
    chosen, folder = copied
    (folder / "history.csv").write_bytes(garbage)
    with pytest.raises(ValueError, match=r"history\.csv"):
        train(chosen, folder, resume=True, verbose=False)


def test_a_refused_start_leaves_no_folder_and_a_resumed_run_removes_leftovers(copied, tmp_path):
    chosen, folder = copied
    text = chosen.target.read_bytes()
    chosen.target.write_text("one line\n")
    with pytest.raises(ValueError, match="same number of lines"):
        train(chosen, tmp_path / "new", verbose=False)
    with pytest.raises(ValueError, match=r"`tokenize` must be one of .*'klingon'"):
        train(dataclasses.replace(chosen, tokenize="klingon"), tmp_path / "new")
    assert not (tmp_path / "new").exists()
    with pytest.raises(ValueError, match=r"line 1: .*, or a second file with the other side"):
        train(dataclasses.replace(chosen, target=None), tmp_path / "new")
    with pytest.raises(ValueError, match="`target` must be left out for a prepared corpus"):
        train(dataclasses.replace(chosen, source=folder / "corpus"), tmp_path / "new")
    assert not (tmp_path / "new").exists()
    shutil.copy(chosen.source, chosen.target)
    with pytest.raises(ValueError, match="texts that the run"):
        train(chosen, folder, resume=True, verbose=False)
    chosen.target.write_bytes(text)
    small = dataclasses.replace(chosen, batch_tokens=2)
    for _ in range(2):  # the corpus that the first attempt leaves does not block the second
        with pytest.raises(ValueError, match="`batch_tokens`"):
            train(small, tmp_path / "small", verbose=False)
    leftover = folder / ".last.123.writing.keras"
    leftover.write_bytes(b"half")
    (folder / "texts.json").unlink()  # runs of earlier versions have none
    train(chosen, folder, resume=True, verbose=False)
    assert not leftover.exists()


def test_a_run_is_not_resumed_with_another_number_of_updates(copied):
    chosen, folder = copied
    more = dataclasses.replace(chosen, epochs=3)
    (folder / "options.json").write_text(json.dumps(more.to_dict()))
    with pytest.raises(ValueError, match=r"`resume` must continue a run of 10 updates.* of 6;"):
        train(more, folder, resume=True, verbose=False)


def test_unusable_paths_callbacks_and_options_are_refused_before_training(copied, tmp_path):
    chosen, folder = copied
    os.mkfifo(tmp_path / "pipe")
    wrong = {
        "log_dir": (chosen.source, "must be a folder"),
        "validation_source": (
            (tmp_path / "pipe",),
            "must contain plain files, which are",
        ),
    }
    for name, (value, message) in wrong.items():
        with pytest.raises(ValueError, match=f"`{name}` {message}"):
            train(dataclasses.replace(chosen, **{name: value}), tmp_path / "new")
    assert not (tmp_path / "new").exists()
    for callbacks in ("early", [keras.callbacks.TerminateOnNaN], 3):
        with pytest.raises(ValueError, match="`callbacks` must be Keras callbacks"):
            train(chosen, tmp_path / "new", callbacks=callbacks)
    with pytest.raises(ValueError, match=r"`options` must be TrainingOptions\. Received: 'run"):
        train("run.yaml", tmp_path / "new")
    assert not (tmp_path / "new").exists()
    for resume in (False, True):
        with pytest.raises(ValueError, match="`output` must be a folder"):
            train(chosen, chosen.source, resume=resume)
    other = dataclasses.replace(chosen, log_dir=tmp_path / "logs")  # a run may change this option
    train(other, folder, resume=True, verbose=False, callbacks=None)
    train(other, folder, True, keras.callbacks.TerminateOnNaN(), verbose=False)


def test_patience_ends_a_run_for_good(finished, tmp_path):
    """No model translates into spades, so BLEU is 0 after every update and never gets better."""
    (tmp_path / "spades.txt").write_text("♠\n" * 3, encoding="utf-8")
    impatient = dataclasses.replace(
        finished[0], validation_target=tmp_path / "spades.txt", every=1, patience=1, log_dir=None
    )
    for resume in (False, True):
        train(impatient, tmp_path / "run", resume=resume, verbose=False)
        rows = [(row["update"], row["val_bleu"]) for row in history(tmp_path / "run")]
        assert rows == [("1", "0.0"), ("2", "0.0")]


def test_a_run_with_two_held_out_sets_keeps_checkpoints_and_stops_by_the_first_set(
    finished, tmp_path, monkeypatch
):
    chosen, *_ = finished
    scores = itertools.count(9, -1)  # alternating: first set, second set
    monkeypatch.setattr(
        "keras_bahdanau.callbacks.evaluation.corpus_scores",
        lambda *_: {"bleu": float(next(scores)), "chrf": 0.0},
    )
    sides = {
        f"validation_{side}": 2 * list(getattr(chosen, f"validation_{side}"))
        for side in ("source", "target")
    }
    two_sets = dataclasses.replace(
        chosen, **sides, epochs=1, updates=12, every=2, patience=2, keep=2, average=0, log_dir=None
    )
    best = train(two_sets, tmp_path / "run", verbose=False)
    rows = [(row["update"], row["val_bleu"], row["val2_bleu"]) for row in history(best.parent)]
    assert rows == [("2", "9.0", "8.0"), ("4", "7.0", "6.0"), ("6", "5.0", "4.0")]
    checkpoints = {path.name for path in best.parent.glob("epoch-*")}
    assert checkpoints == {"epoch-02.keras", "epoch-03.keras"}


def test_options_reach_the_model_its_optimizer_and_its_validation(finished):
    chosen, best, *_ = finished
    tokenizer = keras.saving.load_model(best, compile=False).tokenizer
    changed = dataclasses.replace(
        chosen,
        clip_norm=0.7,
        schedule="inverse-sqrt",
        learning_rate=0.5,
        label_smoothing=0.25,
        dtype_policy="mixed_bfloat16",
        validation_beam_size=3,
        tokenize="char",
        best_by="loss",
        max_length=5,
    )
    model = build(changed, tokenizer, updates=10, warmup=4)
    assert model.optimizer.global_clipnorm == 0.7
    assert model.training_dtype_policy == "mixed_bfloat16" and model.compute_dtype == "float32"
    assert model.loss.label_smoothing == 0.25
    rate = model.optimizer.get_config()["learning_rate"]["config"]
    assert (rate["peak"], rate["shape"], rate["batches"]) == (0.5, "inverse-sqrt", 2)
    held_out = [(["say abc 1"], ["1 cba and much more of it"])]
    loss, score = _evaluators(changed, held_out, tokenizer)
    assert score.search == BeamSearch(3, 1.0) and score.tokenize == "char"
    assert max(side for shape in loss.dataset.shapes for side in shape) <= 8


@pytest.mark.parametrize(
    ("pieces", "split"),
    [
        (["Fuß@@", "ball", "ist", "gut"], "Fuß@@ ball ist gut"),
        (["▁Fuß", "ball", "▁ist", "▁gut"], "▁Fuß ball ▁ist ▁gut"),
    ],
)
def test_split_targets_are_encoded_as_they_are(pieces, split, caplog):
    tokenizer = Tokenizer.from_pieces(pieces)
    loss, _ = _evaluators(
        options(best_by="loss", batch_size=9, **LENGTH), [([split], [split])], tokenizer
    )
    _, labels = loss.dataset[0]
    assert labels[0, :5].tolist() == [4, 5, 6, 7, 3]
    assert caplog.text == ""
    with pytest.raises(ValueError, match=r"`validation_target` must be split .* 100.0%"):
        _evaluators(options(**LENGTH), [([split], ["Tor"])], tokenizer)


def test_held_out_targets_have_the_copied_words_of_their_sources():
    tokenizer = Tokenizer.from_pieces(["a"], ["x"], copied_words=3)
    held_out = [(["Rex a Max"], ["x Max Tom"])]
    loss, _ = _evaluators(options(best_by="loss", batch_size=9, **LENGTH), held_out, tokenizer)
    _, labels = loss.dataset[0]
    # "Rex" is 5, "a" 6, which has no target piece, and "Max" 7.
    assert labels[0, :4].tolist() == [4, 7, 1, 3]


def test_a_split_text_of_unknown_pieces_is_logged_with_their_share(caplog):
    tokenizer = Tokenizer.from_pieces(["Fuß@@", "ball"])
    _evaluators(options(**LENGTH), [(["ein Tor ball"], ["Fuß@@ ball"])], tokenizer)
    assert "66.7 % of the pieces of `validation_source[0]` are unknown" in caplog.text


def test_held_out_symbols_that_training_lacks_are_named(caplog):
    tokenizer = Tokenizer.train(["ab ab"], ["A B A B"], kind=("characters", "symbols"), joint=False)
    _evaluators(options(**LENGTH), [(["ab", "\u00e9a\u00e9"], ["A ɕ͈ B", "C C D E F G"])], tokenizer)
    assert "1 different symbols of `validation_source[0]` are not among those" in caplog.text
    assert "at least twice: '\u00e9'." in caplog.text
    assert "at least twice: 'ɕ͈', 'C', 'D', 'E', 'F' and 1 more." in caplog.text


@pytest.mark.parametrize(
    ("values", "shapes"),
    [
        ({"batch_size": 96, "epochs": 14}, 14),  # 14 * 30,000 / 96 steps, of which 300 for a shape
        ({"batch_size": 96, "epochs": 1}, 8),
        ({"batch_size": 10, "epochs": 100}, 96),
        ({"batch_tokens": 900, "epochs": 5}, 16),  # 5 * 900,000 / 900 steps
        ({"updates": 6000, "every": 10, "accumulate": 2}, 40),
    ],
)
def test_a_longer_run_on_jax_has_more_shapes(values, shapes):
    corpus = types.SimpleNamespace(pairs=30_000, source_tokens=400_000, tokens=500_000)
    assert _compiled_shapes(options(**values), corpus) == shapes


def test_embeddings_start_with_word_vectors(tmp_path):
    (tmp_path / "de.vec").write_text("1 3\nHund 1 2 3\nund 4 5 6\n")
    tokenizer = Tokenizer.train(["Hund und"], ["Hund und"], 300, min_frequency=1)
    sizes = {"units": 2, "attention_units": 2, "embedding_dim": 3}
    models = [
        build(options(**TRAINING, **sizes, **vectors), tokenizer, updates=10, warmup=0)
        for vectors in ({}, {"target_embeddings": tmp_path / "de.vec"})
        if not keras.utils.set_random_seed(0)
    ]
    before, after = (model.target_embedding.get_weights()[0] for model in models)
    hund, und = tokenizer.encode_target("Hund und")[:-1]
    assert after[[hund, und]].tolist() == [[1, 2, 3], [4, 5, 6]]
    changed = {index for index in range(len(before)) if (before[index] != after[index]).any()}
    words = {tokenizer.target_piece(index).strip() for index in changed}
    assert words == {b"Hund", b"und"}
    sources = [model.source_embedding.get_weights()[0] for model in models]
    assert (sources[0] == sources[1]).all()


def test_word_vectors_of_another_width_are_refused_before_training(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("a.src", "a.tgt", "b.src", "b.tgt"):
        (tmp_path / name).write_text("a b\n")
    (tmp_path / "en.vec").write_text("dog 1 2\n")
    with pytest.raises(ValueError, match=r"en.vec: expected vectors as wide as the embeddings, 4"):
        train(options(source_embeddings="en.vec", embedding_dim=4), tmp_path / "run")
    assert not (tmp_path / "run").exists()
