"""The command, from two text files to translations, with real processes and real files."""

import dataclasses
import gzip
import json
import os
import re
import subprocess
import sys

import keras
import numpy as np
import pytest
from command import history, process, run
from copy_artifact import make

from keras_bahdanau import BeamSearch, Ensemble, Shortlist, TrainingOptions
from keras_bahdanau.training.run_folder import load_best
from keras_bahdanau_runtime import Translator
from keras_bahdanau_runtime.manifest import read_manifest
from keras_bahdanau_runtime.prepared.corpus import PreparedCorpus

EPOCHS = 4
DEV = "validation_source: dev.src\nvalidation_target: dev.tgt\n"
PAIRS = [
    (f"say {word} {n}", f"{n} {word[::-1]}") for word in ("abc", "bcd", "cde") for n in range(9)
]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("text")
    for name, pairs in (("train", PAIRS), ("dev", PAIRS[:5])):
        for suffix, side in (("src", 0), ("tgt", 1)):
            text = "".join(f"{pair[side]}\n" for pair in pairs)
            (folder / f"{name}.{suffix}").write_text(text, encoding="utf-8")
    (folder / "run.yaml").write_text(
        f"validation_source: {folder / 'dev.src'}\n"
        f"validation_target: {folder / 'dev.tgt'}\n"
        "vocabulary_size: 280\nunits: 8\nembedding_dim: 6\nattention_units: 7\n"
        "batch_size: 16\nmax_length: 24\ndropout: 0\nepochs: 99\n"
    )
    return folder


def train_arguments(files, output, *more):
    return [
        "train", str(files / "train.src"), str(files / "train.tgt"),
        "--config", str(files / "run.yaml"), "--epochs", str(EPOCHS), "--output", str(output),
        *more,
    ]  # fmt: skip


@pytest.fixture(scope="module")
def trained(files, tmp_path_factory):
    """An uninterrupted run, in a process of its own that shows nothing but its progress."""
    output = tmp_path_factory.mktemp("run") / "run"
    finished = process(*train_arguments(files, output))
    assert finished.returncode == 0, finished.stderr
    text = " ".join(finished.stderr.split())
    line = r"epoch \d/4 update \d+ loss \S+ BLEU \S+ chrF \S+ \d+ s "
    assert re.fullmatch(rf"({line}){{{EPOCHS}}}The best model is .*", text), finished.stderr
    return output


@pytest.fixture(scope="module")
def artifact(trained, tmp_path_factory):
    output = tmp_path_factory.mktemp("export") / "artifact"
    finished = process("export", trained, output, "--beam", 2, "--max-length", 12)
    assert (finished.returncode, finished.stderr) == (0, f"The artifact is {output}.\n")
    return output


def test_a_run_leaves_its_files(trained):
    assert sorted(path.name for path in trained.iterdir()) == [
        "best.keras",
        "corpus",
        "history.csv",
        "last.keras",
        "options.json",
        "texts.json",
    ]
    assert [row["epoch"] for row in history(trained)] == ["1", "2", "3", "4"]


def test_flags_win_over_the_file_and_the_file_over_defaults(files, trained):
    options = json.loads((trained / "options.json").read_text())
    assert options["source"] == str(files / "train.src")
    assert (options["epochs"], options["units"], options["label_smoothing"]) == (
        EPOCHS,
        8,
        0.1,
    )


def test_the_options_of_a_run_are_a_file_for_another(monkeypatch, capsysbinary, trained):
    config = ("train", "--config", trained / "options.json", "--output", trained, "--resume")
    status, _, err = run(monkeypatch, capsysbinary, *config)
    assert (status, "The best model is" in err) == (0, True)
    # A flag that says what is the default wins, too.
    status, _, err = run(monkeypatch, capsysbinary, *config, "--batch-size", 64)
    assert status == 1
    assert "`batch_size` was 16, is 64" in err


def test_resume_refuses_other_options(monkeypatch, capsysbinary, files, trained):
    arguments = train_arguments(files, trained, "--resume", "--dropout", "0.5")
    status, _, err = run(monkeypatch, capsysbinary, *arguments)
    assert status == 1
    assert "`dropout` was 0.0, is 0.5" in err


def test_help_holds_every_option_with_its_default(monkeypatch, capsysbinary):
    monkeypatch.setenv("COLUMNS", "200")
    status, out, _ = run(monkeypatch, capsysbinary, "train", "--help")
    assert status == 0
    text = " ".join(out.replace("│", " ").split())
    for option in dataclasses.fields(TrainingOptions):
        if not option.metadata.get("positional"):
            assert f"--{option.name.replace('_', '-')}" in text
        assert option.metadata["help"] in text
        if option.default not in (dataclasses.MISSING, None) and option.type is not bool:
            assert f"{option.metadata['help']} [default: {option.default}]" in text
    assert "--joint --separate" in text
    assert "--tie-embeddings --no-tie-embeddings" in text


@pytest.mark.parametrize(
    ("content", "flags", "message"),
    [
        ("unit: 8", (), "Argument `unit` must be an option of training. Did you mean `units`?"),
        (
            DEV + "units: many",
            (),
            "Argument `units` must be an int of at least 1. Received: 'many'",
        ),
        (DEV + "units: 8", ("--units", 0), "Argument `units` must be an int of at least 1."),
        ("units: 8", (), "Argument `validation_source`, `validation_target` must be given."),
        ("8", (), "Argument `config` must hold a mapping of options to values."),
    ],
)
def test_bad_options_are_named_before_anything_is_made(
    monkeypatch, capsysbinary, files, tmp_path, content, flags, message
):
    (tmp_path / "run.yaml").write_text(content)
    arguments = train_arguments(files, tmp_path / "run", "--config", tmp_path / "run.yaml", *flags)
    status, _, err = run(monkeypatch, capsysbinary, *arguments)
    assert status == 1
    assert message in err
    assert not (tmp_path / "run").exists()


def test_brackets_in_names_are_no_markup(monkeypatch, capsysbinary):
    status, _, err = run(monkeypatch, capsysbinary, "inspect", "no[/red]such")
    assert status == 1
    assert "no[/red]such" in err


def test_train_refuses_an_existing_folder(monkeypatch, capsysbinary, files, trained):
    status, _, err = run(monkeypatch, capsysbinary, *train_arguments(files, trained))
    assert status == 1
    assert "exists" in err
    assert "resume" in err


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("short", b"one line\n", "short ends after line 1, "),
        ("empty", b"", "empty ends after line 0, "),
        ("latin", b"ok\nab\xff\n", "line 2: not UTF-8"),
    ],
)
def test_bad_text_files_are_named(
    monkeypatch, capsysbinary, files, tmp_path, name, content, message
):
    (tmp_path / name).write_bytes(content)
    arguments = train_arguments(files, tmp_path / "run")
    arguments[1] = str(tmp_path / name)
    status, _, err = run(monkeypatch, capsysbinary, *arguments)
    assert status == 1
    assert name in err
    assert message in err
    assert not (tmp_path / "run").exists()


def test_prepare_makes_a_corpus(monkeypatch, capsysbinary, files, tmp_path):
    texts = [files / "train.src", files / "dev.src", files / "train.tgt", files / "dev.tgt"]
    arguments = ["prepare", *texts, "-o", tmp_path / "corpus", "--vocabulary-size", 280]
    status, out, err = run(monkeypatch, capsysbinary, *arguments, "--processes", 1)
    corpus = PreparedCorpus(tmp_path / "corpus")
    assert (status, out, corpus.pairs) == (0, "", len(PAIRS) + 5)
    assert f"{corpus.pairs} pairs" in err and f"{corpus.tokens} target tokens in 1 shards" in err
    status, _, err = run(monkeypatch, capsysbinary, "prepare", *texts[:3], "-o", tmp_path / "odd")
    assert status == 1 and "`texts` must hold as many files" in err
    assert not (tmp_path / "odd").exists()


def test_one_line_in_is_one_line_out(monkeypatch, capsysbinary, artifact, tmp_path):
    (tmp_path / "in").write_text("say abc 1\n\nsay cde 5\n", encoding="utf-8")
    status, out, _ = run(monkeypatch, capsysbinary, "translate", artifact, tmp_path / "in")
    assert status == 0
    assert out.count("\n") == 3
    assert out.split("\n")[1] == ""
    status, _, _ = run(
        monkeypatch, capsysbinary,
        "translate", artifact, tmp_path / "in", "--output", tmp_path / "out",
    )  # fmt: skip
    assert (tmp_path / "out").read_text(encoding="utf-8") == out
    status, _, err = run(
        monkeypatch, capsysbinary,
        "translate", artifact, tmp_path / "in", "--output", tmp_path / "out",
    )  # fmt: skip
    assert (status, "exists" in err) == (1, True)


@pytest.mark.parametrize("name", ["in.gz", "in"])
def test_translate_reads_text_as_train_does(monkeypatch, capsysbinary, artifact, tmp_path, name):
    pack = gzip.compress if name.endswith(".gz") else bytes
    (tmp_path / "plain").write_bytes(b"say abc 1\nsay cde 5\n")
    (tmp_path / name).write_bytes(pack(b"\xef\xbb\xbfsay abc 1\r\nsay cde 5"))
    _, expected, _ = run(monkeypatch, capsysbinary, "translate", artifact, tmp_path / "plain")
    status, out, _ = run(monkeypatch, capsysbinary, "translate", artifact, tmp_path / name)
    assert (status, out) == (0, expected)


# The command, where importing Keras or a backend is an error.
WITHOUT_KERAS = """
import sys
for name in ("keras", "tensorflow", "jax", "torch", "keras_bahdanau"):
    sys.modules[name] = None
from keras_bahdanau_export import cli
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


def test_an_artifact_needs_no_keras(files, artifact, tmp_path):
    picture = tmp_path / "picture.png"
    test_set = (files / "dev.src", files / "dev.tgt")
    translated = without_keras("translate", artifact, text="say abc 1\n")
    assert (translated.returncode, translated.stderr) == (0, "")
    assert translated.stdout.count("\n") == 1
    evaluated = without_keras("--verbose", "evaluate", artifact, *test_set)
    assert evaluated.returncode == 0, evaluated.stderr
    assert evaluated.stdout.startswith("BLEU ")
    assert "model.onnx on" in evaluated.stderr
    aligned = without_keras("align", artifact, "say abc 1", "--output", picture)
    assert aligned.returncode == 0, aligned.stderr
    assert aligned.stdout == translated.stdout
    assert picture.read_bytes().startswith(b"\x89PNG")


LOADS_A_LIBRARY = """
import os, sys
from keras_bahdanau_export.quiet import quiet_imports
with quiet_imports():
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
def test_only_the_noise_of_loading_is_held_back(end, last):
    finished = subprocess.run(
        [sys.executable, "-c", LOADS_A_LIBRARY, end], capture_output=True, text=True
    )
    assert (finished.returncode == 0) == bool(last)
    assert finished.stderr.splitlines() == [
        "a warning from Python",
        "F0000 00:00:1.2       1 cpu_feature_guard.cc:9] compiled to use AVX",
        *last,
    ]


def test_bytes_that_are_not_utf8_are_named(monkeypatch, capsysbinary, artifact, tmp_path):
    (tmp_path / "in").write_bytes(b"ok\n\xff\n")
    status, out, err = run(monkeypatch, capsysbinary, "translate", artifact, tmp_path / "in")
    assert status == 1
    assert out.count("\n") <= 1  # of the line before it
    assert "line 2: not UTF-8" in err


def test_evaluate_gives_keras_and_the_artifact_the_same_score(
    monkeypatch, capsysbinary, files, trained, artifact
):
    test_set = (files / "dev.src", files / "dev.tgt")
    _, by_artifact, _ = run(monkeypatch, capsysbinary, "evaluate", artifact, *test_set)
    _, by_keras, _ = run(
        monkeypatch, capsysbinary,
        "evaluate", trained, *test_set, "--beam", 2, "--max-length", 12,
    )  # fmt: skip
    assert by_artifact == by_keras
    assert by_keras.startswith("BLEU ")
    for option in ("--beam", "--length-penalty", "--max-length"):
        status, _, err = run(monkeypatch, capsysbinary, "evaluate", artifact, *test_set, option, 2)
        assert status == 1 and f"`{option[2:].replace('-', '_')}` must be given to export" in err


def test_the_length_penalty_is_that_which_suits_held_out_texts(
    monkeypatch, capsysbinary, files, trained, tmp_path
):
    output, test_set = tmp_path / "artifact", (files / "dev.src", files / "dev.tgt")
    command = ["export", trained, output, "--beam", 2, "--max-length", 12]
    command += ["--max-length-ratio", 0.9, "--length-penalty", 0.2, "--length-penalty", 1.5]
    status, _, err = run(monkeypatch, capsysbinary, *command)
    assert status == 1 and "`length_penalty` must be given once where there is no `source`" in err
    command += ["--source", test_set[0], "--reference", test_set[1]]
    lone = [*command[:-8], *command[-4:], "--format", "tf_saved_model"]  # for which there is no use
    status, _, err = run(monkeypatch, capsysbinary, *lone)
    assert status == 1 and "`source` and `reference` must be left out" in err
    status, _, err = run(monkeypatch, capsysbinary, *command)
    assert status == 0, err
    bleu = {float(p): of for p, of in re.findall(r"length penalty (\S+): BLEU (\S+)", err)}
    assert list(bleu) == [0.2, 1.5]
    search = read_manifest(output).search
    chosen = search["length_penalty"]
    assert search["max_length_ratio"] == 0.9
    assert float(bleu[chosen]) == max(map(float, bleu.values()))
    by_artifact = run(monkeypatch, capsysbinary, "evaluate", output, *test_set)[1]
    assert by_artifact.startswith(f"BLEU {bleu[chosen]} ")


def test_several_runs_are_an_ensemble(monkeypatch, capsysbinary, files, trained, artifact):
    assert isinstance(load_best(trained, trained), Ensemble)
    test_set = (files / "dev.src", files / "dev.tgt", "--max-length", 12)
    alone, twice = (
        run(monkeypatch, capsysbinary, "evaluate", trained, *test_set, *more)
        for more in ((), ("--with", trained))
    )
    assert alone == twice and alone[0] == 0  # the mean of what is the same
    given = (*test_set[:2], "--with", trained)
    status, _, err = run(monkeypatch, capsysbinary, "evaluate", artifact, *given)
    assert status == 1 and "`with` must be given to export" in err


def test_evaluate_cuts_what_is_too_long_if_told_to(monkeypatch, capsysbinary, tmp_path):
    artifact, text = make(tmp_path / "copy", max_source_length=3), tmp_path / "text"
    text.write_text("a man\na man on a bike\n")
    status, _, err = run(monkeypatch, capsysbinary, "evaluate", artifact, text, text)
    assert status == 1 and "at most 3 tokens" in err
    status, out, _ = run(monkeypatch, capsysbinary, "evaluate", artifact, text, text, "--truncate")
    assert status == 0 and "exact 50.0%" in out
    status, _, err = run(monkeypatch, capsysbinary, "evaluate", tmp_path, text, text, "--truncate")
    assert status == 1 and "`truncate` must be left out for a run" in err


def test_a_shortlist_of_given_alignments(monkeypatch, capsysbinary, files, trained, tmp_path):
    few, links = tmp_path / "few.npz", tmp_path / "links.txt"
    pairs = len((files / "train.src").read_text().splitlines())
    links.write_text("0-0\n" * pairs)
    command = ["shortlist", trained, files / "train.src", files / "train.tgt", "-o", few]
    assert run(monkeypatch, capsysbinary, *command, "--alignments", links)[0] == 0
    tokenizer = keras.saving.load_model(trained / "best.keras", compile=False).tokenizer
    targets = (files / "train.tgt").read_text().splitlines()
    linked = {ids[0] for ids in tokenizer.encode_targets(targets)}
    table = Shortlist.load(few).table
    assert set(table[table > 0].tolist()) == {id for id in linked if id > 3}
    for lines in (1, pairs + 1):  # which may be of pairs that were left out
        links.write_text("0-0\n" * lines)
        more = ["--alignments", links, "--sentences", min(lines, pairs)]
        status, _, err = run(monkeypatch, capsysbinary, *command, *more)
        assert status == 1 and f"a line for each of {pairs} pairs" in " ".join(err.split())
    status, _, err = run(monkeypatch, capsysbinary, *command, "--size", 7)
    assert status == 1 and "`size` must be an int of at least 8" in err
    status, _, err = run(monkeypatch, capsysbinary, *command[:-1], tmp_path)
    assert status == 1 and "`output` must be a file" in err


@pytest.mark.parametrize(
    ("flags", "message"),
    [(("--pairs", -1), "`pairs` must be a positive"), (("--epochs", 0), "`epochs` must be a p")],
)
def test_a_quickstart_that_cannot_be_leaves_nothing(
    monkeypatch, capsysbinary, tmp_path, flags, message
):
    folder = tmp_path / "quickstart"
    status, _, err = run(monkeypatch, capsysbinary, "quickstart", "-o", folder, *flags)
    assert status == 1 and message in err and not folder.exists()


def test_a_shortlist_is_learned_and_exported(monkeypatch, capsysbinary, files, trained, tmp_path):
    few, made = tmp_path / "few.npz", tmp_path / "artifact"
    texts = [files / "train.src", files / "train.tgt"]
    learn = ["shortlist", trained, *texts, "-o", few, "--size", 60, "--candidates", 8]
    assert run(monkeypatch, capsysbinary, *learn)[0] == 0
    known = Shortlist.load(few)
    assert known.size == 60 and known.table.shape[1] == 8
    export = ["export", trained, made, "--beam", 3, "--max-length", 24, "--shortlist", few]
    held_out = ["--source", files / "dev.src", "--reference", files / "dev.tgt"]
    status, _, err = run(monkeypatch, capsysbinary, *export, *held_out, "--max-bleu-loss", 100)
    assert status == 0, err
    cost = json.loads((made / "manifest.json").read_text())["shortlist"]
    model = keras.saving.load_model(trained / "best.keras", compile=False)
    sources = (files / "dev.src").read_text().splitlines()
    ours = [one.text for one in model.translate(sources, BeamSearch(3), max_length=24)]
    theirs = [one.text for one in Translator(made).translate(sources)]
    same = np.mean([a == b for a, b in zip(ours, theirs, strict=True)])
    assert cost["ids"] == 60 and cost["equal"] == same and cost["bleu_loss"] is not None
    status, out, _ = run(monkeypatch, capsysbinary, "verify", made, trained)
    assert status == 0 and "sources equal" in out


def test_inspect_prints_the_manifest(monkeypatch, capsysbinary, artifact):
    status, out, _ = run(monkeypatch, capsysbinary, "inspect", artifact)
    assert status == 0
    assert "model.onnx" in out
    assert "BeamSearch" in out


def test_inspect_says_what_would_not_run_on_cuda(monkeypatch, capsysbinary, artifact):
    status, out, _ = run(monkeypatch, capsysbinary, "inspect", artifact, "--provider", "cuda")
    assert status == 0
    assert "model.onnx on cuda" in out and "all of it but sizes runs there" in out
    status, _, err = run(monkeypatch, capsysbinary, "inspect", artifact, "--provider", "tpu")
    assert status == 2 and "'cuda'" in err


def test_verify_holds_the_artifact_against_the_model(monkeypatch, capsysbinary, trained, artifact):
    status, out, _ = run(
        monkeypatch, capsysbinary, "verify", artifact, trained / "best.keras", "--count", 3
    )
    assert status == 0
    assert "3 of 3 sources equal" in out


def test_a_folder_that_is_no_run_is_named(monkeypatch, capsysbinary, tmp_path):
    status, _, err = run(monkeypatch, capsysbinary, "export", tmp_path, tmp_path / "artifact")
    assert status == 1
    assert "best.keras" in err


def test_export_makes_a_repository_for_triton(monkeypatch, capsysbinary, trained, tmp_path):
    models = tmp_path / "models"
    arguments = ("export", trained, models, "--layout", "triton", "--beam", 1, "--max-length", 12)
    status, _, err = run(monkeypatch, capsysbinary, *arguments)
    assert (status, err) == (0, f"The Triton repository is {models}.")
    assert sorted(path.name for path in models.iterdir()) == ["run", "run-graph"]
    translator = Translator(models / "run" / "1" / "artifact")
    assert len(translator.translate(["say abc 1", "say cde 5"])) == 2
    assert list(tmp_path.iterdir()) == [models]
    status, _, err = run(monkeypatch, capsysbinary, *arguments)
    assert (status, "exists" in err) == (1, True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--layout", "zip"), "Argument `layout` must be one of"),
        (("--name", "a"), "Argument `name` must be given only for the layout 'triton'."),
        (("--layout", "triton", "--name", "a/b"), "Argument `name` must be at most 100 letters"),
        (("--layout", "triton", "--format", "tf_saved_model"), "Argument `format` must hold"),
    ],
)
def test_wrong_layouts_are_refused_before_anything_is_made(
    monkeypatch, capsysbinary, tmp_path, options, message
):
    arguments = ("export", tmp_path / "run", tmp_path / "out", *options)
    status, _, err = run(monkeypatch, capsysbinary, *arguments)
    assert (status, message in err) == (1, True), err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("missing", "module", "command"),
    [
        ("keras", "keras_bahdanau", 'pip install "keras-bahdanau[tensorflow]"'),
        ("jax", "keras_bahdanau", 'pip install "keras-bahdanau[jax]"'),
        ("typer", "keras_bahdanau_export.cli", 'pip install "keras-bahdanau[cli]"'),
    ],
)
def test_a_missing_package_names_its_pip_command(missing, module, command):
    program = f"import sys; sys.modules[{missing!r}] = None; import {module}"
    finished = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "KERAS_BACKEND": "jax"},
        capture_output=True,
        text=True,
    )
    assert finished.returncode == 1
    assert command in finished.stderr.splitlines()[-1]
