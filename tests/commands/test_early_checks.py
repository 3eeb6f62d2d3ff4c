"""Mistakes that a command reports before it imports Keras, which takes seconds."""

import json
import re
import subprocess
import sys
from pathlib import Path

from copy_artifact import make

# Runs the command once for each list of arguments, and says at the end what it has imported.
PROGRAM = """
import json, sys
from keras_bahdanau_cli import __main__ as cli
for arguments in json.load(sys.stdin):
    sys.argv = ["keras-bahdanau", *arguments]
    try:
        cli.main()
    except SystemExit as end:
        print(end.code, end=" ")
    print(file=sys.stderr)
print({"keras", "tensorflow", "jax", "torch"} & set(sys.modules))
"""
TRAIN = ["train", "en", "de", "--validation-source", "en", "--validation-target", "de", "-o", "new"]
DISTILL = ["distill", "artifact", "en", *TRAIN[3:]]
EXPORT = ["export", "run", "new"]
MISTAKES = [
    (["train", "none", *TRAIN[2:]], "'none'"),
    ([*TRAIN[:4], "none", *TRAIN[5:]], "'none'"),
    ([*TRAIN[:2], "short", *TRAIN[3:]], "short ends after line 1, en goes on"),
    ([*TRAIN[:2], "latin", *TRAIN[3:]], "latin, line 2: not UTF-8"),
    (["train", "en", *TRAIN[3:]], "en, line 1: expected 2 columns .*, or a second file"),
    ([*TRAIN[:5], *TRAIN[7:]], "en, line 1: expected 2 columns .*, or a second file"),
    ([*TRAIN, "--encoding", "x"], "`encoding` must be the name of an encoding"),
    ([*TRAIN, "--on-bad-line", "x"], "`on_bad_line` must be one of 'stop', 'skip'"),
    ([*TRAIN, "--units", "0"], "`units` must be an int of at least 1. Received: 0"),
    ([*TRAIN, "--tokenize", "x"], "`tokenize` must be one of"),
    ([*TRAIN[:-1], "run"], "`output` must be a new folder"),
    ([*TRAIN, "--attention", "none.py:A"], "`attention` must be .*'none.py', which does not exist"),
    (
        [*TRAIN, "--config", "train.json"],
        "train.json: Argument `attention` must be given on the command line, because",
    ),
    ([*TRAIN, "--attention", "none:A"], "`attention` must be the name of an importable module, or"),
    ([*TRAIN, "--config", "none.yaml"], "'none.yaml'"),
    ([*TRAIN, "--init", "none"], "`init` must be .*'none', which does not exist"),
    ([*TRAIN, "--init", "run"], "`init` must be .*is not a .keras file"),
    (
        [*TRAIN, "--init", "old", "--units", "9", "--freeze", "encoder", "--freeze", "decoder"],
        "left out with `init`.* `units` is 9 instead of 10",
    ),
    ([*TRAIN, "--mix", "a=0.2", "--mix", "b=2"], "`mix` must be CORPUS=SHARE.* Received: 'b=2'"),
    ([*DISTILL[:2], "none", *DISTILL[3:]], "'none'"),
    ([*DISTILL, "--units", "0"], "`units` must be an int of at least 1. Received: 0"),
    ([*DISTILL, "--reference", "short"], "a line for each line of `sources`"),
    (
        [*DISTILL, "--config", "source.json"],
        "source.json: Argument `source` must be an option of distill",
    ),
    # Nothing is translated for a student that cannot be trained.
    ([*DISTILL, "--config", "train.json"], "`attention` must be given on the command line"),
    ([*DISTILL, "--attention", "none.py:A"], "`attention` must be .*'none.py', which does not"),
    ([*DISTILL[:-1], "members", "--resume"], "members', which has a seeds.json"),
    ([*DISTILL, "--tokenize", "x"], "`tokenize` must be one of"),
    ([*DISTILL, "--tokenizer", "none.json"], "'none.json'"),
    ([*DISTILL, "--init", "old", "--units", "9"], "`units` is 9 instead of 10"),
    ([*DISTILL, "--mix", "none=0.2"], "`mix` must have corpora .*'none', which has no manifest"),
    ([*DISTILL[:6], "short", *DISTILL[7:]], "short ends after line 1, en goes on"),
    ([*DISTILL[:6], "latin", *DISTILL[7:]], "latin, line 2: not UTF-8"),
    ([*TRAIN, "--seeds", "2", "--attention", "none.py:A"], "`attention` must be .*'none.py'"),
    ([*DISTILL, "--pairs"], "en, line 1: expected 2 columns"),
    ([*DISTILL[:2], "latin", *DISTILL[3:], "--encoding", "ascii"], "latin, line 2: not ascii"),
    (["export", "artifact", "new"], "`run` must be .*'artifact', which has a manifest.json"),
    ([*EXPORT[:2], "artifact"], "`path` must be a new folder, or `overwrite` be True"),
    ([*EXPORT, "--with", "none"], "`run` must be .*'none', which does not exist"),
    ([*EXPORT, "--format", "x"], "`format` must be one of"),
    ([*EXPORT, "--precision", "x"], "`precision` must be one of"),
    ([*EXPORT, "--beam-size", "0"], "`beam_size` must be an int of at least 1 .* Received: 0"),
    ([*EXPORT, "--length-penalty", "-1"], "`length_penalty` must be a number of at least 0"),
    ([*EXPORT, "--max-length", "0"], "`max_length` must be an int of at least 1"),
    ([*EXPORT, "--max-source-length", "0"], "`max_source_length` must be a positive integer"),
    ([*EXPORT, "--max-length-ratio", "0"], "`max_length_ratio` must be a number of at least 0.001"),
    ([*EXPORT, "--format", "tf_saved_model", "--cuda-graphs"], "`cuda_graphs` must be False"),
    ([*EXPORT, "--shortlist", "none"], "`shortlist` must be a file"),
    ([*EXPORT, "--config", "none.yaml"], "'none.yaml'"),
    ([*EXPORT, "--config", "export.json"], "`precision` must be one of .* Received: 'x'"),
    ([*EXPORT, "--import", "no_such"], "`import` must be the name of an importable module"),
    ([*EXPORT, "--source", "en", "--reference", "none"], "'none'"),
    ([*EXPORT, "--source", "en"], "en, line 1: expected 2 columns .*, or a second file"),
    ([*EXPORT, "--source", "en", "--on-bad-line", "skip"], r"No pair of sentences in en \(sources"),
    ([*EXPORT, "--reference", "de"], "`reference` must be passed together with `source`"),
    ([*EXPORT, "--encoding", "ascii"], "`encoding` .* must be passed together with `source`"),
    ([*EXPORT, "--license", "mit"], "`license` must be used with --model-card. Received: mit"),
    ([*EXPORT, "--model-card", "--license", "My License"], "`license` must be an identifier"),
    ([*EXPORT, "--model-card", "--language", "en"], "`languages` must be the codes"),
    ([*EXPORT, "--model-card", "--card-notes", "none"], "`card_notes` must be a file"),
    ([*EXPORT, "--model-card", "--card-notes", "latin"], "latin: expected UTF-8"),
    ([*EXPORT, "--model-card", "--layout", "triton"], "`model_card` must be left out for the lay"),
    (["import", "marian", "en", "-o", "new"], "`toolkit` must be one of"),
    (["import", "joeynmt", "none", "-o", "new"], "`paths` must be the folder of a JoeyNMT run"),
    (["import", "opennmt", "none", "-o", "new"], "`paths` must be a file. Received: 'none'"),
    (["import", "fairseq", "en", "-o", "new"], "a checkpoint and one or two dictionaries"),
    (["import", "opennmt", "en", "-o", "run"], "`output` must be a new folder. .*'run'"),
    (["evaluate", "en", "de", "artifact"], "`path` must be .* come before the texts.*'en'"),
    (["evaluate", "new", "en", "de"], "`path` must be .*'new', which is absent"),
    (["evaluate", "run", "en", "run"], "run is a folder: expected a file"),
    (["evaluate", "run", "en"], "en, line 1: expected 2 columns .*, or a second file"),
    (
        ["evaluate", "run", "en", "de", "--beam-size", "0"],
        "`beam_size` must be an int of at least 1",
    ),
    (["evaluate", "run", "en", "de", "--with", "new"], "`run` must be .*'new'"),
    (["evaluate", "run", "en", "de", "--import", "none.py"], "'none.py', which does not exist"),
    (
        ["score", "run", "en", "de", "--doubtful", "--import", "none"],
        "`import` must be the name of",
    ),
    (["select", "run", "en", "--import", "none"], "`import` must be the name of an importable"),
    (["select", "artifact", "en", "--import", "json"], "`import` must be left out for an artifact"),
    (["shortlist", "run", "en", "de", "--import", "none"], "`import` must be the name of an impo"),
    (["verify", "artifact", "run", "--import", "none"], "`import` must be the name of an import"),
    (
        ["score", "en", "de", "artifact", "--doubtful"],
        "`artifact` must be .* come before the texts.*'en'",
    ),
    (["score", "run", "en", "--doubtful"], "en, line 1: expected 2 columns .*, or a second file"),
    (
        ["score", "run", "en", "de", "--doubtful", "--timeout", "1"],
        "`timeout` must be left out for a run",
    ),
    (
        ["score", "run", "en", "de", "--doubtful", "--share", "4"],
        "`share` must be a number above 0 and at most 1",
    ),
    (
        ["score", "run", "en", "de", "--doubtful", "--share", "1", "--count", "1"],
        "`count` and `share` must not be passed",
    ),
    (["score", "artifact", "en", "de", "--doubtful"], "has no score.onnx, .*Export it again"),
    (["select", "new", "en"], "`model` must be .*'new', which is absent"),
    (["select", "run", "pairs.csv"], "`source` must be a file with one sentence per line.*pairs"),
    (["select", "run", "en", "--count", "10001"], "`count` must be an int of .* at most 10000"),
    (
        ["select", "run", "en", "-o", "none/a"],
        "`output` must be a file in an .*'none/a', whose fold",
    ),
    (
        ["select", "artifact", "en", "-o", "run"],
        "`output` must be a file. Received: 'run', a folder",
    ),
    (
        ["score", "run", "en", "de", "--doubtful", "-o", "none/a"],
        "`output` must be a file in an exi",
    ),
    (["score", "artifact", "en", "de", "-o", "run"], "`output` must be a file. Received: 'run'"),
    (["align", "artifact", "en", "de", "-o", "run"], "`output` must be a file. Received: 'run'"),
    (["align", "artifact", "a", "--draw", "-o", "none/a.png"], "`output` must be a file in an exi"),
    (["evaluate", "run", "en", "de", "-o", "run"], "`output` must be a file. Received: 'run'"),
    (
        ["evaluate", "run", "en", "de", "--confidence-picture", "none/a.png"],
        "`confidence_picture` must be a file in an existing folder. Received: 'none/a.png'",
    ),
    (["verify", "artifact", "none"], "`model` must be a file. Received: 'none'"),
    (["verify", "run", "run"], "'.*run', which is a training run. Export it first: keras-bahdanau"),
    (["verify", "artifact", "run", "--provider", "x"], "`providers` must be"),
    (["verify", "artifact", "run", "--count", "-1"], "`count` must be an int of at least 0"),
    (["shortlist", "artifact", "en", "de"], "`run` must be .*'artifact'"),
    (["shortlist", "run", "en"], "en, line 1: expected 2 columns .*, or a second file"),
    (["prepare", "en", "-o", "new"], "as many files .* with both sides and --pairs"),
    (["prepare", "-", "-", "-o", "new"], "`texts` must contain - for standard input at most once"),
    (["train", "-", *TRAIN[3:]], "plain files, which are read twice"),
    (["prepare", "--pairs", "none*.tsv", "-o", "new"], r"'none\*.tsv' must match a file"),
    (["prepare", "en", "de", "--filter", "x", "-o", "new"], "`filter` must be a rule: length"),
    (["quickstart", "-o", "run"], "`output` must be a new folder"),
    (["score", "artifact", "en", "short"], "short ends after line 1, en goes on"),
    (["score", "artifact", "en", "de"], "has no score.onnx, .*Export it again"),
    (["inspect", "hf://artifact"], "`artifact` must be a folder, hf://USER/NAME or hf://USER/NAM"),
    (["score", "artifact", "en"], "en, line 1: expected 2 columns .*, or a second file"),
    (["align", "artifact", "en"], "en, line 1: expected 2 columns .*, or a second file"),
    (["align", "run", "en", "de"], "is a training run. Export it first: keras-bahdanau export"),
    (["translate", "run", "en"], "is a training run. Export it first: keras-bahdanau export"),
    # Files of other formats are not read as lines.
    (["translate", "artifact", "pairs.csv"], "`sources` must be used with an `output`.*pairs.csv"),
    (["translate", "artifact", "pairs.csv", "-o", "new"], "`output` must be of the kind"),
    (["translate", "artifact", "en.tmx", "-o", "new"], "`source` must be lines of text, .csv"),
    (["translate", "none", "en", "en.tmx", "-o", "new"], "`sources` must be .* Received: en.tmx"),
    ([*TRAIN[:1], "pairs.csv", *TRAIN[2:]], "pairs.csv: expected a file with one sentence per"),
    ([*TRAIN[:4], "pairs.csv", *TRAIN[5:]], "pairs.csv: expected a file with one sentence per"),
    ([*DISTILL[:2], "pairs.csv", *DISTILL[3:]], "`sources` must be files of lines .*pairs.csv"),
    ([*DISTILL, "--reference", "pairs.csv"], "`references` must be files of lines .*pairs.csv"),
    ([*EXPORT, "--source", "en", "--reference", "pairs.csv"], "pairs.csv: expected a file with"),
    (["evaluate", "run", "pairs.csv", "de"], "pairs.csv: expected a file with one sentence per"),
    (["evaluate", "run", "en", "de", "pairs.csv"], "pairs.csv: expected a file with one sentence"),
    (["shortlist", "run", "pairs.csv", "de"], "pairs.csv: expected a file with one sentence per"),
    (["score", "artifact", "en", "pairs.csv"], "pairs.csv: expected a file with one sentence per"),
    (["align", "artifact", "pairs.csv", "de"], "pairs.csv: expected a file with one sentence per"),
    (["prepare", "en", "pairs.csv", "-o", "new"], "pairs.csv: expected a file with one sentence"),
    (["translate", "artifact", "en", "--prefix", "pairs.csv"], "`prefix` must be a file with a l"),
    (["verify", "artifact", "run", "--source", "pairs.csv"], "pairs.csv: expected a file with one"),
]


def test_mistakes_are_reported_before_keras_is_imported(tmp_path):
    make(tmp_path / "artifact")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "best.keras").touch()
    (tmp_path / "members").mkdir()
    (tmp_path / "members" / "seeds.json").touch()
    (tmp_path / "old").symlink_to(Path(__file__).resolve().parents[1] / "files" / "run")
    for name, data in (
        ("en", b"a\nb\n"),
        ("de", b"x\ny\n"),
        ("short", b"x\n"),
        ("latin", b"x\n\xff"),
        ("pairs.csv", b"source,target\na,x\n"),
        ("en.tmx", b"<tmx/>"),
        ("export.json", b'{"precision": "x"}'),
        ("source.json", b'{"source": "en"}'),
        ("train.json", b'{"attention": "json:JSONDecoder"}'),
    ):
        (tmp_path / name).write_bytes(data)
    before = sorted(path.name for path in tmp_path.iterdir())
    finished = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        input=json.dumps([arguments for arguments, _ in MISTAKES]),
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert finished.returncode == 0, finished.stderr
    errors = finished.stderr.split("\n\n")
    for (arguments, words), error in zip(MISTAKES, errors, strict=False):
        assert re.search(words, error), (arguments, error)
    *statuses, modules = finished.stdout.split()
    assert modules == "set()" and len(statuses) == len(MISTAKES)
    assert {*statuses} == {"2", "4"}  # a wrong argument, or an unsuitable artifact
    assert sorted(path.name for path in tmp_path.iterdir()) == before
