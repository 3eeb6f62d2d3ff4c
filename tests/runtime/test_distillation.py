"""Texts for a student, translated by a teacher that copies its source."""

import functools
import json
import logging

import pytest
from copy_artifact import copy_graph, make

from keras_bahdanau_runtime import Translator
from keras_bahdanau_runtime.bulk.distillation import distill_texts
from keras_bahdanau_runtime.text.parallel import TextFormat
from keras_bahdanau_runtime.text.tokenizer import Tokenizer

LONG = "a dog on a boat " * 30  # more than the 40 tokens of the artifact


def make_teacher(path, **options):
    """Return a translator whose best hypothesis is the source; the second lacks its last token."""
    graph = copy_graph(second_score="Add (score, score)")
    for old, new in (
        ("int32 cut", "int32 last = {2}, int32 cut"),
        ("no_count = Mul (count, pad)", "no_count = Sub (count, last)"),
        ("empty_row = Mul (row, pad)", "empty_row = Identity (row)"),
    ):
        assert graph.count(old) == 1, old
        graph = graph.replace(old, new)
    search = {"class": "BeamSearch", "size": 2, "max_length": 40}
    return Translator(make(path, graph, search=search, **options), threads=1)


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
    return make_teacher(tmp_path_factory.mktemp("teacher") / "artifact")


def write(path, *lines):
    path.write_text("".join(f"{line}\n" for line in lines), "utf-8")
    return path


def test_pairs_of_all_files_are_written_without_rows_that_have_no_translation(
    teacher, tmp_path, caplog
):
    files = [write(tmp_path / "a", "a man", "", LONG), write(tmp_path / "b", "two dogs")]
    reports, failures = [], []
    with caplog.at_level(logging.WARNING, "keras_bahdanau_runtime"):
        source, target = distill_texts(
            teacher,
            files,
            tmp_path / "new" / "texts",
            progress=lambda done, total: reports.append((done, total)),
            on_failed=lambda path, row, reason: failures.append((path, row)),
        )
    assert source.read_text() == target.read_text() == "a man\ntwo dogs\n"
    assert reports[0] == (0, 4) and reports[-1] == (4, 4)
    assert failures == [(files[0], 3)]
    assert "Left out 2 of 4 rows" in caplog.text
    names = {path.name for path in source.parent.iterdir()}
    assert names == {"settings.json", "source.txt", "target.txt"}


def test_target_is_the_hypothesis_closest_to_the_reference(teacher, tmp_path):
    source = write(tmp_path / "a", "a man on a boat", "a man on a boat", "a man on a boat")
    reference = write(tmp_path / "r", "a man on a", "the man on a boat", "nothing of it")
    choose = functools.partial(distill_texts, teacher, [source], references=[reference])
    _, target = choose(folder=tmp_path / "two")
    best, cut = "a man on a boat", "a man on a"
    assert target.read_text().splitlines() == [cut, best, best]
    _, target = choose(folder=tmp_path / "one", n_best=1)
    assert target.read_text().splitlines() == [best, best, best]


def test_references_of_a_teacher_of_split_text_may_be_split(tmp_path):
    pieces = ["a@@", "b@@", "c@@", "d", "e", "f", "x"]
    Tokenizer.from_pieces(pieces).save(tmp_path / "tokenizer.json")
    document = json.loads((tmp_path / "tokenizer.json").read_text("utf-8"))
    teacher = make_teacher(tmp_path / "artifact", document=document)
    source = write(tmp_path / "a", "a@@ d b@@ e c@@ f x")
    reference = write(tmp_path / "r", "a@@ d b@@ e c@@ f")
    _, target = distill_texts(teacher, [source], tmp_path / "texts", [reference])
    assert target.read_text() == "ad be cf\n"


@pytest.mark.parametrize(("n_best", "first"), [(2, "a café on a"), (None, "a café on a boat")])
def test_pairs_of_a_file_are_translated_and_chosen_by_its_translations(
    teacher, tmp_path, caplog, n_best, first
):
    both = tmp_path / "a.csv"
    both.write_text('de,en\na café on a,a café on a boat\nbad\nx,"a\nman"\n', encoding="latin-1")
    source, target = distill_texts(
        teacher,
        [both],
        tmp_path / "texts",
        n_best=n_best,
        text_format=TextFormat(
            source_column="en", target_column="de", encoding="latin-1", on_bad_line="skip"
        ),
        pairs=True,
    )
    assert source.read_text("utf-8") == "a café on a boat\na man\n"
    assert target.read_text("utf-8").startswith(f"{first}\na ")
    assert "Left out 1 of 3 rows" in caplog.text
    names = {path.name for path in source.parent.iterdir()}
    assert names == {"settings.json", "source.txt", "target.txt"}


def test_sources_and_references_may_have_another_encoding(teacher, tmp_path):
    source, reference = tmp_path / "a", tmp_path / "r"
    source.write_text("a café on a boat\n", encoding="utf-16")
    reference.write_text("a café on a\n", encoding="utf-16")
    texts = TextFormat(encoding="utf-16")
    arguments = teacher, [source], tmp_path / "texts", [reference]
    for _ in range(2):  # the second call checks that the texts are those of the first
        paths = distill_texts(*arguments, text_format=texts)
        written = [path.read_text("utf-8") for path in paths]
        assert written == ["a café on a boat\n", "a café on a\n"]
    source.write_text("a boat\n", encoding="utf-16")
    with pytest.raises(ValueError, match="`sources` must be the one that"):
        distill_texts(*arguments, text_format=texts)


def test_references_must_be_left_out_for_pairs(teacher, tmp_path):
    paths = [tmp_path / "a.tsv"]
    with pytest.raises(ValueError, match="`references` must be left out with `pairs`"):
        distill_texts(teacher, paths, tmp_path / "texts", paths, pairs=True)


def test_interrupted_call_continues_where_it_was(teacher, tmp_path):
    files = [write(tmp_path / name, f"a {name} dog", "a man") for name in "ab"]
    texts = tmp_path / "texts"

    class Interrupted(Exception):
        pass

    def interrupt(done, total):
        if done > 2:
            raise Interrupted

    with pytest.raises(Interrupted):
        distill_texts(teacher, files, texts, progress=interrupt)
    names = {path.name for path in texts.iterdir()}
    assert names == {"settings.json", "translations-1.txt", ".translations-1.txt.journal"}
    reports = []
    source, target = distill_texts(
        teacher, files, texts, progress=lambda done, _: reports.append(done)
    )
    assert reports[0] == 2
    assert source.read_text() == target.read_text() == "a a dog\na man\na b dog\na man\n"
    names = {path.name for path in texts.iterdir()}
    assert names == {"settings.json", "source.txt", "target.txt"}


def test_texts_without_a_record_are_refused(teacher, tmp_path):
    source, texts = write(tmp_path / "a", "a man"), tmp_path / "texts"
    distill_texts(teacher, [source], texts)
    (texts / "settings.json").unlink()
    with pytest.raises(ValueError, match=r"has source\.txt but no settings\.json"):
        distill_texts(teacher, [source], texts)
    (texts / "settings.json").write_text("5")
    with pytest.raises(ValueError, match=r"settings\.json: expected a JSON object"):
        distill_texts(teacher, [source], texts)


def test_folder_of_other_arguments_is_refused(teacher, tmp_path):
    source, texts = write(tmp_path / "a", "a man"), tmp_path / "texts"
    distill_texts(teacher, [source], texts)
    with pytest.raises(ValueError, match=r"`references` must be the one that .*texts was started"):
        distill_texts(teacher, [source], texts, [source])
    write(source, "a dog")
    with pytest.raises(ValueError, match="`sources` must be the one that"):
        distill_texts(teacher, [source], texts)


@pytest.mark.parametrize(
    ("sources", "references", "n_best", "message"),
    [
        ([], [], None, "`sources` must contain a file"),
        (["a", "a"], ["a"], None, "one file for each of `sources`. Received: 1 for 2"),
        (["a"], ["b"], None, "a line for each line of `sources`. Received: 2 in .*b, 1 in .*a"),
        (["a"], [], 2, "`n_best` must be used with `references`"),
        (["a"], ["a"], 0, "`n_best` must be a positive integer"),
        (["a.jsonl"], [], None, "`sources` must be files of lines of text. Received: '.*jsonl'"),
        (["a"], ["a.parquet"], None, "`references` must be files of lines of text"),
        (["blank"], [], None, "`sources` must contain a sentence that the teacher can translate"),
    ],
)
def test_unusable_texts_are_refused(teacher, tmp_path, sources, references, n_best, message):
    write(tmp_path / "a", "a man")
    write(tmp_path / "b", "a man", "a dog")
    write(tmp_path / "blank", "")
    sources, references = ([tmp_path / name for name in names] for names in (sources, references))
    with pytest.raises(ValueError, match=message):
        distill_texts(teacher, sources, tmp_path / "texts", references, n_best)
    if sources != [tmp_path / "blank"]:
        assert not (tmp_path / "texts").exists()
