"""Files translated whole: their kinds, what is kept of them when they end early, their parts."""

import functools
import gzip
import json
import os
import sys
from pathlib import Path

import pytest
from copy_artifact import copy_graph, make

from keras_bahdanau_runtime import Translator
from keras_bahdanau_runtime.bulk import file
from keras_bahdanau_runtime.bulk.journal import Journal, Place, fingerprint
from keras_bahdanau_runtime.bulk.on_ray import _Files
from keras_bahdanau_runtime.bulk.records import open_records
from keras_bahdanau_runtime.errors import MissingDependencyError

WINDOW = 32
translate_file = functools.partial(file.translate_file, window=WINDOW)
LONG = "a dog on a boat " * 30  # more than the 40 tokens of the artifact


@pytest.fixture(scope="module")
def translator(tmp_path_factory):
    return Translator(make(tmp_path_factory.mktemp("bulk") / "artifact"), threads=1)


@pytest.fixture
def lines(tmp_path):
    """A file of 2 whole windows and a part, with blank lines, and its texts."""
    texts = ["" if n % 20 == 3 else f"a {'dog ' * (n % 7)}{n}" for n in range(2 * WINDOW + 10)]
    path = tmp_path / "in.txt"
    path.write_text("".join(f"{text}\n" for text in texts))
    return path, texts


class Interrupted(Exception):
    pass


def stop_after(rows):
    """A progress that ends the call when so many rows are done."""

    def progress(done, total):
        if done > rows:
            raise Interrupted

    return progress


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_line_in_is_a_line_out(translator, lines, tmp_path):
    path, texts = lines
    told = []
    progress = lambda done, total: told.append((done, total))  # noqa: E731
    assert translate_file(translator, path, tmp_path / "out.txt", progress=progress) == 0
    assert (tmp_path / "out.txt").read_text() == path.read_text()
    assert names(tmp_path) == ["in.txt", "out.txt"]
    assert told[0] == (0, len(texts)) and told[-1] == (len(texts), len(texts))
    assert told == sorted(told) and len(told) > 4


@pytest.mark.parametrize("rows", [0, WINDOW - 1, WINDOW, 2 * WINDOW - 1, 2 * WINDOW])
@pytest.mark.parametrize("name", ["out.txt", "out.txt.gz"])
def test_a_resumed_file_is_that_of_an_unbroken_run(translator, lines, tmp_path, rows, name):
    path, texts = lines
    translate_file(translator, path, tmp_path / f"whole-{name}")
    output, kept = tmp_path / name, rows // WINDOW * WINDOW
    with pytest.raises(Interrupted):
        translate_file(translator, path, output, progress=stop_after(rows))
    begun = [f"{name}.journal", f"{name}.partial"] if kept else []
    assert names(tmp_path) == sorted(["in.txt", f"whole-{name}", *begun])
    for torn in (b"", b"torn \xff"):
        if kept:
            with (tmp_path / f"{name}.partial").open("ab") as file:
                file.write(torn)
        told = []
        if not torn:
            with pytest.raises(Interrupted):
                translate_file(translator, path, output, resume=True, progress=stop_after(kept))
    progress = lambda done, total: told.append(done)  # noqa: E731
    assert translate_file(translator, path, output, resume=True, progress=progress) == 0
    assert told[0] == kept and told[-1] == len(texts)
    assert output.read_bytes() == (tmp_path / f"whole-{name}").read_bytes()
    assert names(tmp_path) == sorted(["in.txt", f"whole-{name}", name])


def test_rows_that_failed_before_the_interruption_are_counted(translator, tmp_path):
    texts = [LONG, *["a man"] * WINDOW, LONG]
    (tmp_path / "in").write_text("".join(f"{text}\n" for text in texts))
    failed = []
    with pytest.raises(Interrupted):
        translate_file(
            translator, tmp_path / "in", tmp_path / "out", progress=stop_after(WINDOW),
            on_failed=lambda number, reason: failed.append(number),
        )  # fmt: skip
    assert failed == [1]
    found = translate_file(
        translator, tmp_path / "in", tmp_path / "out", resume=True,
        on_failed=lambda number, reason: failed.append((number, reason)),
    )  # fmt: skip
    assert found == 2 and failed[1][0] == WINDOW + 2 and "at most 40 tokens" in failed[1][1]
    assert (tmp_path / "out").read_text().split("\n") == ["", *["a man"] * WINDOW, "", ""]


@pytest.fixture
def begun(translator, lines, tmp_path):
    """A file that was interrupted after a window."""
    with pytest.raises(Interrupted):
        translate_file(translator, lines[0], tmp_path / "out", progress=stop_after(WINDOW))
    return tmp_path / "out"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, r"`resume` must be True"),
        ({"resume": True, "batch_size": 8}, "`batch_size` must be what .* begun with, 16. Rec.* 8"),
        ({"resume": True, "batch_tokens": 99}, "`batch_tokens` must be what"),
        ({"resume": True, "truncate": True}, "`truncate` must be what"),
        ({"resume": True, "shard": (1, 2)}, "`shard` must be what"),
    ],
)
def test_what_was_begun_goes_on_only_as_it_was(translator, lines, begun, options, words):
    before = {path: path.read_bytes() for path in begun.parent.iterdir()}
    with pytest.raises(ValueError, match=words):
        translate_file(translator, lines[0], begun, **options)
    assert {path: path.read_bytes() for path in begun.parent.iterdir()} == before


def test_another_artifact_does_not_go_on(lines, begun, tmp_path):
    other = Translator(make(tmp_path / "other", copy_graph(cut=1)))
    with pytest.raises(ValueError, match="`artifact` must be what"):
        translate_file(other, lines[0], begun, resume=True)


def test_other_rows_before_the_place_are_refused_and_after_it_are_taken(translator, lines, begun):
    path, texts = lines
    changed = [*texts[:7], "other", *texts[8:]]
    path.write_text("".join(f"{text}\n" for text in changed))
    with pytest.raises(ValueError, match=f"`source` must begin with the {WINDOW} rows"):
        translate_file(translator, path, begun, resume=True)
    path.write_text("a man\n")
    with pytest.raises(ValueError, match=f"`source` must begin with the {WINDOW} rows"):
        translate_file(translator, path, begun, resume=True)
    grown = [*texts[:WINDOW], "other", *texts, "more"]
    path.write_text("".join(f"{text}\n" for text in grown))
    translate_file(translator, path, begun, resume=True)
    assert begun.read_text() == path.read_text()


WRONG_PLACE = '{"version": 1, "settings": {}, "place": %s}'


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", "\x00", WRONG_PLACE % '{"row": 1}', WRONG_PLACE % '{"bytes": "1"}'],
)
def test_a_damaged_journal_is_named(translator, lines, begun, text):
    journal = begun.with_name("out.journal")
    journal.write_text(text)
    with pytest.raises(ValueError, match=r"out\.journal: expected a journal of version 1"):
        translate_file(translator, lines[0], begun, resume=True)


def test_a_partial_file_that_lost_bytes_is_named(translator, lines, begun):
    partial = begun.with_name("out.partial")
    partial.write_bytes(partial.read_bytes()[:100])
    with pytest.raises(ValueError, match=r"out\.partial: expected at least the \d+ bytes"):
        translate_file(translator, lines[0], begun, resume=True)


def test_an_output_that_is_there_is_finished(translator, lines, tmp_path, caplog):
    output = tmp_path / "out"
    output.write_text("old")
    for end in ("journal", "partial"):  # of a process that was killed after the last step but one
        (tmp_path / f"out.{end}").write_text("left")
    with pytest.raises(ValueError, match="`output` must be a new file"):
        translate_file(translator, lines[0], output)
    assert translate_file(translator, lines[0], output, resume=True) == 0
    assert names(tmp_path) == ["in.txt", "out"] and output.read_text() == "old"
    assert "it is finished" in caplog.text


def test_an_output_that_another_process_finished_meanwhile_is_left(
    translator, lines, tmp_path, monkeypatch
):
    count, output = file._span, tmp_path / "out"

    def slow(*arguments, **options):  # while this one counts
        output.write_text("theirs")
        return count(*arguments, **options)

    monkeypatch.setattr(file, "_span", slow)
    with pytest.raises(ValueError, match=r"`output` must be a new file.* which another process"):
        translate_file(translator, lines[0], output)
    assert names(tmp_path) == ["in.txt", "out"] and output.read_text() == "theirs"


def test_what_cannot_be_finished_is_refused(translator, lines, tmp_path):
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
def test_a_source_of_the_name_that_the_unfinished_output_gets_stays(translator, tmp_path, ending):
    source = tmp_path / f"out.{ending}"
    source.write_text("a\n")
    for resume in (False, True):
        with pytest.raises(
            ValueError, match=rf"beside which out\.{ending} may be made.*the source"
        ):
            translate_file(translator, source, tmp_path / "out", resume=resume)
    assert names(tmp_path) == [source.name] and source.read_text() == "a\n"


def test_no_line_is_a_whole_gzip_file(translator, tmp_path):
    (tmp_path / "in.txt").touch()
    translate_file(translator, tmp_path / "in.txt", tmp_path / "out.txt.gz")
    assert gzip.decompress((tmp_path / "out.txt.gz").read_bytes()) == b""
    assert (tmp_path / "out.txt.gz").stat().st_size > 0


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such locks.")
def test_two_processes_do_not_write_one_file(translator, lines, tmp_path):
    def progress(done, total):
        with pytest.raises(ValueError, match="`output` must be written by one process"):
            translate_file(translator, lines[0], tmp_path / "out")

    translate_file(translator, lines[0], tmp_path / "out", progress=progress)
    assert (tmp_path / "out").read_text() == lines[0].read_text()


def test_a_source_that_changes_meanwhile_is_named(translator, tmp_path):
    source = tmp_path / "in"
    source.write_text("a man\n")

    def progress(done, total):
        source.write_text("a man\na dog\n")

    with pytest.raises(ValueError, match="It changed meanwhile"):
        translate_file(translator, source, tmp_path / "out", progress=progress)
    assert names(tmp_path) == ["in"]


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_shards_make_up_the_whole(translator, lines, tmp_path, count):
    path, _ = lines
    parts = []
    for index in range(1, count + 1):
        translate_file(translator, path, tmp_path / f"{index}", shard=(index, count))
        parts.append((tmp_path / f"{index}").read_text())
    assert "".join(parts) == path.read_text()
    assert all(part.count("\n") % WINDOW in (0, 10) for part in parts)


@pytest.mark.parametrize("shard", [(0, 2), (3, 2), (1, 0), (-1, -1)])
def test_a_shard_is_one_of_those_there_are(translator, lines, tmp_path, shard):
    with pytest.raises(ValueError, match=r"`shard` must be \(i, n\) with i from 1 to n"):
        translate_file(translator, lines[0], tmp_path / "out", shard=shard)


def test_a_resumed_shard_names_its_rows_by_their_place_in_the_file(translator, tmp_path):
    texts = [*["a man"] * (2 * WINDOW), LONG]
    (tmp_path / "in").write_text("".join(f"{text}\n" for text in texts))
    failed = []
    options = {"shard": (2, 2), "on_failed": lambda number, reason: failed.append(number)}
    with pytest.raises(Interrupted):
        translate_file(
            translator, tmp_path / "in", tmp_path / "out", progress=stop_after(WINDOW), **options
        )
    translate_file(translator, tmp_path / "in", tmp_path / "out", resume=True, **options)
    assert failed == [2 * WINDOW + 1]


def test_a_stream_is_resumed_by_reading_it_again(translator, lines, tmp_path):
    path, _ = lines
    with path.open("rb") as stream, pytest.raises(Interrupted):
        translate_file(translator, stream, tmp_path / "out", progress=stop_after(WINDOW))
    with path.open("rb") as stream, pytest.raises(ValueError, match="`shard` must be given only"):
        translate_file(translator, stream, tmp_path / "out", shard=(1, 2), resume=True)
    totals = []
    with path.open("rb") as stream:
        progress = lambda done, total: totals.append(total)  # noqa: E731
        translate_file(translator, stream, tmp_path / "out", resume=True, progress=progress)
    assert (tmp_path / "out").read_text() == path.read_text() and set(totals) == {None}


# JSON lines


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_objects_keep_what_else_they_hold(translator, tmp_path, name):
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
        found = file.read()
    assert found == "\n".join([
        '{"text": "a man", "id": 1.50e3, "nested": {"b": [1, 2]}, "translation": "a man"}',
        ' {"id":"\\u00e9","text":"", "translation": ""}',
        '{"text": "' + LONG + '", "translation": null}',
        '{"text": "a\\nb", "translation": "a\\nb"}', "",
    ])  # fmt: skip
    assert [json.loads(line)["translation"] for line in found.splitlines()][3] == "a\nb"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("", "expected a JSON object"),
        ("[1]", "expected a JSON object"),
        ('{"text": "a"', "expected a JSON object"),
        ("[" * 100_000, "expected a JSON object"),
        ('{"texts": "a"}', "expected a str as 'text'"),
        ('{"text": null}', "expected a str as 'text'"),
        ('{"text": 1}', "expected a str as 'text'"),
        ('{"text": "\\ud800"}', "without lone surrogates"),
        ('{"text": "a", "translation": "b"}', "expected no key 'translation'"),
    ],
)
def test_a_line_that_is_wrong_is_named_before_anything_is_translated(
    translator, tmp_path, line, words
):
    (tmp_path / "in.jsonl").write_text('{"text": "a man"}\n' + line + "\n")
    calls = []
    with pytest.raises(ValueError, match=rf"in\.jsonl, line 2.*{words}"):
        translate_file(
            translator, tmp_path / "in.jsonl", tmp_path / "out.jsonl",
            progress=lambda done, total: calls.append(done),
        )  # fmt: skip
    assert names(tmp_path) == ["in.jsonl"] and calls == []


@pytest.mark.parametrize(
    ("source", "output", "column", "words"),
    [
        ("a.jsonl", "b.txt", None, "`output` must be of the kind"),
        ("a.txt", "b.parquet", None, "`output` must be of the kind"),
        ("a.txt", "b.txt", "text", "`text_column` must be given only"),
        ("a.jsonl", "b.jsonl", "translation", "`text_column` must not be"),
    ],
)
def test_kinds_that_do_not_fit_are_refused(tmp_path, source, output, column, words):
    with pytest.raises(ValueError, match=words):
        open_records(tmp_path / source, tmp_path / output, column)


# Parquet, where pyarrow is installed


@pytest.fixture
def parquet():
    return pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed.")


def test_parquet_without_pyarrow_names_the_command(tmp_path, monkeypatch):
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
def test_a_column_is_added_to_parquet(translator, parquet, tmp_path, kind):
    texts = ["a man", "", LONG, "a\ndog"]
    given = table(parquet, texts, kind)
    parquet.write_table(given, tmp_path / "in.parquet", row_group_size=3)
    assert translate_file(translator, tmp_path / "in.parquet", tmp_path / "out.parquet") == 1
    found = parquet.read_table(tmp_path / "out.parquet")
    assert found["translation"].to_pylist() == ["a man", "", None, "a\ndog"]
    assert found.drop_columns("translation").equals(given)
    assert names(tmp_path) == ["in.parquet", "out.parquet"]


@pytest.mark.parametrize("group", [12, 3 * WINDOW])
def test_parquet_is_resumed_and_sharded(translator, parquet, tmp_path, group):
    texts = [f"a dog {n}" for n in range(2 * WINDOW + 10)]
    source, whole, output = (tmp_path / f"{name}.parquet" for name in ("in", "whole", "out"))
    parquet.write_table(table(parquet, texts), source, row_group_size=group)
    translate_file(translator, source, whole)
    with pytest.raises(Interrupted):
        translate_file(translator, source, output, progress=stop_after(WINDOW))
    translate_file(translator, source, output, resume=True)
    assert output.read_bytes() == whole.read_bytes()
    found = []
    for index in (1, 2, 3):
        part = tmp_path / f"{index}.parquet"
        translate_file(translator, source, part, shard=(index, 3))
        rows = parquet.read_table(part).to_pylist()
        assert all(row["text"] == row["translation"] for row in rows)
        found += [row["id"] for row in rows]
    assert found == list(range(len(texts)))


def test_parquet_that_cannot_be_translated_is_refused(translator, parquet, tmp_path):
    source, output = tmp_path / "in.parquet", tmp_path / "out.parquet"
    source.write_bytes(b"PAR1 no more")
    with pytest.raises(ValueError, match=r"in\.parquet: expected Parquet"):
        translate_file(translator, source, output)
    parquet.write_table(table(parquet, ["a", None]), source)
    with pytest.raises(ValueError, match=r"row 2: expected a str as 'text'. Received: null"):
        translate_file(translator, source, output)
    for column, words in (
        ("texts", r"column of .*\['id', 'text', 'more'\]. Received: 'texts'"),
        ("id", "column of strings. Received: 'id' of int64"),
    ):
        with pytest.raises(ValueError, match=words):
            translate_file(translator, source, output, text_column=column)
    parquet.write_table(table(parquet, ["a"]).rename_columns(["translation", "text", "m"]), source)
    with pytest.raises(ValueError, match="expected no column 'translation'"):
        translate_file(translator, source, output)
    parquet.write_table(table(parquet, ["a"]).rename_columns(["text", "text", "m"]), source)
    with pytest.raises(ValueError, match=r"one column .*Received: 'text', the name of 2"):
        translate_file(translator, source, output)
    assert names(tmp_path) == ["in.parquet"]


def test_parquet_of_no_rows_has_none(translator, parquet, tmp_path):
    parquet.write_table(table(parquet, []), tmp_path / "in.parquet")
    translate_file(translator, tmp_path / "in.parquet", tmp_path / "out.parquet")
    assert parquet.read_table(tmp_path / "out.parquet").num_rows == 0


def test_a_journal_is_what_was_written(tmp_path):
    journal = Journal(tmp_path / "a.journal", {"a": [1, 2], "b": None})
    assert journal.read() is None
    journal.write(Place(1, 2, 3, "4"))
    assert journal.read() == Place(1, 2, 3, "4")


def test_an_actor_takes_a_thread_for_each_of_its_processors(translator, tmp_path):
    """Ray counts processors, and binds nobody to them."""
    limits, options = {"workers": 1, "seconds": None, "megabytes": None}, {}
    artifact, known = translator.manifest.folder, fingerprint(translator.manifest)
    actor = _Files(artifact, known, tmp_path, tmp_path, limits, options)
    session = actor._translator.session
    assert session.get_session_options().intra_op_num_threads == 1


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="Linux says what a descriptor is.")
def test_rows_are_on_the_disk_before_the_journal_tells_of_them(
    translator, lines, tmp_path, monkeypatch
):
    flushed, fsync, write = [0], os.fsync, Journal.write

    def watched(descriptor):
        if os.readlink(f"/proc/self/fd/{descriptor}").endswith("out.partial"):
            flushed.append(os.fstat(descriptor).st_size)
        fsync(descriptor)

    def told(journal, place):
        assert flushed[-1] >= place.bytes > 0
        write(journal, place)

    monkeypatch.setattr(os, "fsync", watched)
    monkeypatch.setattr(Journal, "write", told)
    translate_file(translator, lines[0], tmp_path / "out")


def test_a_shard_of_a_file_that_has_grown_is_another(translator, tmp_path):
    source, text = tmp_path / "in", "a man\n"
    source.write_text(text * 4 * WINDOW)
    with pytest.raises(Interrupted):
        translate_file(
            translator, source, tmp_path / "out", shard=(1, 2), progress=stop_after(WINDOW)
        )
    source.write_text(text * 8 * WINDOW)
    with pytest.raises(ValueError, match="`shard` must be what"):
        translate_file(translator, source, tmp_path / "out", shard=(1, 2), resume=True)


def test_what_was_begun_goes_on_where_it_was_computed(translator, lines, tmp_path, monkeypatch):
    with pytest.raises(Interrupted):
        translate_file(translator, lines[0], tmp_path / "out", progress=stop_after(WINDOW))
    monkeypatch.setattr(Translator, "providers", ["CUDAExecutionProvider"])
    with pytest.raises(ValueError, match="`providers` must be what"):
        translate_file(translator, lines[0], tmp_path / "out", resume=True)
