"""Settings of a run that are chosen from its pairs."""

import dataclasses
import json

import pytest

from keras_bahdanau.data.choices import apply_choices
from keras_bahdanau.data.corpus import PreparedCorpus
from keras_bahdanau.data.preparation import prepare
from keras_bahdanau.training.options import CHOSEN_OPTIONS, TrainingOptions, upgrade_options
from keras_bahdanau.training.rules import RULES, Rule, TextFacts, choose_training
from keras_bahdanau.training.start import explain_run, start_run
from keras_bahdanau_runtime.text.tokenizer import Tokenizer

PHONEMES = [("read", "R EH1 D"), ("dear", "D IH1 R")] * 150
# Options that are only for models and texts of other kinds, or that stay as they are.
OPEN = {"every", "vocabulary_size", "joint", "normalization"}
OPEN |= {"source_tokenizer", "target_tokenizer", "copied_words"}


def options(**values):
    files = {"source": "a", "target": "b", "validation_source": "c", "validation_target": "d"}
    return TrainingOptions(**files | values)


def resolved(facts, **values):
    given = options(**values)
    return apply_choices(given, choose_training(given, facts))


def test_sentences_have_the_settings_that_multi30k_was_measured_with():
    chosen = resolved(TextFacts(29_000, "bpe", 30.0, 30))
    assert (chosen.units, chosen.embedding_dim, chosen.attention_units) == (256, 256, 256)
    assert chosen.dropouts_after() == (0.2, 0.3, 0.4)
    assert (chosen.batch_size, chosen.epochs, chosen.every) == (96, 7, None)
    assert (chosen.learning_rate, chosen.best_by, chosen.patience) == (0.004, "bleu", 0)


@pytest.mark.parametrize("kind", ["characters", "symbols", "words", "bytes", "other"])
@pytest.mark.parametrize("pairs", [1, 100, 8000, 100_000])
def test_every_text_has_a_rule_that_chooses_all_settings(kind, pairs):
    chosen = resolved(TextFacts(pairs, kind, 20.0, 30))
    names = set(CHOSEN_OPTIONS) - OPEN
    assert [name for name in names if getattr(chosen, name) is None] == []
    assert chosen.best_by == ("exact" if kind in ("characters", "symbols") else "bleu")


TEST_RULE = Rule(
    "texts", "always", lambda facts: True, {"batch_size": 10}, updates=95, validation_updates=20
)


@pytest.fixture
def rule(monkeypatch):
    """One rule for all texts: about 95 updates, and 20 between validations."""
    monkeypatch.setattr("keras_bahdanau.training.rules.RULES", (TEST_RULE,))


@pytest.mark.parametrize(
    ("pairs", "values", "epochs", "every"),
    [
        (190, {}, 4, 38),  # passes of 19 updates, so validations are after two of them
        (200, {}, 5, None),
        (2000, {}, 1, None),
        (191, {"accumulate": 2}, 10, 20),  # passes of 20 batches, so of 10 updates
        (200, {"batch_size": 50}, 25, 20),  # passes of 4 updates
        (200, {"batch_tokens": 120}, 3, None),  # 6 pairs, so passes of 34 updates
        (200, {"epochs": 2}, 2, None),
        (50, {"every": 7}, 20, 7),
        (50, {"updates": 14, "every": 7}, None, 7),
    ],
)
def test_passes_give_the_updates_of_the_rule(rule, pairs, values, epochs, every):
    chosen = resolved(TextFacts(pairs, "symbols", 20.0, 30), **values)
    assert (chosen.epochs, chosen.every) == (epochs, every)
    assert chosen.batch_size == values.get("batch_size", 10)


@pytest.mark.parametrize(("longest", "length"), [(9, 20), (70, 140)])
def test_short_texts_are_limited_to_twice_the_longest_one(longest, length):
    assert resolved(TextFacts(9, "symbols", 8.0, longest)).max_length == length
    assert resolved(TextFacts(9, "bpe", 8.0, longest)).max_length == 100


def test_given_values_win_and_are_named():
    given = options(units=7, dropout=0.1, readout_dropout=0.6, updates=90, every=9)
    choices = choose_training(given, TextFacts(9, "symbols", 8.0, 30))
    reasons = {choice.option: choice.reason for choice in choices}
    assert [name for name, reason in reasons.items() if reason == "given"] == [
        "units", "dropout", "readout_dropout", "updates", "every",
    ]  # fmt: skip
    # The rate of annotations is that of `dropout`, and the passes follow from the updates.
    assert {"annotation_dropout", "epochs"}.isdisjoint(reasons)
    assert apply_choices(given, choices).dropouts_after() == (0.1, 0.1, 0.6)


def test_a_model_to_start_with_keeps_its_architecture():
    chosen = resolved(TextFacts(9, "symbols", 8.0, 30), init="run")
    assert (chosen.units, chosen.dropout, chosen.readout_dropout) == (None, None, None)
    assert (chosen.best_by, chosen.batch_size) == ("exact", 32)


@pytest.mark.parametrize(("share", "copy"), [(None, False), (0.49, False), (0.5, True)])
def test_a_model_copies_if_half_of_the_target_characters_are_in_the_source(share, copy):
    assert resolved(TextFacts(9, "characters", 8.0, 30, copied=share)).copy is copy
    assert resolved(TextFacts(9, "characters", 8.0, 30, copied=share), copy=not copy).copy != copy
    assert resolved(TextFacts(9, "characters", 8.0, 30, copied=share), init="run").copy is None


@pytest.mark.parametrize("values", [{"sampled_softmax": 9}, {"model": "rnnencdec"}])
def test_a_run_that_cannot_copy_is_refused_with_copy_and_chooses_none(values):
    assert resolved(TextFacts(9, "characters", 8.0, 30, copied=1.0), **values).copy is False
    with pytest.raises(ValueError, match=f"`copy` must be left out with `{next(iter(values))}`"):
        options(copy=True, **values)


def test_the_first_rule_that_applies_is_chosen():
    chosen = [
        resolved(TextFacts(pairs, "characters", 8.0, 30)) for pairs in (2499, 2500, 19_999, 20_000)
    ]
    assert [each.batch_size for each in chosen] == [32, 96, 96, 96]
    assert [each.units for each in chosen] == [192, 192, 192, 256]
    assert RULES[-1].applies(TextFacts(1, "bpe", 2.0, 30))


@pytest.fixture
def files(tmp_path):
    """Options of a run on pronunciations."""
    text = "".join(f"{source}\t{target}\n" for source, target in PHONEMES)
    (tmp_path / "pairs.tsv").write_text(text)
    return {"source": tmp_path / "pairs.tsv", "validation_source": tmp_path / "pairs.tsv"}


def test_a_run_has_the_options_that_are_explained_and_is_resumed_with_them(tmp_path, files):
    given, reported = TrainingOptions(**files, units=5), []
    with start_run(given, tmp_path / "run", False, 0, reported.append) as texts:
        chosen = texts.options
    assert reported == [explain_run(given)]
    assert given.is_open and not chosen.is_open  # `prepare` does not read the texts again
    assert chosen.sides == ("characters", "symbols")
    assert (chosen.units, chosen.embedding_dim, chosen.best_by) == (5, 128, "exact")
    # The options that the run has recorded win over other choices of a later version.
    recorded = dataclasses.replace(chosen, embedding_dim=6, epochs=3)
    (tmp_path / "run" / "options.json").write_text(json.dumps(recorded.to_dict()))
    with start_run(given, tmp_path / "run", True, 0, reported.append) as texts:
        assert texts.options == recorded
    assert len(reported) == 1
    for name, value, message in (
        ("embedding_dim", 7, "`embedding_dim` was 6, is 7"),
        ("target_tokenizer", "bpe", "`target_tokenizer` was 'symbols', is 'bpe'"),
        ("units", 6, "`units` was 5, is 6"),
    ):
        other = dataclasses.replace(given, **{name: value})
        with (
            pytest.raises(ValueError, match=message),
            start_run(other, tmp_path / "run", True, 0),
        ):
            pytest.fail("the run has other options")


def test_the_settings_for_a_prepared_corpus_follow_from_its_tokenizer(tmp_path, files):
    sources, targets = zip(*PHONEMES, strict=True)
    for kind in ("characters", "bpe"):
        tokenizer = Tokenizer.train(sources, targets, 270, joint=False, kind=kind)
        prepare([files["source"]], None, tmp_path / kind, tokenizer)
        given = TrainingOptions(**files | {"source": tmp_path / kind})
        choices = {choice.option: choice.value for choice in explain_run(given)}
        assert choices["best_by"] == ("exact" if kind == "characters" else "bleu")
        assert "source_tokenizer" not in choices


def test_the_settings_for_a_side_from_a_file_follow_from_its_pieces(tmp_path, files):
    Tokenizer.train(["a"], ["a"], kind="bpe").save(tmp_path / "bpe.json")
    given = TrainingOptions(**files, target_tokenizer=tmp_path / "bpe.json")
    choices = {choice.option: choice for choice in explain_run(given)}
    assert choices["best_by"].value == "bleu"
    assert choices["source_tokenizer"].value == "characters"
    assert choices["target_tokenizer"].reason == "given"


def test_unknown_words_are_copied_by_a_model_that_copies_words(tmp_path, files):
    def copied(**values):
        choices = explain_run(TrainingOptions(**files | values))
        return {choice.option: (choice.value, choice.reason) for choice in choices}.get(
            "copied_words"
        )

    both = {"tokenizer": "symbols", "target_tokenizer": "words"}
    assert copied(copy=True, **both) == (16, "unknown words can be copied")
    assert copied(**both) is None
    assert copied(copy=True, copied_words=3, **both) == (3, "given")
    assert copied(copy=True, copied_words=0, **both) == (0, "given")
    # The sources are characters, none of which has to be unknown.
    assert copied(copy=True) is None
    with pytest.raises(ValueError, match="`copied_words` must be 0 or left out for `tokenizer` ch"):
        copied(copied_words=3)
    given = TrainingOptions(**files | both, copy=True)
    with start_run(given, tmp_path / "run", False, 0, lambda choices: None) as texts:
        assert texts.options.copied_words == 16
    assert PreparedCorpus(tmp_path / "run" / "corpus").tokenizer.copied_words == 16


def saved(**values):
    """Values of a file of an earlier version, whose defaults are those of its time."""
    former = {"tokenizer": "bpe", "vocabulary_size": 8000, "joint": True, "normalization": None}
    unset = dict.fromkeys(("dropout", "annotation_dropout", "readout_dropout", "every"))
    files = {"source": "a", "target": "b", "validation_source": ["c"], "validation_target": ["d"]}
    return files | former | unset | {"best_by": "bleu", "epochs": 7} | values


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, {"tokenizer": "bpe", "vocabulary_size": 8000, "joint": True, "dropout": 0.2}),
        ({"tokenizer": "words"}, {"tokenizer": "words", "joint": True, "normalization": "none"}),
        ({"tokenizer": "bytes"}, {"tokenizer": "bytes", "vocabulary_size": None}),
        ({"tokenizer": "a.model"}, {"sides": ("a.model", "a.model"), "joint": None}),
        ({"init": "run"}, {"tokenizer": "auto", "vocabulary_size": None, "dropout": None}),
        ({"dropout": 0.1}, {"dropout": 0.1, "annotation_dropout": None}),
        ({"readout_dropout": 0.1}, {"annotation_dropout": 0.3, "readout_dropout": 0.1}),
    ],
)
def test_open_options_of_earlier_runs_keep_their_meaning(values, expected):
    upgraded = TrainingOptions.from_values(upgrade_options(saved(**values)))
    assert {name: getattr(upgraded, name) for name in expected} == expected


def test_an_earlier_run_on_a_prepared_corpus_is_read(tmp_path):
    values = saved(source=str(tmp_path), target=None, validation_target=None)
    upgraded = TrainingOptions.from_values(upgrade_options(values))
    assert (upgraded.is_prepared, upgraded.sides) == (True, ("auto", "auto"))


def test_a_file_that_a_person_wrote_stays_as_it_is():
    assert upgrade_options({"dropout": None, "units": 3}) == {"dropout": None, "units": 3}
