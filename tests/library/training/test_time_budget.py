"""Runs whose number of updates follows from a time."""

import dataclasses
import io
import logging
import re

import keras
import pytest
from rich.console import Console

from keras_bahdanau import TrainingOptions, train
from keras_bahdanau.training.options import CHOSEN_OPTIONS
from keras_bahdanau.training.rules import TextFacts, choose_training
from keras_bahdanau.training.start import stored_options
from keras_bahdanau.training.time_budget import Timing, fit_options, plan_updates

SOURCE = ["a b", "b a c", "c", "a c"] * 4


@pytest.fixture
def chosen(tmp_path):
    (tmp_path / "pairs.tsv").write_text("".join(f"{text}\t{text[::-1]}\n" for text in SOURCE))
    return TrainingOptions(
        source=tmp_path / "pairs.tsv", validation_source=tmp_path / "pairs.tsv",
        tokenizer="symbols", units=4, embedding_dim=4, attention_units=3, batch_size=8,
        max_length=8, minutes=0.0001, best_by="exact", patience=0,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("seconds", "timing", "updates_per_pass", "every", "expected"),
    [
        # 8.18 passes of 11 s in 90 s: 8 validations after 102 updates of 0.1 s each.
        (100, Timing(0.1, 1.0, 10), 100, None, (816, 102)),
        # Half a pass in 60 s: still 5 validations, each after 11 s of updates.
        (60, Timing(0.5, 1.0, 0), 240, None, (110, 22)),
        # 66 passes: 20 validations, each after 4 s of updates.
        (100, Timing(0.25, 1.0, 0), 2, None, (320, 16)),
        # Two validations of 10 s are a fifth of 100 s, and three would be more than a quarter.
        (100, Timing(1.0, 10.0, 0), 5, None, (80, 40)),
        # The user's interval of 30 updates and a validation take 4 s.
        (20, Timing(0.1, 1.0, 1), 100, 30, (120, 30)),
        # No time is left.
        (1, Timing(0.1, 1.0, 5), 100, None, (2, 2)),
        (1, Timing(0.1, 1.0, 5), 100, 30, (30, 30)),
    ],
)
def test_updates_and_validations_fit_into_the_time(
    seconds, timing, updates_per_pass, every, expected
):
    assert plan_updates(seconds, timing, updates_per_pass, every) == expected


def test_the_warmup_is_at_most_a_tenth_of_the_updates(chosen):
    timing = Timing(0.25, 1.0, 10.0)
    assert fit_options(chosen, 100.0, timing, 40).warmup == 20  # half a pass
    assert fit_options(chosen, 100.0, timing, 10_000).warmup == 34  # of 340 updates
    with_warmup = dataclasses.replace(chosen, warmup=7)
    assert fit_options(with_warmup, 100.0, timing, 40).warmup == 7


def test_a_run_says_and_records_its_updates_and_a_resumed_one_keeps_them(chosen, tmp_path, caplog):
    output = io.StringIO()
    best = train(chosen, tmp_path / "run", console=Console(file=output))
    assert re.match(
        r"In 0\.0001 minutes: 2 updates of \d+\.\d{3} s \(1\.0 passes\), and 1 validation of "
        r"\d+\.\d s\.\n",
        output.getvalue(),
    ), output.getvalue()
    recorded = TrainingOptions.from_file(best.parent / "options.json")
    assert (recorded.minutes, recorded.updates, recorded.every) == (None, 2, 2)
    optimizer = keras.saving.load_model(best.parent / "last.keras").optimizer
    assert optimizer.get_config()["learning_rate"]["config"]["updates"] == 2
    longer = dataclasses.replace(chosen, minutes=5)
    assert stored_options(longer, best.parent).updates == 2
    with caplog.at_level(logging.WARNING):
        assert train(longer, best.parent, resume=True, verbose=False) == best
    assert "is finished at update 2" in caplog.text


def test_epochs_are_not_chosen_for_a_time():
    open_options = TrainingOptions("a.tsv", validation_source="b.tsv", minutes=10)
    for kind in ("bpe", "characters"):
        choices = choose_training(open_options, TextFacts(5000, kind, 20.0, 30))
        names = {choice.option for choice in choices}
        assert "minutes" in names and not {"epochs", "every"} & names
        assert names <= {*CHOSEN_OPTIONS, "minutes"}


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"epochs": 3}, "`minutes` and `epochs` must not be given together"),
        ({"updates": 4, "every": 2}, "`minutes` and `updates` must not be given together"),
        ({"devices": 2}, "`minutes` must be left out with several `devices`"),
    ],
)
def test_options_that_contradict_a_time_are_refused(more, words):
    with pytest.raises(ValueError, match=words):
        TrainingOptions("a.tsv", validation_source="b.tsv", minutes=10, **more)
