"""The start of a training run, which needs no Keras."""

import dataclasses
import json
from pathlib import Path

import pytest

from keras_bahdanau.data.corpus import PreparedCorpus
from keras_bahdanau.data.preparation import prepare
from keras_bahdanau.launcher import launched_rank
from keras_bahdanau.training.options import TrainingOptions
from keras_bahdanau.training.start import RunTexts, record_texts, start_run
from keras_bahdanau_cli.export import ExportedRuns, _calibration_pairs
from keras_bahdanau_runtime.text.parallel import TextFormat
from keras_bahdanau_runtime.text.tokenizer import Tokenizer

PIECES = {"tokenizer": "bpe", "vocabulary_size": 300}


@pytest.fixture
def options(tmp_path):
    """The options of a run with byte pairs of two pairs, one of them in two Unicode forms."""
    for name, text in (("en", "a\ncafe\u0301\n"), ("de", "x\ncaf\u00e9\n")):
        (tmp_path / name).write_text(text, encoding="utf-8")

    def options(**values):
        source, target = tmp_path / "en", tmp_path / "de"
        held_out = {"validation_source": source, "validation_target": target}
        return TrainingOptions(source, target, **(PIECES | held_out | values))

    return options


def test_texts_are_prepared_as_the_options_say(tmp_path, options):
    chosen, run = options(normalization="nfc", joint=False), tmp_path / "run"
    with start_run(chosen, run, resume=False, rank=0) as texts:
        assert texts.held_out == [(["a", "cafe\u0301"], ["x", "caf\u00e9"])]
        with (
            pytest.raises(ValueError, match="that no other process trains in"),
            start_run(chosen, run, resume=True, rank=0),
        ):
            pytest.fail("another process must not begin")
    tokenizer = PreparedCorpus(run / "corpus").tokenizer
    assert (tokenizer.normalization, tokenizer.joint) == ("nfc", False)
    assert tokenizer.encode_source("cafe\u0301") == tokenizer.encode_source("caf\u00e9")


def test_texts_with_both_sides_are_prepared_and_held_out(tmp_path, caplog):
    for name, text in (("1.tsv", "a\tx\n"), ("2.tsv", "b\ty\nc\t\n")):
        (tmp_path / name).write_text(text)
    options = TrainingOptions(
        tmp_path / "[12].tsv",
        validation_source=[tmp_path / "1.tsv", tmp_path / "2.tsv"],
        vocabulary_size=300,
    )
    run = tmp_path / "run"
    with start_run(options, run, resume=False, rank=0) as texts:
        assert texts.held_out == [(["a"], ["x"]), (["b"], ["y"])]
    assert PreparedCorpus(run / "corpus").pairs == 2
    assert "Dropped 1 of 3 pairs: one side is blank." in caplog.text
    (run / "options.json").write_text(json.dumps(options.to_dict()))
    (run / "texts.json").write_text(json.dumps(RunTexts(options, run).hashes))
    assert TrainingOptions.from_file(run / "options.json") == options
    with start_run(options, run, resume=True, rank=0):
        pass
    (tmp_path / "2.tsv").unlink()
    fewer = dataclasses.replace(options, validation_source=[tmp_path / "1.tsv"])
    (run / "options.json").write_text(json.dumps(fewer.to_dict()))
    with (
        pytest.raises(ValueError, match=r"must name the texts .* Received: `source` 2, `valid"),
        start_run(fewer, run, resume=True, rank=0),
    ):
        pytest.fail("a changed text must not be used")


def test_the_held_out_pairs_of_a_run_are_found_from_any_folder(tmp_path, monkeypatch, capsys):
    trained, moved, other = (tmp_path / name for name in ("trained", "moved", "other"))
    for folder in (trained, other):
        folder.mkdir()
    (trained / "dev1.tsv").write_text("a\tx\n")
    options = TrainingOptions("dev1.tsv", validation_source="dev?.tsv", vocabulary_size=300)
    run = trained / "run"
    monkeypatch.chdir(trained)
    with start_run(options, run, resume=False, rank=0) as texts:
        record_texts(texts)
        (run / "options.json").write_text(json.dumps(texts.options.to_dict()))
        chosen = texts.options

    def pairs(run):
        return _calibration_pairs(ExportedRuns(run=run, path=Path("new")), TextFormat())

    monkeypatch.chdir(other)
    assert pairs(run) == [("a", "x")] and not capsys.readouterr().err
    trained.rename(moved)  # and the run is found with its texts, and resumed, in the new folder
    assert pairs(moved / "run") == []
    assert f"is missing: {trained}/dev?.tsv, dev?.tsv. Pass pairs" in one_line(capsys)
    monkeypatch.chdir(moved)
    assert pairs(Path("run")) == [("a", "x")]
    with start_run(chosen, moved / "run", resume=True, rank=0):
        pass
    (moved / "dev1.tsv").write_text("no second column\n")
    assert pairs(Path("run")) == [] and "cannot be read: dev1.tsv, line 1" in one_line(capsys)
    (moved / "run" / "texts.json").unlink()  # as in a run of an earlier version
    (moved / "dev1.tsv").write_text("b\ty\n")
    assert pairs(Path("run")) == [("b", "y")]


def one_line(capsys):
    return " ".join(capsys.readouterr().err.split())


def test_columns_of_the_options_are_read(tmp_path):
    (tmp_path / "a.csv").write_text("en,de\nc,\u00e9\n", "latin-1")
    options = TrainingOptions(
        tmp_path / "a.csv",
        validation_source=tmp_path / "a.csv",
        source_column="de",
        target_column="en",
        encoding="latin-1",
        vocabulary_size=300,
    )
    with start_run(options, tmp_path / "run", resume=False, rank=0) as texts:
        assert texts.held_out == [(["\u00e9"], ["c"])]
    assert PreparedCorpus(tmp_path / "run" / "corpus").pairs == 1


@pytest.mark.parametrize("joint", [True, False])
def test_inflections_are_prepared_with_tags_as_symbols(tmp_path, joint):
    (tmp_path / "a.tsv").write_text("talo\ttalot\tN;PL\ntalo\ttalo\tN;SG\n")
    files = {"source": tmp_path / "a.tsv", "validation_source": tmp_path / "a.tsv"}
    columns = {"source_column": ("1", "3"), "target_column": "2"}
    options = TrainingOptions(**files, **columns, tokenizer="characters", joint=joint)
    assert TrainingOptions.from_values(json.loads(json.dumps(options.to_dict()))) == options
    with start_run(options, tmp_path / "run", resume=False, rank=0) as texts:
        assert texts.held_out == [(["talo\tN;PL", "talo\tN;SG"], ["talot", "talo"])]
    corpus = PreparedCorpus(tmp_path / "run" / "corpus")
    expected = ["t", "a", "l", "o", "\tN", "<unk>", "</s>"]  # the other tags occur only once
    assert corpus.tokenizer.source_tokens("talo\tN;PL") == expected
    assert sorted(corpus.lengths(0).tolist()) == [[7, 5], [7, 6]]
    # A tokenizer of one column cannot encode several.
    one = TextFormat(source_column="1", target_column="2")
    Tokenizer.train(["talo"], ["talo"]).save(tmp_path / "tokenizer.json")
    for values in (
        {"tokenizer": str(tmp_path / "tokenizer.json")},
        {"source": prepare([tmp_path / "a.tsv"], None, tmp_path / "corpus", text_format=one)},
    ):
        refused = TrainingOptions(**{**files, **columns, **values})
        with (
            pytest.raises(ValueError, match="`source_column` must be one column for a tokenizer"),
            start_run(refused, tmp_path / "other", resume=False, rank=0),
        ):
            pytest.fail("the tokenizer has no symbols")


@pytest.mark.parametrize(("devices", "rank"), [(2, 0), (2, 1), (1, 1)])
def test_several_processes_prepare_nothing_before_they_have_met(tmp_path, options, devices, rank):
    with start_run(options(devices=devices), tmp_path / "run", resume=False, rank=rank) as texts:
        assert len(texts.held_out) == 1
        assert not (tmp_path / "run" / "corpus").exists()


def test_an_unknown_normalization_is_refused(options):
    with pytest.raises(ValueError, match="`normalization` must be one of 'none', 'nfc'"):
        options(normalization="NFC")


def test_decomposed_sources_need_a_vocabulary_of_their_own(options):
    assert options(normalization="nfd", joint=False).normalization == "nfd"
    with pytest.raises(ValueError, match="`joint` must be False for nfd"):
        options(normalization="nfd", joint=True)


def test_normalization_must_be_left_out_for_a_prepared_corpus(tmp_path):
    with pytest.raises(ValueError, match="`normalization` must be left out for a prepared corpus"):
        TrainingOptions(tmp_path, validation_source="a", validation_target="b", normalization="nfc")


@pytest.fixture
def files(tmp_path):
    """Files of a tokenizer of byte pairs and of one of words, as options of the two sides."""
    for name, kind in (("source", "bpe"), ("target", "words")):
        tokenizer = Tokenizer.train(["a b"], ["x"], kind=kind, min_frequency=1)
        tokenizer.save(tmp_path / f"{name}.json")
    return {f"{side}_tokenizer": tmp_path / f"{side}.json" for side in ("source", "target")}


@pytest.mark.parametrize("general", ["source_tokenizer", "target_tokenizer"])
def test_texts_are_encoded_with_tokenizers_from_files(tmp_path, options, files, general):
    values = dict(files, vocabulary_size=None, tokenizer=files[general])
    values[general] = None  # which leaves the side to `tokenizer`
    with start_run(options(**values), tmp_path / "run", resume=False, rank=0):
        pass
    learned = PreparedCorpus(tmp_path / "run" / "corpus").tokenizer
    assert learned == Tokenizer.combine(*(Tokenizer.load(path) for path in files.values()))


def test_one_side_has_a_tokenizer_from_a_file_and_the_other_learns_symbols(
    tmp_path, options, files
):
    chosen = options(source_tokenizer=files["source_tokenizer"], target_tokenizer="symbols")
    run = tmp_path / "run"
    for resume in (False, True):  # an interrupted start finds its corpus
        with start_run(chosen, run, resume=resume, rank=0):
            pass
    corpus = PreparedCorpus(run / "corpus")
    loaded = Tokenizer.load(files["source_tokenizer"])
    assert corpus.tokenizer.encode_source("a b") == loaded.encode_source("a b")
    # Neither symbol of the targets occurs twice, so both are unknown.
    assert corpus.tokenizer.encode_target("x") == [1, 3]
    assert corpus.manifest["options"]["kind"] == [None, "symbols"]
    other = Tokenizer.train(["b"], ["b"])
    other.save(files["source_tokenizer"])
    with (
        pytest.raises(ValueError, match="`tokenizer` is a different one"),
        start_run(chosen, run, resume=True, rank=0),
    ):
        pytest.fail("the file has changed")


@pytest.mark.parametrize("kind", ["words", "characters"])
def test_the_kind_of_pieces_is_learned_and_recorded(tmp_path, options, kind):
    with start_run(options(tokenizer=kind, joint=True), tmp_path / "run", resume=False, rank=0):
        pass
    tokenizer = PreparedCorpus(tmp_path / "run" / "corpus").tokenizer
    assert json.loads(tokenizer.source.to_str())["model"]["type"] == "WordLevel"
    with (
        pytest.raises(ValueError, match=f"`kind` was '{kind}', is None"),
        start_run(options(), tmp_path / "run", resume=False, rank=0),
    ):
        pytest.fail("the corpus has other pieces")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"tokenizer": "words", "target": None}, "`tokenizer` must be left out for a prepared"),
        ({"tokenizer": "words", "init": "run"}, "`tokenizer` must be left out for `init`"),
        (
            {"tokenizer": "a.model", "joint": False},
            "`joint` must be left out for the tokenizer a.m",
        ),
        ({"tokenizer": "bytes", "vocabulary_size": 300}, "must be left out for `tokenizer` bytes"),
        ({"target_tokenizer": "a", "init": "run"}, "`target_tokenizer` must be left out for `in"),
        ({"target_tokenizer": "a", "joint": True}, "`joint` must be False for sides with diff"),
        (
            {"tokenizer": "a.model", "copied_words": 9},
            "`copied_words` must be left out for the tokenizer a.m",
        ),
        (
            {"tokenizer": "words", "source_tokenizer": "bpe", "copied_words": 9},
            "`copied_words` must be 0 or left out for `tokenizer` bpe.* Received: 9",
        ),
        (
            {"tokenizer": "words", "copied_words": 1025},
            "`copied_words` must be an int .* at most 1024. Received",
        ),
    ],
)
def test_options_of_a_tokenizer_that_is_not_learned_are_refused(tmp_path, values, message):
    files = {"source": tmp_path, "target": "a", "validation_source": "a", "validation_target": "b"}
    with pytest.raises(ValueError, match=message):
        TrainingOptions(**(files | values))


@pytest.mark.parametrize(
    ("variables", "backend", "process"),
    [
        ({}, None, (0, 1)),
        ({"RANK": "1", "WORLD_SIZE": "2"}, None, (1, 2)),
        ({"RANK": "1", "WORLD_SIZE": "2"}, "torch", (1, 2)),
        ({"RANK": "1", "WORLD_SIZE": "2"}, "jax", (0, 1)),
        ({"RANK": "1", "WORLD_SIZE": "2"}, "tensorflow", (0, 1)),
        (
            {"KERAS_DISTRIBUTION_PROCESS_ID": "2", "KERAS_DISTRIBUTION_NUM_PROCESSES": "3"},
            None,
            (2, 3),
        ),
    ],
)
def test_process_is_what_the_launcher_of_the_backend_says(monkeypatch, variables, backend, process):
    for name in ("RANK", "WORLD_SIZE", "KERAS_DISTRIBUTION_NUM_PROCESSES"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert launched_rank(backend) == process
