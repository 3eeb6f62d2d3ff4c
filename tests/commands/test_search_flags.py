"""Search options and output formats of the commands `translate` and `evaluate`.

The artifact copies its source, and its scores show the options; see `options_graph`.
"""

import json
import re
from pathlib import Path

import pytest
from command import run
from copy_artifact import TOKENIZER, calibration, make, make_with_options

from keras_bahdanau_runtime import Translator
from keras_bahdanau_runtime.bulk.file import record_path, translate_file
from keras_bahdanau_runtime.bulk.review import Review

TEXTS = ["a man on a bike", "a dog"]


@pytest.fixture(scope="module")
def artifact(tmp_path_factory):
    return make_with_options(tmp_path_factory.mktemp("options") / "artifact")


@pytest.fixture
def write(tmp_path):
    """Write a file of lines."""

    def write(name, *lines):
        path = tmp_path / name
        path.write_text("".join(f"{line}\n" for line in lines), "utf-8")
        return path

    return write


@pytest.fixture
def command(monkeypatch, capsysbinary, artifact, write):
    """Run `translate` on the texts; return its status, the lines of its output and its errors."""

    def command(*flags, texts=TEXTS):
        source = write("source", *texts)
        status, out, err = run(monkeypatch, capsysbinary, "translate", artifact, source, *flags)
        return status, out.splitlines(), err

    return command


def test_n_best_lists_are_those_of_moses(command):
    _, lines, _ = command("--n-best", 2, "--length-penalty", 0.5, "--beam-size", 1)
    assert lines == [
        "0 ||| a man on a bike ||| -3.000000",
        "0 |||  ||| 1000.000000",
        "1 ||| a dog ||| -1.500000",
        "1 |||  ||| 1000.000000",
    ]


def test_columns_of_tokens_scores_and_links(command):
    flags = "--scores", "--tokens", "--alignments", "pharaoh"
    _, lines, _ = command(*flags, texts=["a dog"])
    assert lines == ["0 ||| a dog ||| -3.000000 ||| a ▁dog </s> ||| 0-0 1-1"]


def test_json_lines_have_all_fields(command):
    _, lines, _ = command("--json", "--n-best", 2, "--alignments", "json", texts=["a dog"])
    [row] = map(json.loads, lines)
    best, empty = row["translations"]
    tokens = ["a", " dog", "</s>"]
    assert best == {
        "text": "a dog",
        "score": -3.0,
        "tokens": tokens,
        "source_tokens": tokens,
        "alignment": [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
    }
    assert (row["row"], row["error"]) == (0, None)
    assert (empty["text"], empty["score"]) == ("", 2000)


def test_each_line_has_its_own_prefix(command, write):
    prefix = write("prefix", "", "a bo")
    _, lines, _ = command("--prefix", prefix)
    assert lines == ["a man on a bike", "a bo"]


def test_suppressed_tokens_reach_the_graph(command):
    ids = [TOKENIZER.token_to_id(token) for token in ("Ġbike", "Ġdog")]
    _, lines, _ = command(
        "--suppress", "bike", "--suppress", "dog", "--disable-unknown", "--n-best", 2
    )
    assert lines[1] == f"0 |||  ||| {2000 + 1 + sum(ids)}.000000"


def test_a_file_has_the_same_lines_as_standard_output(command, write, tmp_path):
    prefix = write("prefix", "", "a bo")
    flags = "--n-best", 2, "--tokens", "--prefix", prefix
    _, expected, _ = command(*flags)
    status, lines, err = command(*flags, "--output", tmp_path / "out")
    assert (status, lines) == (0, []), err
    assert (tmp_path / "out").read_text("utf-8").splitlines() == expected


@pytest.mark.parametrize(
    "flags, message",
    [
        (["--beam-size", "3"], "`beam_size` must be an int of at least 1 and at most 2"),
        (["--length-penalty", "nan"], "`length_penalty` must be a number of at least 0"),
        (["--max-length", "41"], "`max_length` must be an int of at least 1 and at most 40"),
        (["--top-k", "3"], "a BeamSearch has no such option"),
        (["--alignments", "dot"], "`alignments` must be one of ('pharaoh', 'json')"),
        (["--n-best", "0"], "`n_best` must be a positive integer"),
        (["--suppress", "a man"], "`suppressed` must hold texts that are one token each"),
        (["--prefix", "absent"], "`prefix` must be a file. Received: 'absent', which does not"),
        (["--required", "absent"], "`required` must be a file. Received: 'absent'"),
        (["--engine", "ray", "--prefix", "x"], "`prefix` must be used with `engine` local"),
        (["--engine", "ray", "--scores"], "must be used with `engine` local"),
    ],
)
def test_wrong_flags_are_named(command, flags, message):
    status, _, err = command(*flags)
    assert status == (4 if "no such option" in message else 2) and message in err


@pytest.mark.parametrize("to_file", [False, True])
@pytest.mark.parametrize("prefixes", [["a"], ["a", "a", "a"]])
def test_there_must_be_as_many_prefixes_as_lines(command, write, tmp_path, prefixes, to_file):
    flags = ["--output", tmp_path / "out"] if to_file else []
    status, _, err = command("--prefix", write("prefix", *prefixes), *flags)
    assert status == 2 and "`prefixes` must have one str or None for each of " in err


def test_a_prefix_that_is_too_long_fails_its_line_only(command, write):
    status, lines, err = command("--prefix", write("prefix", "a " * 41, ""))
    assert status == 3 and lines == ["", "a dog"]
    assert "line 1" in err and "`prefixes` must have at most 40 tokens each" in err


def test_required_phrases_need_an_artifact_with_the_option(command, write):
    status, _, err = command("--required", write("required", "bike\ta boat", ""))
    assert status == 3 and "no input 'required'" in err


def test_an_artifact_without_options_must_be_exported_again(
    monkeypatch, capsysbinary, write, tmp_path
):
    old = make(tmp_path / "old")
    source = write("source", *TEXTS)
    arguments = "translate", old, source, "--beam-size", 1
    status, _, err = run(monkeypatch, capsysbinary, *arguments)
    assert status == 4 and "no input 'beam_size'" in err and "Export it again" in err


def test_a_file_continues_only_with_the_same_options(artifact, write, tmp_path):
    source = write("in", *["a dog"] * 5)

    def stop(done, total):
        if done > 2:
            raise KeyboardInterrupt

    translator, output = Translator(artifact), tmp_path / "out"
    settings = {"window": 2, "beam_size": 1, "suppressed": ("dog",)}
    with pytest.raises(KeyboardInterrupt):
        translate_file(translator, source, output, progress=stop, **settings)
    for name, value in (("beam_size", 2), ("suppressed", ["man"]), ("prefixes", ["a"] * 5)):
        changed = {**settings, name: value}
        with pytest.raises(ValueError, match=f"`{name}` must be the value that"):
            translate_file(translator, source, output, resume=True, **changed)
    assert translate_file(translator, source, output, resume=True, **settings).failed_rows == 0
    assert output.read_text().splitlines() == ["a dog"] * 5


@pytest.fixture
def evaluate(monkeypatch, capsysbinary, artifact):
    """Run `evaluate`; return its output and its errors."""
    return lambda *arguments: run(monkeypatch, capsysbinary, "evaluate", artifact, *arguments)[1:]


def test_evaluate_with_several_references(evaluate, write):
    source = write("source", "a man on a bike", "a dog on a boat", "a")
    first = write("first", "a dog on a bike", "a dog on a boat", "")
    second = write("second", "a man on a bike", "a man on a boat", "a")
    out, err = evaluate(source, first, second)
    assert out.splitlines() == [
        "BLEU 100.00  chrF 100.00",
        "exact 100.0% (100.0 to 100.0)  symbol errors 0.0% (0.0 to 0.0)",
    ]
    assert "Dropped 1 of 3 lines: one is blank." in err
    assert "exact 50.0%" in evaluate(source, first)[0]
    second.write_bytes(second.read_bytes().replace(b"boat", b"\xe9"))
    out, err = evaluate(source, first, second, "--on-bad-line", "skip")
    assert "exact 100.0%" in out
    assert "Dropped 2 of 3 lines" in err


def test_evaluate_with_a_prefix_for_each_line(evaluate, write):
    source = write("source", "a man on a bike", "", "a dog on a boat")
    reference = write("reference", "a man on a bike", "x", "a man on a boat")
    prefix = write("prefix", "", "", "a man")
    assert "exact 50.0%" in evaluate(source, reference)[0]
    out, _ = evaluate(source, reference, "--prefix", prefix)
    assert "exact 100.0%" in out
    _, err = evaluate(source, reference, "--prefix", "absent")
    assert "`prefix` must be a file" in err
    _, err = evaluate(source, reference, "--prefix", write("short", "a"))
    assert "3 in `source`, 3 in `references`, 1 in `prefixes`" in err


# --- Confidences ----------------------------------------------------------------------------------

# The confidences are e^-6 and e^-3. The second hypothesis is empty.
DOUBTFUL = [
    "a man on a bike\ta man on a bike\t\t0.0025\t3",
    "a boat\ta boat\t\t0.0498\t1",
]


@pytest.fixture
def calibrated(tmp_path):
    return make_with_options(tmp_path / "calibrated", calibration=calibration())


def test_json_lines_of_a_calibrated_artifact_have_confidences(
    monkeypatch, capsysbinary, calibrated, write
):
    source = write("source", "a dog")
    _, out, _ = run(monkeypatch, capsysbinary, "translate", calibrated, source, "--json")
    [hypothesis] = json.loads(out)["translations"]
    assert hypothesis["confidence"] == pytest.approx(0.049787, abs=1e-6)  # e^-3
    assert hypothesis["expected_errors"] == pytest.approx(0.2)
    assert hypothesis["token_confidences"] == pytest.approx([0.367879] * 3, abs=1e-6)
    assert hypothesis["uncalibrated"] is None


def test_json_lines_of_other_artifacts_have_no_confidences(command):
    _, [line], _ = command("--json", texts=["a dog"])
    assert "confidence" not in json.loads(line)["translations"][0]


@pytest.mark.parametrize("is_file", [True, False])
def test_doubtful_translations_go_to_a_file_of_their_own(
    monkeypatch, capsysbinary, calibrated, write, tmp_path, is_file
):
    source = write("source", "a boat", "b", "a man on a bike", " ")
    review, output = tmp_path / "doubtful.tsv", tmp_path / "output"
    flags = ["--review", 0.06, review, *(["--output", output] if is_file else [])]
    status, out, err = run(monkeypatch, capsysbinary, "translate", calibrated, source, *flags)
    assert status == 0 and "2 translations to review are in" in err
    assert review.read_text("utf-8").splitlines() == DOUBTFUL
    out = output.read_text("utf-8") if is_file else out
    assert out.splitlines() == ["", "b", "", ""]
    assert not list(tmp_path.glob("*.partial"))


def test_a_finished_output_keeps_and_counts_its_review(
    calibrated, write, monkeypatch, capsysbinary, tmp_path
):
    source, review, output = write("source", "a boat"), tmp_path / "r.tsv", tmp_path / "output"
    command = ["translate", calibrated, source, "--output", output, "--review", 0.06, review]
    for flags in ([], ["--resume"]):
        status, _, err = run(monkeypatch, capsysbinary, *command, *flags)
        assert status == 0 and f"1 translation to review is in {review}" in err
        assert len(review.read_text("utf-8").splitlines()) == 1
    review.unlink()
    status, _, err = run(monkeypatch, capsysbinary, *command, "--resume")
    assert status == 0 and f"{review} is missing. {output} was complete, so nothing" in err


def test_an_interrupted_file_continues_with_its_review(calibrated, write, tmp_path):
    source = write("source", "a boat", "b", "a man on a bike")
    output, review = tmp_path / "output", tmp_path / "doubtful.tsv"
    translator = Translator(calibrated)

    def interrupt(done, total):
        if done == 2:
            raise KeyboardInterrupt

    def translate(**options):
        review_of_call = Review(0.06, review)
        translate_file(translator, source, output, window=1, review=review_of_call, **options)

    with pytest.raises(KeyboardInterrupt):
        translate(progress=interrupt)
    assert not review.exists()
    with open(f"{review}.partial", "a", encoding="utf-8") as file:  # written before it was killed
        file.write('["b", "b", "", 0.01, 3]\n["a ma')
    on_disk = []
    record = record_path(output)
    record.mkdir()  # so that the output cannot be published
    with pytest.raises(OSError, match=record.name):
        translate(
            resume=True,
            progress=lambda *_: on_disk.append(Path(f"{review}.partial").read_text("utf-8")),
        )
    # A process that is killed again keeps the lines of the first call.
    assert len(on_disk) > 1 and all(text.startswith('["a boat"') for text in on_disk)
    record.rmdir()
    translate(resume=True)
    assert review.read_text("utf-8").splitlines() == DOUBTFUL
    assert output.read_text("utf-8").splitlines() == ["", "b", ""]
    assert not list(tmp_path.glob("*.partial"))


def test_rows_to_review_are_empty_in_json(calibrated, tmp_path):
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text('{"text": "a boat"}\n{"text": "b"}\n', "utf-8")
    translate_file(Translator(calibrated), source, output, review=Review(0.06, tmp_path / "r.tsv"))
    rows = [json.loads(line) for line in output.read_text("utf-8").splitlines()]
    assert [row["translation"] for row in rows] == [None, "b"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--review", 2, "new.tsv"], "`review` must be a number of at least 0 and at most 1"),
        (["--review", 0.5, "source"], "`review` must be a new file"),
        (["--review", 0.5, "source", "--resume"], "must be another file than the source"),
        (["--review", 0.5, "out"], "`review` must be another file than the output"),
        (["--review", 0.5, "new.tsv", "--json", "--n-best", 3], "`n_best` must be at most 2"),
        (["--review", 0.5, "new.tsv", "--beam-size", 1], "holds for beam_size=2. Received: 1"),
        (["--review", 0.5, "new.tsv", "--suppress", "b"], "the search that was calibrated.*suppr"),
    ],
    ids=str,
)
def test_a_review_needs_confidences(
    monkeypatch, capsysbinary, calibrated, write, tmp_path, flags, message
):
    write("source", "a dog")
    monkeypatch.chdir(tmp_path)
    status, _, err = run(
        monkeypatch, capsysbinary, "translate", calibrated, "source", "-o", "out", *flags
    )
    assert status == 2 and re.search(message, " ".join(err.split())), err
    assert not (tmp_path / "out").exists()


def test_a_review_of_an_artifact_without_confidences_is_refused(command, tmp_path):
    status, _, err = command("--review", 0.5, tmp_path / "new.tsv")
    assert status == 2 and "`review` must be used with a calibrated artifact" in err
