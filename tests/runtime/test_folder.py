"""Translation of several files into a folder."""

import bz2
import lzma
import os
from pathlib import Path

import pytest
from copy_artifact import make

from keras_bahdanau_runtime import Translator
from keras_bahdanau_runtime.bulk import file
from keras_bahdanau_runtime.bulk.file import FileResult, fingerprint
from keras_bahdanau_runtime.bulk.folder import find_files, translate_files
from keras_bahdanau_runtime.ray.bulk import _FileTranslator


@pytest.fixture(scope="module")
def translator(tmp_path_factory):
    return Translator(make(tmp_path_factory.mktemp("folder") / "artifact"), threads=1)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The current folder, with a folder `in` of two files."""
    monkeypatch.chdir(tmp_path)
    write("in/a.txt", "a man")
    write("in/b.jsonl", '{"text": "a dog"}')
    return tmp_path


def write(name, *lines):
    path = Path(name)
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines), "utf-8")


def find(*sources, output="out"):
    return [str(path) for path in find_files([Path(source) for source in sources], Path(output))]


def run(translator, **options):
    """Translate the folder; return the number of new rows, or the error, of each file."""
    files, output = find_files([Path("in")], Path("out")), Path("out")
    results = translate_files(translator, files, output, **options)
    return {
        path.name: result if isinstance(result, str) else result.new_rows
        for path, result in results.items()
    }


@pytest.mark.parametrize("sources", [["in"], ["in/*"], ["in/a.txt", "in", "./in/b.jsonl"]])
def test_folders_and_patterns_stand_for_their_files(folder, sources):
    write("in/.hidden", "x")
    write("in/more/c.txt", "x")
    names = ["in/a.txt", "in/b.jsonl", *(["in/more/c.txt"] if "*" in sources[0] else [])]
    assert find(*sources) == names


@pytest.mark.parametrize("sources", [["in", "in/out"], ["in/*"], ["in/**"], ["in/out/a.txt", "in"]])
def test_an_earlier_output_is_no_source(folder, translator, sources):
    output = Path("in/out")
    translate_files(translator, find_files([Path("in")], output), output)
    assert find(*sources, output="in/out") == ["in/a.txt", "in/b.jsonl"]


REFUSED = (
    "`sources` must be lines of text, .csv, .tsv, .jsonl or .parquet; .* .gz, .bz2, .xz or .zst; .*"
    r"Received: a\.txt\.lzma, b\.json\.gz, c\.parquet\.gz$"
)


@pytest.mark.parametrize(
    ("sources", "output", "words"),
    [
        (["in", "other/a.txt"], "out", "`sources` must be .* different names.*other/a.txt"),
        (["in", "in/a.txt.partial"], "out", "different names.*in/a.txt.partial"),
        (["in", "in/.a.txt.journal"], "out", "different names.*in/.a.txt.journal"),
        (["in/none.txt"], "out", "`sources` must be files.*in/none.txt', which does not exist"),
        (["in/*.csv"], "out", r"Pattern 'in/\*.csv' must match a file"),
        (["empty"], "out", "`sources` must contain a file. Received: empty"),
        (["a.txt.lzma", "b.json.gz", "c.parquet.gz", "d.xz"], "out", REFUSED),
        (["in"], "in", "`output` must be another folder than that of the sources"),
    ],
)
def test_files_without_an_output_of_their_own_are_refused(folder, sources, output, words):
    for name in sources:
        if not Path(name).exists() and name not in ("in/none.txt", "in/*.csv", "empty"):
            write(name, "x")
    Path("empty").mkdir()
    with pytest.raises(ValueError, match=words):
        find(*sources, output=output)


def test_only_new_and_changed_files_are_translated(folder, translator):
    assert run(translator) == {"a.txt": 1, "b.jsonl": 1}
    times = {path: path.stat().st_mtime_ns for path in Path("out").iterdir()}
    assert run(translator) == {"a.txt": 0, "b.jsonl": 0}
    assert {path: path.stat().st_mtime_ns for path in Path("out").iterdir()} == times
    write("in/a.txt", "a man", "a cat")
    write("in/c.txt", "a boat")
    assert run(translator) == {"a.txt": 2, "b.jsonl": 0, "c.txt": 1}
    assert Path("out/a.txt").read_text() == "a man\na cat\n"
    assert run(translator, truncate=True) == {"a.txt": 2, "b.jsonl": 1, "c.txt": 1}
    assert run(translator, truncate=True) == {"a.txt": 0, "b.jsonl": 0, "c.txt": 0}


def test_compressed_files_of_a_folder_have_compressed_outputs(folder, translator):
    Path("in/c.csv.bz2").write_bytes(bz2.compress(b"text\na dog\n"))
    Path("in/d.xz").write_bytes(lzma.compress(b"a cat\n"))
    assert run(translator) == {"a.txt": 1, "b.jsonl": 1, "c.csv.bz2": 1, "d.xz": 1}
    table = bz2.decompress(Path("out/c.csv.bz2").read_bytes())
    assert table == b"text,translation\na dog,a dog\n"
    assert lzma.decompress(Path("out/d.xz").read_bytes()) == b"a cat\n"


def test_another_artifact_translates_every_file_again(folder, translator, tmp_path_factory):
    run(translator)
    other = Translator(make(tmp_path_factory.mktemp("other") / "artifact", max_source_length=30))
    assert fingerprint(other.manifest) != fingerprint(translator.manifest)
    assert run(other) == {"a.txt": 1, "b.jsonl": 1}


def test_an_output_that_was_edited_or_is_unknown_is_never_replaced(folder, translator):
    run(translator)
    write("out/a.txt", "edited")
    Path("out/.b.jsonl.journal").unlink()
    for _ in range(2):
        results = run(translator)
        assert "a.txt', which has changed" in results["a.txt"]
        assert "exists without .b.jsonl.journal" in results["b.jsonl"]
        write("in/a.txt", "other")
        write("in/b.jsonl", '{"text": "other"}')
    assert Path("out/a.txt").read_text() == "edited\n"
    assert "a dog" in Path("out/b.jsonl").read_text()


def test_a_file_that_cannot_be_read_does_not_stop_the_others(folder, translator):
    write("in/a.csv", "text", '"a', 'b" c')
    failed = []
    write("in/b.jsonl", '{"text": "a dog"}', "{", '{"text": "a cat"}')
    results = run(translator, on_failed=lambda *row: failed.append(row))
    assert "a.csv, line 2: expected CSV" in results.pop("a.csv")
    assert results == {"a.txt": 1, "b.jsonl": 3}
    [(path, number, reason)] = failed
    assert (str(path), number) == ("in/b.jsonl", 2) and "expected a JSON object" in reason
    assert not list(Path("out").glob("*a.csv*"))


def test_failed_rows_of_complete_outputs_are_counted(folder, translator):
    write("in/b.jsonl", '{"text": 1}')
    for new_rows in (1, 0):
        files = find_files([Path("in/b.jsonl")], Path("out"))
        results = translate_files(translator, files, Path("out"))
        assert results == {Path("in/b.jsonl"): FileResult(1, 1, new_rows)}


def test_wrong_options_are_refused_before_the_first_file(folder, translator):
    for options, words in (
        ({"beam_size": 9}, "beam_size"),
        ({"text_column": ("a", "b")}, "`text_column` must be one column"),
        ({"output_format": file.OutputFormat(n_best=9)}, "`n_best`"),
    ):
        with pytest.raises(Exception, match=words):
            run(translator, **options)
        assert not Path("out").exists()


def interrupt(translator, **options):
    """Translate the folder and stop after the first window of a large file."""

    def progress(done, total):
        if done > file.WINDOW_SIZE:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(translator, progress=progress, **options)


def test_an_interrupted_file_is_continued_unless_options_changed(folder, translator):
    num_rows = file.WINDOW_SIZE + 10
    write("in/a.txt", *["a man"] * num_rows)
    interrupt(translator)
    assert sorted(os.listdir("out")) == ["a.txt.journal", "a.txt.partial"]
    assert run(translator) == {"a.txt": 10, "b.jsonl": 1}
    Path("out/a.txt").unlink()
    interrupt(translator)
    assert run(translator, truncate=True) == {"a.txt": num_rows, "b.jsonl": 1}
    assert Path("out/a.txt").read_text() == "a man\n" * num_rows


def test_a_changed_file_keeps_its_former_output_until_the_new_one_is_complete(folder, translator):
    run(translator)
    write("in/a.txt", *["a cat"] * (file.WINDOW_SIZE + 10))
    interrupt(translator)
    assert Path("out/a.txt").read_text() == "a man\n"
    assert run(translator)["a.txt"] == 10


def test_an_end_between_the_record_and_the_output_is_recovered(folder, translator, monkeypatch):
    run(translator)
    write("in/a.txt", "a cat")
    write_record = file.Journal.write

    def write_and_stop(journal, position, *finished):
        write_record(journal, position, *finished)
        if finished:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(file.Journal, "write", write_and_stop)
        run(translator)
    assert run(translator) == {"a.txt": 1, "b.jsonl": 0}
    assert Path("out/a.txt").read_text() == "a cat\n"


def test_an_actor_of_ray_replaces_outputs_like_a_single_process(folder, translator):
    manifest, output = translator.manifest, Path("out")
    limits = {"parallel_batches": 1, "timeout": None, "megabytes": None}
    output.mkdir()
    actor = _FileTranslator(manifest.folder, fingerprint(manifest), output, limits, {})
    row = {"path": "in/a.txt"}
    assert actor(row) == {"name": "a.txt", "reason": ""}
    write("in/a.txt", "a cat", "a dog " * 50)
    assert actor(row) == {"name": "a.txt", "reason": "1 rows could not be translated"}
    assert Path("out/a.txt").read_text() == "a cat\n\n"
    assert sorted(os.listdir("out")) == [".a.txt.journal", "a.txt"]
    write("out/a.txt", "edited")
    assert "which has changed" in actor(row)["reason"]
