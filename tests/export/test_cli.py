"""The command, from two text files to translations, with commands of the documentation."""

import dataclasses
import functools
import gzip
import json
import os
import re
import shlex
import shutil
import subprocess
import sys

import keras
import numpy as np
import pytest
from command import history, process, run
from copy_artifact import make
from pages import DOCS, ROOT, shell_commands

from keras_bahdanau import BeamSearch, Ensemble, TrainingOptions
from keras_bahdanau.data.corpus import PreparedCorpus
from keras_bahdanau.models import Shortlist
from keras_bahdanau.training.run import load_best
from keras_bahdanau_runtime import Translator

EPOCHS = 2
DEV = "validation_source: dev.en\nvalidation_target: dev.de\n"
ALL_PAIRS = [
    (f"say {word} {n}", f"{n} {word[::-1]}") for word in ("abc", "bcd", "cde") for n in range(40)
]
PAIRS = [pair for pair in ALL_PAIRS if int(pair[0].split()[-1]) < 9]


@pytest.fixture
def command(monkeypatch, capsysbinary):
    """Run the command in this process; return exit status, standard output and error."""
    return functools.partial(run, monkeypatch, capsysbinary)


@pytest.fixture
def error_of(command):
    """Run a command that fails; return its standard error."""

    def error_of(*arguments):
        status, _, err = command(*arguments)
        assert status in (1, 2), err
        return err

    return error_of


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("text")
    for name, pairs in (("train", PAIRS), ("dev", PAIRS[:5])):
        for suffix, side in (("en", 0), ("de", 1)):
            text = "".join(f"{pair[side]}\n" for pair in pairs)
            (folder / f"{name}.{suffix}").write_text(text, encoding="utf-8")
    for suffix in ("en", "de"):
        held_out = (folder / f"dev.{suffix}").read_bytes()
        (folder / f"val.{suffix}.gz").write_bytes(gzip.compress(held_out))
    lines = "".join(f"{source}\t{target}\n" for source, target in ALL_PAIRS)
    (folder / "calibration.tsv").write_text(lines, "utf-8")
    (folder / "run.yaml").write_text(
        f"validation_source: {folder / 'dev.en'}\n"
        f"validation_target: {folder / 'dev.de'}\n"
        "tokenizer: bpe\nvocabulary_size: 280\nunits: 8\nembedding_dim: 6\nattention_units: 7\n"
        "batch_size: 16\nmax_length: 24\ndropout: 0\nepochs: 99\n"
    )
    return folder


def train_arguments(files, output, *more):
    return [
        "train", str(files / "train.en"), str(files / "train.de"),
        "--config", str(files / "run.yaml"), "--epochs", str(EPOCHS), "--output", str(output),
        *more,
    ]  # fmt: skip


def page_commands(path, names):
    """The arguments of these commands of a page."""
    commands = shell_commands(path, f"keras-bahdanau ({names}) ")
    return [shlex.split(command)[1:] for command in commands]


@pytest.fixture(scope="module")
def trained(files):
    """An uninterrupted run in its own process, which prints its choices and its progress only."""
    [command] = page_commands(ROOT / "README.md", "train")
    finished = process(*command, "--config", "run.yaml", "--epochs", EPOCHS, cwd=files)
    assert finished.returncode == 0, finished.stderr
    text = " ".join(finished.stderr.split())
    line = rf"epoch \d/{EPOCHS} update \d+ loss \S+ BLEU \S+ chrF \S+ \d+ s "
    importing = r"The texts are checked\. Importing Keras takes a few seconds\. "
    start = r"\d+ pairs, .* weights on tensorflow\. Tracing at the first batch\. "
    first = rf"in epoch 1/{EPOCHS}: batch 1 of \d+ loss \S+ "
    expected = rf"┏.*┘ {importing}{start}{first}({line}){{{EPOCHS}}}The best model is .*"
    assert re.fullmatch(expected, text), finished.stderr
    return files / "run"


@pytest.fixture(scope="module")
def artifact(files, trained):
    [command] = page_commands(ROOT / "README.md", "export")
    (files / "notes.md").write_text("Only a **toy**.", "utf-8")
    card = ("--model-card", "--license", "mit", "--card-notes", "notes.md")
    options = ("--beam-size", 2, "--max-length", 12, "--calibrate", "calibration.tsv")
    finished = process(*command, *options, *card, cwd=files)
    assert (finished.returncode, finished.stderr) == (0, "The artifact is artifact.\n")
    return files / "artifact"


@pytest.fixture
def folder(files, trained, tmp_path, monkeypatch):
    """The current folder: a copy of the texts and the run."""
    folder = tmp_path / "folder"
    shutil.copytree(files, folder, ignore=shutil.ignore_patterns("artifact"))
    monkeypatch.chdir(folder)
    return folder


def test_a_run_leaves_its_files(trained):
    assert sorted(path.name for path in trained.iterdir()) == [
        "best.keras",
        "corpus",
        "history.csv",
        "last.keras",
        "options.json",
        "texts.json",
    ]
    assert [row["epoch"] for row in history(trained)] == ["1", "2"]


def test_the_run_has_the_confidences_of_its_artifact(artifact, trained):
    texts = [source for source, _ in ALL_PAIRS[:6]]
    search = BeamSearch(2)
    ours = load_best(trained).translate(texts, search=search, max_length=12)
    for keras_one, exported in zip(ours, Translator(artifact).translate(texts), strict=True):
        assert exported.confidence is not None
        for name in ("confidence", "expected_errors", "token_confidences"):
            expected = getattr(exported, name)
            np.testing.assert_allclose(getattr(keras_one, name), expected, rtol=1e-3)


def test_a_run_whose_model_changed_has_no_confidences(artifact, trained, tmp_path, caplog):
    changed = shutil.copytree(trained, tmp_path / "run")
    options = json.loads((changed / "calibration.json").read_text("utf-8"))
    options["models"] = ["0" * 64]
    (changed / "calibration.json").write_text(json.dumps(options), "utf-8")
    assert load_best(changed).calibration is None
    assert "was fitted for another best.keras" in caplog.text


def test_export_writes_a_model_card_of_the_run(artifact, trained):
    text = (artifact / "README.md").read_text("utf-8")
    assert 'language: ["en", "de"]\nlicense: "mit"\n' in text
    assert "\n# artifact\n" in text and "\nOnly a **toy**.\n" in text
    assert f"| pairs | {len(PAIRS)} |" in text
    best = max(float(row["val_bleu"]) for row in history(trained))
    assert f"| BLEU, dev.en and dev.de | {best:.4g} |" in text


def test_flags_win_over_the_file_and_the_file_over_defaults(trained):
    options = json.loads((trained / "options.json").read_text())
    assert options["source"] == "train.en"
    values = options["epochs"], options["units"], options["label_smoothing"]
    assert values == (EPOCHS, 8, 0.1)


def test_resume_takes_the_options_file_of_a_run_and_refuses_other_options(
    command, trained, monkeypatch
):
    monkeypatch.chdir(trained.parent)  # the run was started there
    arguments = ("train", "--config", trained / "options.json", "--output", trained, "--resume")
    status, _, err = command(*arguments)
    assert (status, "The best model is" in err) == (0, True)
    # A flag with the default value wins, too.
    status, _, err = command(*arguments, "--batch-size", 64)
    assert (status, "`batch_size` was 16, is 64" in err) == (2, True), err


def test_help_lists_every_option_with_its_default(monkeypatch, command):
    monkeypatch.setenv("COLUMNS", "80")
    status, out, _ = command("train", "--help")
    assert status == 0
    text = " ".join(out.replace("│", " ").split())
    for option in dataclasses.fields(TrainingOptions):
        if not option.metadata.get("positional"):
            assert f"--{option.name.replace('_', '-')}" in text
        assert option.metadata["help"] in text
        if option.default not in (dataclasses.MISSING, None, ()) and option.type is not bool:
            assert f"{option.metadata['help']} [default: {option.default}]" in text
    assert "--joint / --separate" in text
    assert "--tie-embeddings / --no-tie-embeddings" in text


@pytest.mark.parametrize(
    ("content", "flags", "message"),
    [
        ("unit: 8", (), "Argument `unit` must be an option of train. Did you mean `units`?"),
        (
            DEV + "units: many",
            (),
            "Argument `units` must be an int. Received: 'many'",
        ),
        (DEV + "units: 8", ("--units", 0), "Argument `units` must be an int of at least 1."),
        ("units: 8", (), "Argument `validation_source` must be given."),
        ("8", (), "Argument `config` must contain a mapping of options to values."),
    ],
)
def test_invalid_options_are_named_before_any_file_is_written(
    error_of, files, tmp_path, content, flags, message
):
    (tmp_path / "run.yaml").write_text(content)
    arguments = train_arguments(files, tmp_path / "run", "--config", tmp_path / "run.yaml", *flags)
    assert message in error_of(*arguments)
    assert not (tmp_path / "run").exists()


def test_train_refuses_an_existing_folder(error_of, files, trained):
    error = error_of(*train_arguments(files, trained))
    assert "exists" in error and "resume" in error


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("short", b"one line\n", "short ends after line 1, "),
        ("empty", b"", "empty ends after line 0, "),
        ("latin", b"ok\nab\xff\n", "line 2: not UTF-8"),
    ],
)
def test_invalid_text_files_are_named(error_of, files, tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    arguments = train_arguments(files, tmp_path / "run")
    arguments[1] = str(tmp_path / name)
    error = error_of(*arguments)
    assert name in error and message in error
    assert not (tmp_path / "run").exists()


def test_prepare_writes_a_corpus(command, error_of, files, tmp_path):
    texts = [files / "train.en", files / "dev.en", files / "train.de", files / "dev.de"]
    arguments = ["prepare", *texts, "-o", tmp_path / "corpus", "--vocabulary-size", 280]
    status, out, err = command(*arguments, "--processes", 1)
    corpus = PreparedCorpus(tmp_path / "corpus")
    assert (status, out, corpus.pairs) == (0, "", len(PAIRS) + 5)
    assert f"{corpus.pairs} pairs" in err and f"{corpus.tokens} target tokens in 1 shards" in err
    error = error_of("prepare", *texts[:3], "-o", tmp_path / "odd")
    assert "`texts` must contain as many files" in error
    assert not (tmp_path / "odd").exists()


def test_one_line_in_is_one_line_out(command, artifact, tmp_path):
    (tmp_path / "in").write_text("say abc 1\n\nsay cde 5\n", encoding="utf-8")
    status, out, _ = command("translate", artifact, tmp_path / "in")
    assert status == 0
    assert out.count("\n") == 3 and out.split("\n")[1] == ""
    status, _, _ = command("translate", artifact, tmp_path / "in", "--output", tmp_path / "out")
    assert (tmp_path / "out").read_text(encoding="utf-8") == out
    status, _, err = command("translate", artifact, tmp_path / "in", "--output", tmp_path / "out")
    assert (status, "exists" in err) == (2, True)


@pytest.mark.parametrize("name", ["in.gz", "in"])
def test_translate_reads_text_as_train_does(command, artifact, tmp_path, name):
    pack = gzip.compress if name.endswith(".gz") else bytes
    (tmp_path / "plain").write_bytes(b"say abc 1\nsay cde 5\n")
    (tmp_path / name).write_bytes(pack(b"\xef\xbb\xbfsay abc 1\r\nsay cde 5"))
    _, expected, _ = command("translate", artifact, tmp_path / "plain")
    status, out, _ = command("translate", artifact, tmp_path / name)
    assert (status, out) == (0, expected)


# Runs the command with imports of Keras and of backends made an error.
WITHOUT_KERAS = """
import sys
for name in ("keras", "tensorflow", "jax", "torch"):
    sys.modules[name] = None
from keras_bahdanau_cli import __main__ as cli
cli.main()
"""


def without_keras(*arguments, text=None):
    return subprocess.run(
        [sys.executable, "-c", WITHOUT_KERAS, *map(str, arguments)],
        env={**os.environ, "COLUMNS": "1000"},  # so that no path is cut in two
        input=text,
        capture_output=True,
        text=True,
    )


def test_commands_on_an_artifact_import_no_keras(files, artifact, tmp_path):
    picture = tmp_path / "picture.png"
    test_set = (files / "dev.en", files / "dev.de")
    translated = without_keras("translate", artifact, text="say abc 1\n")
    assert (translated.returncode, translated.stderr) == (0, "")
    assert translated.stdout.count("\n") == 1
    evaluated = without_keras("--verbose", "evaluate", artifact, *test_set)
    assert evaluated.returncode == 0, evaluated.stderr
    assert evaluated.stdout.startswith("BLEU ")
    assert "model.onnx on" in evaluated.stderr
    drawn = without_keras("align", artifact, "--draw", "say abc 1", "--output", picture)
    assert drawn.returncode == 0, drawn.stderr
    assert drawn.stdout == translated.stdout
    assert picture.read_bytes().startswith(b"\x89PNG")
    count = len(test_set[0].read_text().splitlines())
    for command in ("score", "align"):
        finished = without_keras(command, artifact, *test_set)
        assert finished.returncode == 0, finished.stderr
        assert finished.stdout.count("\n") == count


LOADS_A_LIBRARY = """
import os, sys
from keras_bahdanau_cli.tensorflow_logging import filter_tensorflow_logs
with filter_tensorflow_logs():
    os.write(2, b"WARNING: All log messages before absl::InitializeLog() is called are written to"
                b" STDERR\\n")
    os.write(2, b"I0000 00:00:1795297885.877061   11221 cudart_stub.cc:31] Could not find cuda\\n")
    os.write(2, b"E0000 00:00:1.2       1 computation_placer.cc:177] computation placer already\\n")
    os.write(2, b"2026-01-01 10:00:00.123456: I tensorflow/core/util/port.cc:153] oneDNN custom\\n")
    os.write(2, b"To enable the following instructions: AVX2 FMA, in other operations\\n")
    sys.stderr.write("a warning from Python\\n")
    os.write(2, b"F0000 00:00:1.2       1 cpu_feature_guard.cc:9] compiled to use AVX\\n")
    if sys.argv[1] == "abort":
        os.abort()
sys.stderr.write("after\\n")
"""


@pytest.mark.parametrize(("end", "last"), [("abort", []), ("go on", ["after"])])
def test_only_log_lines_of_loading_libraries_are_hidden(end, last):
    finished = subprocess.run(
        [sys.executable, "-c", LOADS_A_LIBRARY, end], capture_output=True, text=True
    )
    assert (finished.returncode == 0) == bool(last)
    assert finished.stderr.splitlines() == [
        "a warning from Python",
        "F0000 00:00:1.2       1 cpu_feature_guard.cc:9] compiled to use AVX",
        *last,
    ]


def test_evaluate_gives_keras_and_the_artifact_the_same_score(
    command, error_of, files, trained, artifact
):
    test_set = (files / "dev.en", files / "dev.de")
    _, by_artifact, _ = command("evaluate", artifact, *test_set)
    _, by_keras, _ = command("evaluate", trained, *test_set, "--beam-size", 2, "--max-length", 12)
    assert by_artifact == by_keras
    assert by_keras.startswith("BLEU ")
    options = "--beam-size", 1, "--max-length", 3
    greedy = command("evaluate", artifact, *test_set, *options)
    assert greedy[:2] == command("evaluate", trained, *test_set, *options)[:2]
    error = error_of("evaluate", artifact, *test_set, "--beam-size", 3)
    assert "`beam_size` must be an int of at least 1 and at most 2. Received: 3" in error


def test_length_penalties_are_refused_without_texts_or_onnx(error_of, trained, tmp_path):
    [arguments] = page_commands(DOCS / "guides" / "search-options.md", "export")
    held_out = arguments.index("--source")
    several = ["export", trained, tmp_path / "artifact", *arguments[3:held_out]]
    assert "`length_penalty` must be passed once if there is no `source`" in error_of(*several)
    without_onnx = [*several[:3], *arguments[held_out:], "--format", "tf_saved_model"]
    assert "`source` and `reference` must be left out" in error_of(*without_onnx)
    assert list(tmp_path.iterdir()) == []


def test_export_writes_a_triton_repository_with_options_of_a_file_and_the_best_length_penalty(
    command, folder
):
    [arguments] = page_commands(DOCS / "guides" / "search-options.md", "export")
    models, config = folder / "artifact", folder / "export.yaml"
    config.write_text(
        "max_length: 12\nmax-source-length: 30\nstepwise: true\nformat: [onnx]\n"
        "layout: triton\nmax_length_ratio: 0.9\n"
    )
    flags = ("--beam-size", 2, "--max-length", 11, "--no-stepwise")  # override the file
    arguments += [*flags, "--config", config]
    before = sorted(folder.iterdir())
    status, _, err = command(*arguments)
    assert status == 0, err
    line = r"length penalty (\S+): BLEU (\S+)"
    lines = re.findall(line, err)
    assert re.sub(line, "", err).strip() == f"The Triton repository is {models.name}."
    assert sorted(folder.iterdir()) == sorted([*before, models])
    assert sorted(path.name for path in models.iterdir()) == ["run", "run-graph"]
    output = models / "run" / "1" / "artifact"
    translator = Translator(output)
    assert len(translator.translate(["say abc 1", "say cde 5"])) == 2
    manifest = translator.manifest
    assert (manifest.search.max_length, manifest.max_source_length) == (11, 30)
    assert "step.onnx" not in manifest.files
    assert manifest.search.max_length_ratio == 0.9
    bleu = {float(penalty): score for penalty, score in lines}
    assert list(bleu) == [0.6, 1.0, 1.5]
    chosen = bleu[manifest.search.length_penalty]
    assert float(chosen) == max(map(float, bleu.values()))
    by_artifact = command("evaluate", output, "dev.en", "dev.de")[1]
    assert by_artifact.startswith(f"BLEU {chosen} ")
    status, _, err = command(*arguments)
    assert (status, "exists" in err) == (2, True)


def test_several_runs_are_an_ensemble(command, error_of, files, trained, artifact):
    assert isinstance(load_best(trained, trained), Ensemble)
    test_set = (files / "dev.en", files / "dev.de", "--max-length", 12)
    alone, twice = (
        command("evaluate", trained, *test_set, *more) for more in ((), ("--with", trained))
    )
    assert alone[:2] == twice[:2] and alone[0] == 0  # the mean of equal models
    error = error_of("evaluate", artifact, *test_set[:2], "--with", trained)
    assert "`with` must be used with runs" in error


def test_evaluate_truncates_long_sources_with_the_flag(command, error_of, tmp_path):
    artifact, text = make(tmp_path / "copy", max_source_length=3), tmp_path / "text"
    text.write_text("a man\na man on a bike\n")
    assert "at most 3 tokens" in error_of("evaluate", artifact, text, text)
    status, out, _ = command("evaluate", artifact, text, text, "--truncate")
    assert status == 0 and "exact 50.0%" in out
    error = error_of("evaluate", tmp_path, text, text, "--truncate")
    assert "`truncate` must be left out for a run" in error


def test_a_shortlist_from_an_alignments_file(command, error_of, files, trained, tmp_path):
    few, links = tmp_path / "few.npz", tmp_path / "links.txt"
    pairs = len((files / "train.en").read_text().splitlines())
    links.write_text("0-0\n" * pairs)
    arguments = ["shortlist", trained, files / "train.en", files / "train.de", "-o", few]
    assert command(*arguments, "--alignments", links)[0] == 0
    tokenizer = keras.saving.load_model(trained / "best.keras", compile=False).tokenizer
    targets = (files / "train.de").read_text().splitlines()
    linked = {ids[0] for ids in tokenizer.encode_targets(targets)}
    table = Shortlist.load(few).table
    assert set(table[table > 0].tolist()) == {id for id in linked if id > 3}
    for lines in (1, pairs + 1):  # a wrong count may mean that pairs were left out
        links.write_text("0-0\n" * lines)
        more = ["--alignments", links, "--sentences", min(lines, pairs)]
        assert f"one line for each of {pairs} pairs" in error_of(*arguments, *more)
    assert "`size` must be an int of at least 8" in error_of(*arguments, "--size", 7)
    assert "`output` must be a file" in error_of(*arguments[:-1], tmp_path)


@pytest.mark.parametrize(
    ("flags", "message"),
    [(("--pairs", -1), "`pairs` must be a positive"), (("--epochs", 0), "`epochs` must be a p")],
)
def test_a_quickstart_with_invalid_options_writes_nothing(error_of, tmp_path, flags, message):
    folder = tmp_path / "quickstart"
    assert message in error_of("quickstart", "-o", folder, *flags)
    assert not folder.exists()


def test_a_shortlist_is_learned_and_exported(command, folder):
    page = DOCS / "guides" / "int8-and-shortlists.md"
    learn, export = page_commands(page, "shortlist|export .*--shortlist")
    assert command(*learn, "--size", 60, "--candidates", 8)[0] == 0
    shortlist = Shortlist.load(folder / "shortlist.npz")
    assert shortlist.size == 60 and shortlist.table.shape[1] == 8
    options = ["--beam-size", 3, "--max-length", 24, "--max-bleu-loss", 100]
    status, _, err = command(*export, *options)
    assert status == 0, err
    output = folder / "artifact-shortlist"
    cost = json.loads((output / "manifest.json").read_text())["shortlist"]
    model = keras.saving.load_model(folder / "run" / "best.keras", compile=False)
    sources = (folder / "dev.en").read_text().splitlines()
    ours = model.translate(sources, BeamSearch(3), max_length=24)
    theirs = Translator(output).translate(sources)
    same = np.mean([a.text == b.text for a, b in zip(ours, theirs, strict=True)])
    assert cost["ids"] == 60 and cost["equal"] == same and cost["bleu_loss"] is not None
    status, out, _ = command("verify", output, "run")
    assert status == 0 and "sources equal" in out


def test_inspect_prints_the_manifest(command, artifact):
    status, out, _ = command("inspect", artifact)
    assert status == 0 and "model.onnx" in out and "BeamSearch" in out


def test_inspect_lists_nodes_that_would_not_run_on_cuda(command, artifact):
    status, out, _ = command("inspect", artifact, "--provider", "cuda")
    assert status == 0
    assert "model.onnx on cuda" in out and "all operators run there" in out
    status, _, err = command("inspect", artifact, "--provider", "tpu")
    assert status == 2 and "'cuda'" in err


def test_verify_compares_the_artifact_with_the_model(command, trained, artifact):
    status, out, _ = command("verify", artifact, trained / "best.keras", "--count", 3)
    assert status == 0 and "3 of 3 sources equal" in out


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("max_lenght: 9", "Argument `max_lenght` must be an option of export."),
        ("search: greedy", "Argument `search` must be an option of export."),
        ("8", "Argument `config` must contain a mapping of options to values."),
    ],
)
def test_export_names_the_file_and_the_invalid_option(error_of, tmp_path, content, message):
    config = tmp_path / "export.yaml"
    config.write_text(content)
    error = error_of("export", tmp_path / "run", tmp_path / "artifact", "--config", config)
    assert message in error and str(config) in error


def test_export_refuses_a_folder_that_is_not_a_run(error_of, tmp_path):
    assert "best.keras" in error_of("export", tmp_path, tmp_path / "artifact")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--layout", "zip"), "Argument `layout` must be one of"),
        (("--name", "a"), "Argument `name` must be left out for the layout 'artifact'."),
        (("--layout", "triton", "--name", "a/b"), "Argument `name` must be at most 100 letters"),
        (("--layout", "triton", "--format", "tf_saved_model"), "Argument `format` must include"),
    ],
)
def test_invalid_layouts_are_refused_before_any_file_is_written(
    command, tmp_path, options, message
):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "best.keras").touch()
    arguments = ("export", tmp_path / "run", tmp_path / "out", *options)
    status, _, err = command(*arguments)
    assert (status, message in err) == (2, True), err
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


@pytest.mark.parametrize(
    ("missing", "module", "hint"),
    [
        ("keras", "keras_bahdanau.layers", 'pip install "keras-bahdanau[tensorflow]"'),
        ("jax", "keras_bahdanau.layers", 'pip install "keras-bahdanau[jax]"'),
        ("click", "keras_bahdanau_cli.app", 'pip install "keras-bahdanau[cli]"'),
    ],
)
def test_a_missing_package_names_its_pip_command(missing, module, hint):
    program = f"import sys; sys.modules[{missing!r}] = None; import {module}"
    finished = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "KERAS_BACKEND": "jax"},
        capture_output=True,
        text=True,
    )
    assert finished.returncode == 1
    assert hint in finished.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("missing", "extra"), [("click", "cli"), ("rich", "cli"), ("keras", "tensorflow")]
)
def test_command_without_a_package_prints_one_line(files, tmp_path, missing, extra):
    program = (
        f"import sys; sys.modules[{missing!r}] = None; "
        "from keras_bahdanau_cli import __main__ as cli; cli.main()"
    )
    finished = subprocess.run(
        [sys.executable, "-c", program, *train_arguments(files, tmp_path / "run")],
        capture_output=True,
        text=True,
    )
    assert (finished.returncode, finished.stdout) == (1, "")
    assert re.fullmatch(r"error: .*\n", finished.stderr)
    assert f'pip install "keras-bahdanau[{extra}]"' in finished.stderr
    assert not (tmp_path / "run").exists()  # nothing was prepared in vain
