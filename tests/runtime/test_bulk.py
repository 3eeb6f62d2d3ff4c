"""Translation of whole files: formats, interruption and resumption, shards."""

import gzip
import json
import os
import sys
from pathlib import Path

import pytest
from copy_artifact import copy_graph, make

from keras_bahdanau_runtime import Translator
from keras_bahdanau_runtime.bulk import file
from keras_bahdanau_runtime.bulk.file import Journal, Position, fingerprint
from keras_bahdanau_runtime.bulk.records import open_records
from keras_bahdanau_runtime.errors import MissingDependencyError
from keras_bahdanau_runtime.ray.bulk import _FileTranslator
from keras_bahdanau_runtime.text.compression import open_bytes
from keras_bahdanau_runtime.text.file_kind import COMPRESSIONS
from keras_bahdanau_runtime.text.tokenizer import Tokenizer

WINDOW = 32
LONG = "a dog on a boat " * 30  # more than the 40 tokens of the artifact


def translate_file(*arguments, **options):
    """Translate a file; return the number of rows without a translation."""
    return file.translate_file(*arguments, window=WINDOW, **options).failed_rows


@pytest.fixture(scope="module")
def translator(tmp_path_factory):
    return Translator(make(tmp_path_factory.mktemp("bulk") / "artifact"), threads=1)


@pytest.fixture
def lines(tmp_path):
    """A file of two windows and 10 more rows, some of them blank, and its texts."""
    texts = ["" if n % 20 == 3 else f"a {'dog ' * (n % 7)}{n}" for n in range(2 * WINDOW + 10)]
    return write_lines(tmp_path / "in.txt", texts), texts


def write_lines(path, texts):
    path.write_text("".join(f"{text}\n" for text in texts))
    return path


class Interrupted(Exception):
    pass


def interrupt(translator, source, output, rows=WINDOW, **options):
    """Translate a file and stop after this number of rows."""

    def progress(done, total):
        if done > rows:
            raise Interrupted

    with pytest.raises(Interrupted):
        translate_file(translator, source, output, progress=progress, **options)


def names(folder):
    """Names of all files but the records of finished outputs, which are hidden."""
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))


def test_each_line_is_translated_to_one_line(translator, lines, tmp_path):
    path, texts = lines
    reports = []
    progress = lambda done, total: reports.append((done, total))  # noqa: E731
    assert translate_file(translator, path, tmp_path / "out.txt", progress=progress) == 0
    assert (tmp_path / "out.txt").read_text() == path.read_text()
    assert names(tmp_path) == ["in.txt", "out.txt"]
    assert reports[0] == (0, len(texts)) and reports[-1] == (len(texts), len(texts))
    assert reports == sorted(reports) and len(reports) > 4


@pytest.mark.parametrize("rows", [0, WINDOW - 1, WINDOW, 2 * WINDOW - 1, 2 * WINDOW])
@pytest.mark.parametrize("name", ["out.txt", "out.txt.gz", "out.txt.xz"])
def test_resumed_output_equals_uninterrupted_output(translator, lines, tmp_path, rows, name):
    path, texts = lines
    translate_file(translator, path, tmp_path / f"whole-{name}")
    output, saved_rows = tmp_path / name, rows // WINDOW * WINDOW
    interrupt(translator, path, output, rows)
    partial_files = [f"{name}.journal", f"{name}.partial"] if saved_rows else []
    assert names(tmp_path) == sorted(["in.txt", f"whole-{name}", *partial_files])
    interrupt(translator, path, output, saved_rows, resume=True)
    if saved_rows:
        with (tmp_path / f"{name}.partial").open("ab") as file:
            file.write(b"torn \xff")  # as after a loss of power
    reports = []
    progress = lambda done, total: reports.append(done)  # noqa: E731
    assert translate_file(translator, path, output, resume=True, progress=progress) == 0
    assert reports[0] == saved_rows and reports[-1] == len(texts)
    assert output.read_bytes() == (tmp_path / f"whole-{name}").read_bytes()
    assert names(tmp_path) == sorted(["in.txt", f"whole-{name}", name])


def test_rows_that_failed_before_the_interruption_are_counted(translator, tmp_path):
    source = write_lines(tmp_path / "in", [LONG, *["a man"] * WINDOW, LONG])
    failed = []
    options = {"on_failed": lambda number, reason: failed.append((number, reason))}
    interrupt(translator, source, tmp_path / "out", **options)
    assert [number for number, _ in failed] == [1]
    assert translate_file(translator, source, tmp_path / "out", resume=True, **options) == 2
    assert failed[1][0] == WINDOW + 2 and "at most 40 tokens" in failed[1][1]
    assert (tmp_path / "out").read_text().split("\n") == ["", *["a man"] * WINDOW, "", ""]


@pytest.fixture
def unfinished(translator, lines, tmp_path):
    """The output of a translation that was interrupted after one window."""
    interrupt(translator, lines[0], tmp_path / "out")
    return tmp_path / "out"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, r"`resume` must be True"),
        (
            {"resume": True, "batch_size": 8},
            "`batch_size` must be .* started with, 16. Rec.* 8",
        ),
        ({"resume": True, "batch_tokens": 99}, "`batch_tokens` must be the value"),
        ({"resume": True, "truncate": True}, "`truncate` must be the value"),
        ({"resume": True, "shard": (1, 2)}, "`shard` must be the value"),
    ],
)
def test_resuming_with_other_options_is_refused(translator, lines, unfinished, options, words):
    before = {path: path.read_bytes() for path in unfinished.parent.iterdir()}
    with pytest.raises(ValueError, match=words):
        translate_file(translator, lines[0], unfinished, **options)
    assert {path: path.read_bytes() for path in unfinished.parent.iterdir()} == before


def test_resuming_with_another_artifact_is_refused(lines, unfinished, tmp_path):
    other = Translator(make(tmp_path / "other", copy_graph(cut=1)))
    with pytest.raises(ValueError, match="`artifact` must be the value"):
        translate_file(other, lines[0], unfinished, resume=True)


def test_source_may_change_only_after_the_translated_rows(translator, lines, unfinished):
    path, texts = lines
    for changed in ([*texts[:7], "other", *texts[8:]], ["a man"]):
        write_lines(path, changed)
        with pytest.raises(ValueError, match=f"`source` must begin with the {WINDOW} rows"):
            translate_file(translator, path, unfinished, resume=True)
    write_lines(path, [*texts[:WINDOW], "other", *texts, "more"])
    translate_file(translator, path, unfinished, resume=True)
    assert unfinished.read_text() == path.read_text()


WRONG_PLACE = b'{"version": 1, "settings": {}, "place": %s}'
WRONG_PLACES = [WRONG_PLACE % place for place in (b'{"row": 1}', b'{"bytes": "1"}')]
JOURNALS = [b"", b"[]", b"{}", b"\x00", *WRONG_PLACES]


@pytest.mark.parametrize(
    ("suffix", "contents", "message"),
    [
        *(("journal", contents, "expected a journal of version 1") for contents in JOURNALS),
        ("partial", b"a dog", r"expected at least \d+ bytes"),
    ],
)
def test_damaged_files_of_an_unfinished_output_are_refused(
    translator, lines, unfinished, suffix, contents, message
):
    unfinished.with_name(f"out.{suffix}").write_bytes(contents)
    with pytest.raises(ValueError, match=rf"out\.{suffix}: {message}"):
        translate_file(translator, lines[0], unfinished, resume=True)


def test_finished_output_is_not_translated_again(translator, lines, tmp_path, caplog):
    source = write_lines(tmp_path / "in.txt", ["a man", LONG])
    output = tmp_path / "out"
    assert translate_file(translator, source, output) == 1
    with pytest.raises(ValueError, match="`output` must be a new file"):
        translate_file(translator, source, output)
    (tmp_path / "out.journal").touch()  # left by a process that was killed at its end
    (tmp_path / "out.partial").touch()
    progress = lambda done, total: pytest.fail("nothing must be translated")  # noqa: E731
    assert translate_file(translator, source, output, resume=True, progress=progress) == 1
    assert names(tmp_path) == ["in.txt", "out"] and output.read_text() == "a man\n\n"
    assert "it is complete" in caplog.text
    with source.open("rb") as stream:
        assert translate_file(translator, stream, output, resume=True) == 1


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (
            ["a man", "a cat"],
            "`source` must contain the rows that .*Received: other rows. ",
        ),
        (["a man", "a dog", "a cat"], "`source` must contain .*other rows: 3 instead of 2"),
        (["a man"], "`source` must contain .*other rows: 1 instead of 2"),
        ({"batch_size": 8}, "`batch_size` must be the value that .*out was started with, 16. .* 8"),
        ({"truncate": True}, "`truncate` must be the value"),
        (
            {"shard": (1, 1), "output_format": file.OutputFormat(scores=True)},
            "`output_format` must",
        ),
        ("output", "`output` must be .*unchanged since it was written.*which has changed"),
        ("record", r"`output` must .*have a record of what .* exists without \.out\.journal"),
    ],
)
def test_finished_output_of_something_else_is_refused(translator, tmp_path, changed, words):
    source, output = write_lines(tmp_path / "in", ["a man", "a dog"]), tmp_path / "out"
    translate_file(translator, source, output)
    if changed == "output":
        output.write_text("a man\na cat\n")
    elif changed == "record":  # that of an earlier version
        (tmp_path / ".out.journal").unlink()
    elif isinstance(changed, list):
        write_lines(source, changed)
    before = output.read_bytes()
    options = changed if isinstance(changed, dict) else {}
    with pytest.raises(ValueError, match=rf"{words}.*Remove .*out to start again"):
        translate_file(translator, source, output, resume=True, **options)
    assert output.read_bytes() == before
    output.unlink()
    assert translate_file(translator, source, output, **options) == 0  # a new run
    assert translate_file(translator, source, output, resume=True, **options) == 0


def test_finished_output_of_another_artifact_or_stream_is_refused(translator, tmp_path):
    source, output = write_lines(tmp_path / "in", ["a man"]), tmp_path / "out"
    with source.open("rb") as stream:
        translate_file(translator, stream, output)
    assert translate_file(translator, source, output, resume=True) == 0
    other = Translator(make(tmp_path / "other", copy_graph(cut=1)))
    with pytest.raises(ValueError, match=r"`artifact` must be the value that .*out was started"):
        translate_file(other, source, output, resume=True)
    write_lines(source, ["a dog"])
    with source.open("rb") as stream, pytest.raises(ValueError, match="`source` must contain"):
        translate_file(translator, stream, output, resume=True)


def test_output_of_another_process_is_not_replaced(translator, lines, tmp_path, monkeypatch):
    count_rows, output = file._shard_rows, tmp_path / "out"

    def count_while_another_process_writes(*arguments, **options):
        output.write_text("other")
        return count_rows(*arguments, **options)

    monkeypatch.setattr(file, "_shard_rows", count_while_another_process_writes)
    with pytest.raises(ValueError, match=r"`output` must be a new file.* which another process"):
        translate_file(translator, lines[0], output)
    assert names(tmp_path) == ["in.txt", "out"] and output.read_text() == "other"


def test_source_and_folders_are_refused_as_output(translator, lines, tmp_path):
    source, _ = lines
    (tmp_path / "folder").mkdir()
    for output, words in (
        (source, "which is the source"),
        (tmp_path / "folder", "which exists"),
        (Path("."), "which exists"),
    ):
        with pytest.raises(ValueError, match=f"`output` must be a new file.*{words}"):
            translate_file(translator, source, output, resume=True)
    with pytest.raises(FileNotFoundError):
        translate_file(translator, tmp_path / "none", source, resume=True)


@pytest.mark.parametrize("ending", ["partial", "journal"])
def test_source_with_the_name_of_the_partial_file_is_refused(translator, tmp_path, ending):
    source = tmp_path / f"out.{ending}"
    source.write_text("a\n")
    for resume in (False, True):
        with pytest.raises(ValueError, match=rf"whose out\.{ending} is not the source"):
            translate_file(translator, source, tmp_path / "out", resume=resume)
    assert names(tmp_path) == [source.name] and source.read_text() == "a\n"


@pytest.mark.parametrize("suffix", COMPRESSIONS)
@pytest.mark.parametrize("rows", [0, WINDOW + 1])
def test_an_output_is_compressed_as_its_name_says(translator, tmp_path, suffix, rows):
    text = "a man\n" * rows
    (tmp_path / "in.txt").write_text(text)
    output = tmp_path / f"out.txt{suffix}"
    translate_file(translator, tmp_path / "in.txt", output)
    assert output.stat().st_size > 0
    with open_bytes(output) as file:  # which accepts complete streams only
        assert file.read().decode() == text


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such locks.")
def test_output_is_locked_against_other_processes(translator, lines, tmp_path):
    def progress(done, total):
        with pytest.raises(ValueError, match="`output` must be written by one process"):
            translate_file(translator, lines[0], tmp_path / "out")

    translate_file(translator, lines[0], tmp_path / "out", progress=progress)
    assert (tmp_path / "out").read_text() == lines[0].read_text()


def test_source_that_changes_during_the_translation_is_refused(translator, tmp_path):
    source = write_lines(tmp_path / "in", ["a man"])

    def progress(done, total):
        write_lines(source, ["a man", "a dog"])

    with pytest.raises(ValueError, match=r"does not change\. It changed"):
        translate_file(translator, source, tmp_path / "out", progress=progress)
    assert names(tmp_path) == ["in"]


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_shards_join_to_the_whole_file(translator, lines, tmp_path, count):
    path, _ = lines
    parts = []
    for index in range(1, count + 1):
        translate_file(translator, path, tmp_path / f"{index}", shard=(index, count))
        parts.append((tmp_path / f"{index}").read_text())
    assert "".join(parts) == path.read_text()
    assert all(part.count("\n") % WINDOW in (0, 10) for part in parts)


@pytest.mark.parametrize("shard", [(0, 2), (3, 2), (1, 0), (-1, -1)])
def test_invalid_shard_numbers_are_refused(translator, lines, tmp_path, shard):
    with pytest.raises(ValueError, match=r"`shard` must be \(i, n\) with i from 1 to n"):
        translate_file(translator, lines[0], tmp_path / "out", shard=shard)


def test_resumed_shard_reports_row_numbers_of_the_whole_file(translator, tmp_path):
    source = write_lines(tmp_path / "in", [*["a man"] * (2 * WINDOW), LONG])
    failed = []
    options = {"shard": (2, 2), "on_failed": lambda number, reason: failed.append(number)}
    interrupt(translator, source, tmp_path / "out", **options)
    translate_file(translator, source, tmp_path / "out", resume=True, **options)
    assert failed == [2 * WINDOW + 1]


def test_stream_is_resumed_by_reading_it_again(translator, lines, tmp_path):
    path, _ = lines
    with path.open("rb") as stream:
        interrupt(translator, stream, tmp_path / "out")
    with (
        path.open("rb") as stream,
        pytest.raises(ValueError, match="`shard` must be used with"),
    ):
        translate_file(translator, stream, tmp_path / "out", shard=(1, 2), resume=True)
    totals = set()
    progress = lambda done, total: totals.add(total)  # noqa: E731
    with path.open("rb") as stream:
        translate_file(translator, stream, tmp_path / "out", resume=True, progress=progress)
    assert (tmp_path / "out").read_text() == path.read_text() and totals == {None}


# JSON lines


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_json_objects_keep_their_other_keys(translator, tmp_path, name):
    rows = [
        '{"text": "a man", "id": 1.50e3, "nested": {"b": [1, 2]}}',
        ' {"id":"\\u00e9","text":""} ',
        '{"text": "' + LONG + '"}',
        '{"text": "a\\nb"}',
    ]
    opened = gzip.open if name.endswith(".gz") else open
    with opened(tmp_path / name, "wt") as file:
        file.write("\n".join(rows))
    assert translate_file(translator, tmp_path / name, tmp_path / f"out-{name}") == 1
    with opened(tmp_path / f"out-{name}", "rt") as file:
        output = file.read()
    assert output == "\n".join([
        '{"text": "a man", "id": 1.50e3, "nested": {"b": [1, 2]}, "translation": "a man"}',
        ' {"id":"\\u00e9","text":"", "translation": ""}',
        '{"text": "' + LONG + '", "translation": null}',
        '{"text": "a\\nb", "translation": "a\\nb"}', "",
    ])  # fmt: skip
    assert json.loads(output.splitlines()[3])["translation"] == "a\nb"


@pytest.mark.parametrize(
    ("line", "written", "words"),
    [
        (
            '{"id": 1}',
            '{"id": 1, "translation": null}',
            "expected a str as 'text'. Received: an ob",
        ),
        ("{ }", '{"translation": null}', "expected a str as 'text'"),
        (
            '{"text": null}',
            '{"text": null, "translation": null}',
            "a str as 'text'. Received: null",
        ),
        (
            '{"text": 1}',
            '{"text": 1, "translation": null}',
            "expected a str as 'text'. Received: 1",
        ),
        (
            '{"text": "\\ud800"}',
            '{"text": "\\ud800", "translation": null}',
            "without lone surrogates",
        ),
        ("[1]", '{"translation": null}', "expected a JSON object. Received: '[1]'"),
        (
            '{"text": "a"',
            '{"translation": null}',
            "expected a JSON object. Received: Expecting ',' delimiter at column 13",
        ),
        ("[" * 100_000, '{"translation": null}', "expected a JSON object"),
        ('{"text": "\udcff"}', '{"translation": null}', "not UTF-8 (byte 0xff"),
        ("", "", None),
        (" ", " ", None),
    ],
)
def test_json_line_without_a_text_leaves_the_others_alone(
    translator, tmp_path, line, written, words
):
    source, output, failed = tmp_path / "in.jsonl", tmp_path / "out.jsonl", []
    lines = ['{"text": "a man"}', line, '{"text": "a dog"}']
    source.write_bytes("".join(f"{text}\n" for text in lines).encode("utf-8", "surrogateescape"))
    count = translate_file(translator, source, output, on_failed=lambda *row: failed.append(row))
    assert output.read_text() == "".join(
        f"{text}\n"
        for text in (
            '{"text": "a man", "translation": "a man"}',
            written,
            '{"text": "a dog", "translation": "a dog"}',
        )
    )
    assert count == len(failed) == (words is not None)
    assert all(number == 2 and words in reason for number, reason in failed)


def test_nested_key_is_translated_into_another_column(translator, tmp_path):
    rows = [
        '{"translation": {"en": "a man", "de": "ein Mann"}}',
        '{"translation": {"de": "ein Hund"}}',
        '{"translation": "a dog"}',
        '{"translation.en": "a boat", "translation": {"en": "a bike"}}',
    ]
    source = write_lines(tmp_path / "in.jsonl", rows)
    columns = {"text_column": "translation.en", "output_column": "ü"}
    assert translate_file(translator, source, tmp_path / "out.jsonl", **columns) == 2
    assert (tmp_path / "out.jsonl").read_text("utf-8") == "".join(
        f'{row[:-1]}, "ü": {text}}}\n'
        for row, text in zip(rows, ('"a man"', "null", "null", '"a boat"'), strict=True)
    )


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        (
            {"text_column": "txt"},
            "`text_column` must be a key of the objects .* 'txt', which no",
        ),
        (
            {"output_column": "id"},
            r"`output_column` must be a new key.* 'id', which .* line 2, already has",
        ),
    ],
)
def test_wrong_columns_are_refused_before_the_translation(translator, tmp_path, columns, words):
    source = write_lines(tmp_path / "in.jsonl", ['{"text": "a man"}', '{"text": "", "id": 1}', ""])
    progress = lambda done, total: pytest.fail("nothing must be translated")  # noqa: E731
    with pytest.raises(ValueError, match=words):
        translate_file(translator, source, tmp_path / "out.jsonl", progress=progress, **columns)
    assert names(tmp_path) == ["in.jsonl"]


@pytest.mark.parametrize(
    ("source", "output", "columns", "words"),
    [
        ("a.jsonl", "b.txt", (), "`output` must be of the kind"),
        ("a.txt", "b.parquet", (), "`output` must be of the kind"),
        ("a.csv", "b.txt", (), "`output` must be of the kind .* Received: '.*b.txt' for '.*a.csv'"),
        ("a.csv", "b.tsv", ("1",), "`output` must be of the kind"),
        ("a.txt", "b.CSV", (), "`output` must be of the kind"),
        (
            "a.tmx",
            "b.tmx",
            (),
            "`source` must be lines of text, .csv, .* '.*a.tmx', the name of an",
        ),
        (
            "a.json.gz",
            "b.txt",
            (),
            "`source` must be lines of text, .csv, .tsv, .jsonl or .parquet",
        ),
        ("a.txt", "b.XLSX", (), "`output` must be lines of text, .csv, .tsv, .jsonl or .parquet"),
        ("a.tsv", "b.tsv", (), "`text_column` must be a number from 1 .* Received: None for"),
        ("a.tsv", "b.tsv", ("de",), "`text_column` must be a number from 1 .* Received: 'de'"),
        ("a.tsv", "b.tsv", ("1", "de"), "`output_column` must be left out for tab-separated"),
        ("a.parquet", "b.parquet.gz", (), "expected Parquet without a compression around it"),
        ("a.txt", "b.txt", ("text",), "`text_column` must be used only"),
        ("a.txt", "b.txt", (None, "text"), "`output_column` must be used only"),
        ("a.jsonl", "b.jsonl", ("translation",), "`text_column` and `output_column` must be diff"),
        ("a.parquet", "b.parquet", ("a", "a"), "`text_column` and `output_column` must be diff"),
    ],
)
def test_source_and_output_must_have_one_format(tmp_path, source, output, columns, words):
    with pytest.raises(ValueError, match=words):
        open_records(tmp_path / source, tmp_path / output, *columns)


def test_scores_are_further_keys_of_json_lines(translator, tmp_path):
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    write_lines(source, ['{"text": "a dog", "id": 1}', '{"text": null}', "", '{"text": ""}'])
    style = file.OutputFormat(scores=True, tokens=True, n_best=2)
    assert translate_file(translator, source, output, output_format=style) == 1
    first, second, third, fourth = output.read_text().splitlines()
    hypothesis = {"text": "a dog", "score": -3.0, "tokens": ["a", " dog", "</s>"]}
    assert json.loads(first) == {
        "text": "a dog",
        "id": 1,
        "translation": "a dog",
        "translation_score": -3.0,
        "translation_tokens": hypothesis["tokens"],
        "translation_n_best": [hypothesis],
    }
    keys = dict.fromkeys([*json.loads(first)][2:])
    assert json.loads(second) == {"text": None, **keys}
    assert third == ""
    assert {name: type(value) for name, value in json.loads(fourth).items() if name in keys} == {
        "translation": str,
        "translation_score": type(None),  # a blank text has no score
        "translation_tokens": list,
        "translation_n_best": list,
    }


def test_json_lines_with_all_fields_say_why_a_row_has_no_translation(translator, tmp_path):
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    write_lines(source, ['{"text": "a dog"}', '{"text": 1}'])
    style = file.OutputFormat(as_json=True, alignments="pharaoh")
    translate_file(translator, source, output, output_column="de", output_format=style)
    first, second = map(json.loads, output.read_text().splitlines())
    assert list(first) == list(second)
    assert (first["de"], first["de_alignment"], first["de_error"]) == ("a dog", "0-0 1-1", None)
    assert first["de_source_tokens"] == ["a", " dog", "</s>"] and first["de_confidence"] is None
    assert second["de_error"] == "expected a str as 'text'. Received: 1"
    assert {value for name, value in second.items() if name not in ("text", "de_error")} == {None}


def test_further_keys_of_json_lines_must_be_new(translator, tmp_path):
    source = write_lines(tmp_path / "in.jsonl", ['{"text": "a", "translation_score": 1}'])
    assert translate_file(translator, source, tmp_path / "out.jsonl") == 0
    with pytest.raises(ValueError, match=r"`output_column` must be .* 'translation_score', which"):
        scores = file.OutputFormat(scores=True)
        translate_file(translator, source, tmp_path / "b.jsonl", output_format=scores)


# CSV and tab-separated text


ROWS = b'''id,text\r
1,a man\r
2,"a ""dog"", \r
two\nboats"\r
\r
3,\r
4\r
5,x,y\r
6,"a" b\r
\xff,a cat\r
7,\xff\r
8,"a\nbike"\r
9,"the ""big"" cat"'''
TRANSLATED = b"""id,text,translation\r
1,a man,a man\r
2,"a ""dog"", \r
two\nboats","a ""dog"", \r
two\nboats"\r
\r
3,,\r
4,\r
5,x,y,\r
6,"a" b,\r
\xff,a cat,a cat\r
7,\xff,\r
8,"a\nbike","a\nbike"\r
9,"the ""big"" cat","the ""big"" cat"\r
"""


@pytest.mark.parametrize("start", [b"", b"\xef\xbb\xbf"], ids=["", "byte order mark"])
def test_csv_rows_keep_their_bytes_and_get_a_cell(translator, tmp_path, start):
    source, output, failed = tmp_path / "in.csv", tmp_path / "out.csv", []
    source.write_bytes(start + ROWS)
    on_failed = lambda *row: failed.append(row)  # noqa: E731
    assert translate_file(translator, source, output, on_failed=on_failed) == 4
    assert output.read_bytes() == TRANSLATED.removesuffix(b"\r\n") + b"\n"
    assert [number for number, _ in failed] == [5, 6, 7, 9]
    for (_, reason), words in zip(
        failed, ("the 2 columns of the first row. Received: 1", "Received: 3", "CSV", "0xff"),
        strict=True,
    ):  # fmt: skip
        assert words in reason


def test_csv_is_resumed_and_its_shards_join_to_the_whole_file(translator, tmp_path):
    rows = [f"{n},a dog {n},x" for n in range(2 * WINDOW + 10)]
    source = write_lines(tmp_path / "in.csv", ["id,de,text", *rows])
    columns = {"text_column": "de", "output_column": "en, fr"}
    whole, output = tmp_path / "whole.csv", tmp_path / "out.csv"
    translate_file(translator, source, whole, **columns)
    expected = ['id,de,text,"en, fr"', *(f"{row},a dog {n}" for n, row in enumerate(rows))]
    assert whole.read_text().splitlines() == expected
    interrupt(translator, source, output, **columns)
    translate_file(translator, source, output, resume=True, **columns)
    assert output.read_bytes() == whole.read_bytes()
    parts = [tmp_path / f"{index}.csv" for index in (1, 2, 3, 4)]  # three windows: one has no rows
    for index, part in enumerate(parts, start=1):
        translate_file(translator, source, part, shard=(index, 4), **columns)
        assert translate_file(translator, source, part, True, (index, 4), **columns) == 0
    assert b"".join(part.read_bytes() for part in parts) == whole.read_bytes()
    write_lines(source, ["id,text,de", *rows])
    for finished, shard in ((output, (1, 1)), (parts[3], (4, 4))):
        with pytest.raises(ValueError, match="`source` must contain the rows"):
            translate_file(translator, source, finished, resume=True, shard=shard, **columns)


def test_csv_without_rows_keeps_its_header(translator, tmp_path):
    (tmp_path / "in.csv").write_text("text")
    translate_file(translator, tmp_path / "in.csv", tmp_path / "out.csv.gz")
    assert gzip.decompress((tmp_path / "out.csv.gz").read_bytes()) == b"text,translation\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", r"`text_column` must be one column of .*first row is \[\]. Received: 'text'"),
        ("id;text\n", r"`text_column` must be one column of .*\['id;text'\]"),
        ("text,text\n", "`text_column` must be one column of"),
        ("text,translation\n", "`output_column` must be a new column"),
        ('text\n"a man\n"b" man\n', r"in\.csv, line 2: expected CSV"),
        ('text\na\n"' + ("b" * 2**20 + "\n") * 17, r"in\.csv, line 3: expected at most 16 MB"),
    ],
    ids=["empty", "semicolons", "twice", "existing", "open quote", "endless quote"],
)
def test_csv_without_a_column_or_with_an_open_quote_is_refused(translator, tmp_path, text, words):
    (tmp_path / "in.csv").write_text(text)
    with pytest.raises(ValueError, match=words):
        translate_file(translator, tmp_path / "in.csv", tmp_path / "out.csv")
    assert names(tmp_path) == ["in.csv"]


def test_csv_cell_may_be_long_and_is_plain_text(translator, tmp_path):
    source = write_lines(tmp_path / "in.csv", ["text,x", f"a man,{'x' * 200_000}"])
    assert translate_file(translator, source, tmp_path / "out.csv") == 0
    assert (tmp_path / "out.csv").read_text().endswith("x,a man\n")
    with pytest.raises(ValueError, match=r"`output_format` must be plain for \.csv"):
        scores = file.OutputFormat(scores=True)
        translate_file(translator, source, tmp_path / "b.csv", output_format=scores)


def test_column_of_tab_separated_text_is_translated_into_a_last_column(translator, tmp_path):
    lines = ["1\ta man\tx", "", '2\t"a dog"', "3", "\t"]
    source = write_lines(tmp_path / "in.TSV", lines)
    failed = []
    translate_file(
        translator,
        source,
        tmp_path / "out.tsv",
        text_column="2",
        on_failed=lambda *row: failed.append(row),
    )
    expected = ["1\ta man\tx\ta man", "", '2\t"a dog"\t"a dog"', "3\t", "\t\t"]
    assert (tmp_path / "out.tsv").read_text() == "".join(f"{line}\n" for line in expected)
    assert failed == [(4, "expected 2 columns separated by tabs. Received: 1")]


@pytest.fixture(scope="module")
def inflector(tmp_path_factory):
    """A translator whose sources have several columns, and whose outputs are copies of them."""
    tokenizer = Tokenizer.train(["a\tN;PL"] * 2, ["a"], 280, has_columns=True)
    return Translator(
        make(tmp_path_factory.mktemp("columns") / "a", document=tokenizer._document())
    )


@pytest.mark.parametrize(
    ("name", "columns", "rows", "written"),
    [
        ("a.tsv", "13", ["boat\tx\tN;PL", "\t\t"], ["boat\tx\tN;PL\tboat N;PL", "\t\t\t"]),
        ("a.csv", "wt", ["t,w", "N;PL,a\ta"], ["t,w,translation", "N;PL,a\ta,a a\tN;PL"]),
        (
            "a.jsonl",
            ("w.w", "t"),
            ['{"w": {"w": "boat"}, "t": "N;PL"}', '{"t": "N"}'],
            [
                '{"w": {"w": "boat"}, "t": "N;PL", "translation": "boat\\tN;PL"}',
                '{"t": "N", "translation": null}',
            ],
        ),
    ],
)
def test_several_columns_are_joined(inflector, translator, tmp_path, name, columns, rows, written):
    source, output = write_lines(tmp_path / name, rows), tmp_path / f"out-{name}"
    columns = tuple(columns)
    translate_file(inflector, source, output, text_column=columns)
    assert output.read_text().splitlines() == written
    with pytest.raises(ValueError, match="`text_column` must be different columns"):
        translate_file(inflector, source, output, True, text_column=(*columns, columns[0]))
    failures = 1 if name == "a.jsonl" else 0
    assert translate_file(inflector, source, output, True, text_column=columns) == failures
    with pytest.raises(ValueError, match="`text_column` must be one column for an artifact"):
        translate_file(translator, source, tmp_path / f"b-{name}", text_column=columns)


# Parquet, where pyarrow is installed


@pytest.fixture
def parquet():
    return pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed.")


def test_missing_pyarrow_error_has_the_pip_command(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingDependencyError, match=r'pip install "keras-bahdanau\[parquet\]"'):
        open_records(tmp_path / "a.parquet", tmp_path / "b.parquet")


def table(parquet, texts, kind="string"):
    import pyarrow

    column = pyarrow.array(texts, pyarrow.string())
    column = column.dictionary_encode() if kind == "dictionary" else column.cast(kind)
    number = pyarrow.array(range(len(texts)), pyarrow.int64())
    return pyarrow.table({"id": number, "text": column, "more": [[n] for n in range(len(texts))]})


@pytest.mark.parametrize("kind", ["string", "large_string", "dictionary"])
def test_translation_is_added_to_parquet_as_a_column(translator, parquet, tmp_path, kind):
    texts = ["a man", "", LONG, "a\ndog"]
    source = table(parquet, texts, kind)
    parquet.write_table(source, tmp_path / "in.parquet", row_group_size=3)
    assert translate_file(translator, tmp_path / "in.parquet", tmp_path / "out.parquet") == 1
    output = parquet.read_table(tmp_path / "out.parquet")
    assert output["translation"].to_pylist() == ["a man", "", None, "a\ndog"]
    assert output.drop_columns("translation").equals(source)
    assert names(tmp_path) == ["in.parquet", "out.parquet"]


@pytest.mark.parametrize("group", [12, 3 * WINDOW])
def test_parquet_is_resumed_and_sharded(translator, parquet, tmp_path, group):
    texts = [f"a dog {n}" for n in range(2 * WINDOW + 10)]
    source, whole, output = (tmp_path / f"{name}.parquet" for name in ("in", "whole", "out"))
    parquet.write_table(table(parquet, texts), source, row_group_size=group)
    translate_file(translator, source, whole)
    interrupt(translator, source, output)
    translate_file(translator, source, output, resume=True)
    assert output.read_bytes() == whole.read_bytes()
    ids = []
    for index in (1, 2, 3):
        part = tmp_path / f"{index}.parquet"
        translate_file(translator, source, part, shard=(index, 3))
        rows = parquet.read_table(part).to_pylist()
        assert all(row["text"] == row["translation"] for row in rows)
        ids += [row["id"] for row in rows]
    assert ids == list(range(len(texts)))


def test_finished_parquet_of_other_columns_is_refused(translator, parquet, tmp_path):
    source, output = tmp_path / "in.parquet", tmp_path / "out.parquet"
    parquet.write_table(table(parquet, ["a man"]), source)
    translate_file(translator, source, output)
    assert translate_file(translator, source, output, resume=True) == 0
    parquet.write_table(table(parquet, ["a man"]).drop_columns("id"), source)
    with pytest.raises(ValueError, match="`source` must contain the rows"):
        translate_file(translator, source, output, resume=True)


def test_invalid_parquet_is_refused(translator, parquet, tmp_path):
    source, output = tmp_path / "in.parquet", tmp_path / "out.parquet"
    source.write_bytes(b"PAR1 no more")
    with pytest.raises(ValueError, match=r"in\.parquet: expected Parquet"):
        translate_file(translator, source, output)
    parquet.write_table(table(parquet, ["a"]), source)
    for column, words in (
        ("texts", r"column of .*\['id', 'text', 'more'\]. Received: 'texts'"),
        ("text.en", r"column of .*\['id', 'text', 'more'\]. Received: 'text.en'"),
        ("id", "column of strings. Received: 'id' of int64"),
    ):
        with pytest.raises(ValueError, match=words):
            translate_file(translator, source, output, text_column=column)
    parquet.write_table(table(parquet, ["a"]).rename_columns(["translation", "text", "m"]), source)
    with pytest.raises(ValueError, match=r"`output_column` must be a new column\. Received: 'tra"):
        translate_file(translator, source, output)
    parquet.write_table(table(parquet, ["a"]).rename_columns(["text", "text", "m"]), source)
    with pytest.raises(ValueError, match=r"one column .*Received: 'text', the name of 2"):
        translate_file(translator, source, output)
    assert names(tmp_path) == ["in.parquet"]


def test_parquet_row_without_a_text_leaves_the_others_alone(translator, parquet, tmp_path):
    import pyarrow

    source, output, failed = tmp_path / "in.parquet", tmp_path / "out.parquet", []
    ends = b"".join(end.to_bytes(4, "little") for end in (0, 5, 5, 6, 11))
    buffers = [pyarrow.py_buffer(data) for data in (ends, b"a man\xffa dog", bytes([0b1101]))]
    texts = pyarrow.StringArray.from_buffers(4, *buffers)
    parquet.write_table(pyarrow.table({"text": texts}), source)
    on_failed = lambda *row: failed.append(row)  # noqa: E731
    assert translate_file(translator, source, output, on_failed=on_failed) == 2
    written = parquet.read_table(output)
    assert written["translation"].to_pylist() == ["a man", None, None, "a dog"]
    assert failed == [
        (2, "expected a str as 'text'. Received: null"),
        (3, "not UTF-8 (byte 0xff, invalid start byte)."),
    ]


def test_nested_parquet_column_is_translated_into_another_column(translator, parquet, tmp_path):
    import pyarrow

    pairs = [{"en": "a man", "de": "ein Mann"}, None, {"en": None, "de": ""}, {"en": "a dog"}]
    kind = pyarrow.struct({"de": pyarrow.string(), "en": pyarrow.string()})
    source = pyarrow.table({"translation": pyarrow.array(pairs, kind), "id": [1, 2, 3, 4]})
    parquet.write_table(source, tmp_path / "in.parquet", row_group_size=3)
    columns = {"text_column": "translation.en", "output_column": "mt"}
    paths = (tmp_path / "in.parquet", tmp_path / "out.parquet")
    assert translate_file(translator, *paths, **columns) == 2
    written = parquet.read_table(tmp_path / "out.parquet")
    assert written["mt"].to_pylist() == ["a man", None, None, "a dog"]
    assert written.drop_columns("mt").equals(source)
    with pytest.raises(ValueError, match=r"one of \['translation.de', 'translation.en', 'id'\]"):
        translate_file(translator, *paths, text_column="translation.fr", output_column="mt")


def test_several_columns_of_parquet_are_joined(inflector, parquet, tmp_path):
    import pyarrow

    paths = (tmp_path / "in.parquet", tmp_path / "out.parquet")
    tags = pyarrow.array([{"en": "N;PL"}, {"en": None}])
    parquet.write_table(pyarrow.table({"tags": tags, "word": ["bo\tat", "a"]}), paths[0])
    assert translate_file(inflector, *paths, text_column=("word", "tags.en")) == 1
    assert parquet.read_table(paths[1])["translation"].to_pylist() == ["bo at\tN;PL", None]


def test_parquet_column_counts_before_a_nested_one_of_the_same_path(translator, parquet, tmp_path):
    import pyarrow

    paths = (tmp_path / "in.parquet", tmp_path / "out.parquet")
    nested = pyarrow.array([{"en": "a dog"}])
    parquet.write_table(pyarrow.table({"text": nested, "text.en": ["a man"]}), paths[0])
    assert translate_file(translator, *paths, text_column="text.en") == 0
    assert parquet.read_table(paths[1])["translation"].to_pylist() == ["a man"]


def test_parquet_without_rows_is_translated_to_parquet_without_rows(translator, parquet, tmp_path):
    parquet.write_table(table(parquet, []), tmp_path / "in.parquet")
    translate_file(translator, tmp_path / "in.parquet", tmp_path / "out.parquet")
    assert parquet.read_table(tmp_path / "out.parquet").num_rows == 0


def test_journal_round_trip(tmp_path):
    journal = Journal(tmp_path / "a.journal", {"a": [1, 2], "b": None})
    assert journal.read() is None
    journal.write(Position(1, 2, 3, "4"))
    assert journal.read() == Position(1, 2, 3, "4")


def test_ray_actor_has_one_thread_for_each_processor(translator, tmp_path):
    """Ray counts processors, but does not bind processes to them."""
    limits = {"parallel_batches": 1, "timeout": None, "megabytes": None}
    manifest = translator.manifest
    actor = _FileTranslator(manifest.folder, fingerprint(manifest), tmp_path, limits, {})
    assert actor._translator.session.get_session_options().intra_op_num_threads == 1


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="The test reads /proc.")
def test_rows_are_flushed_before_the_journal_counts_them(translator, lines, tmp_path, monkeypatch):
    flushed_sizes, fsync, write = [0], os.fsync, Journal.write

    def fsync_and_record_size(descriptor):
        if os.readlink(f"/proc/self/fd/{descriptor}").endswith("out.partial"):
            flushed_sizes.append(os.fstat(descriptor).st_size)
        fsync(descriptor)

    def check_and_write(journal, place, *finished):
        assert flushed_sizes[-1] >= place.bytes > 0
        write(journal, place, *finished)

    monkeypatch.setattr(os, "fsync", fsync_and_record_size)
    monkeypatch.setattr(Journal, "write", check_and_write)
    translate_file(translator, lines[0], tmp_path / "out")


def test_resuming_a_shard_of_a_longer_file_is_refused(translator, tmp_path):
    source = write_lines(tmp_path / "in", ["a man"] * 4 * WINDOW)
    interrupt(translator, source, tmp_path / "out", shard=(1, 2))
    write_lines(source, ["a man"] * 8 * WINDOW)
    with pytest.raises(ValueError, match="`shard` must be the value"):
        translate_file(translator, source, tmp_path / "out", shard=(1, 2), resume=True)


def test_resuming_with_other_providers_is_refused(translator, lines, unfinished, monkeypatch):
    monkeypatch.setattr(Translator, "providers", ["CUDAExecutionProvider"])
    with pytest.raises(ValueError, match="`providers` must be the value"):
        translate_file(translator, lines[0], unfinished, resume=True)
