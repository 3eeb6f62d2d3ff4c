"""The quickstart's data: every text has one date, and no text or date is in two splits."""

import datetime
import sys
from collections import defaultdict

import pytest

pytest.importorskip("babel")

from keras_bahdanau_cli import quickstart_dates as dates
from keras_bahdanau_cli.quickstart_dates import date_pairs, date_texts, split_dates


def days_of(year):
    day = datetime.date(year, 1, 1)
    while day.year == year:
        yield day
        day += datetime.timedelta(days=1)


@pytest.mark.parametrize("year", [1900, 1999, 2024, 2100])
def test_every_text_has_one_date(year):
    meanings = defaultdict(set)
    for day in days_of(year):
        texts = date_texts(day)
        assert len(texts) > dates.TEXTS_PER_DAY
        for text in texts:
            assert str(year) in text
            meanings[text].add(day)
    assert {text: days for text, days in meanings.items() if len(days) > 1} == {}


def test_patterns_name_the_month_or_begin_with_the_year():
    for locale in dates.LOCALES:
        patterns = dates._patterns(locale)
        assert patterns
        assert all("MMM" in pattern or pattern.startswith("y") for pattern in patterns)
        assert all("yy" not in pattern for pattern in patterns), "two digits of a year are too few"


def test_custom_patterns_are_all_used():
    for locale, patterns in dates.LOCALES.items():
        assert set(patterns) <= set(dates._patterns(locale))


@pytest.mark.parametrize(
    "text",
    [
        "Tuesday, March 5, 2024",
        "5 March 2024",
        "Dienstag, 5. März 2024",
        "mardi 5 mars 2024",
        "5 de marzo de 2024",
        "вторник, 5 марта 2024 г.",
        "Τρίτη 5 Μαρτίου 2024",
        "2024年3月5日",
        "2024년 3월 5일 화요일",
        "5 मार्च 2024",
        "2024-03-05",
    ],
)
def test_known_formats_are_used(text):
    assert text in date_texts(datetime.date(2024, 3, 5))


@pytest.mark.parametrize("text", ["05.03.2024", "05/03/2024", "5. 3. 2024", "5.3.2024"])
def test_numeric_texts_that_begin_with_the_day_are_not_used(text):
    assert text not in date_texts(datetime.date(2024, 3, 5))


def test_pairs_are_unique_and_cover_all_years():
    pairs = date_pairs(5000, seed=0)
    assert len(pairs) == len({text for text, _ in pairs}) == 5000
    days = [datetime.date.fromisoformat(iso) for _, iso in pairs]
    assert all(dates.FIRST_DAY <= day <= dates.LAST_DAY for day in days)
    assert len({day.year for day in days}) == 201
    assert all(text in date_texts(day) for (text, _), day in zip(pairs[:50], days, strict=False))


def test_texts_have_single_spaces_only():
    for text, _ in date_pairs(2000, seed=1):
        assert text == " ".join(text.split())


def test_equal_seeds_give_equal_pairs():
    assert date_pairs(200, seed=7) == date_pairs(200, seed=7)
    assert date_pairs(200, seed=7) != date_pairs(200, seed=8)
    assert split_dates(50, 20, 20, seed=3) == split_dates(50, 20, 20, seed=3)


def test_excluded_dates_are_not_drawn():
    excluded = {iso for _, iso in date_pairs(3000, seed=0)}
    assert excluded.isdisjoint(iso for _, iso in date_pairs(3000, seed=1, exclude=excluded))


def test_split_shares_neither_text_nor_date():
    train, validation, test = parts = split_dates(4000, 500, 1000, seed=0)
    assert [len(part) for part in parts] == [4000, 500, 1000]
    for first, second in [(train, validation), (train, test), (validation, test)]:
        for column in (0, 1):
            assert {pair[column] for pair in first}.isdisjoint(pair[column] for pair in second)


def test_test_pairs_do_not_depend_on_the_other_sizes():
    assert split_dates(10, 5, 100, seed=0)[2] == split_dates(300, 50, 100, seed=0)[2]


@pytest.mark.parametrize("count", [-1, 10**9])
def test_impossible_count_is_refused(count):
    with pytest.raises(ValueError, match=f"`count` must be from 0 to .* Received: {count}"):
        date_pairs(count, seed=0)


def test_all_texts_of_a_single_day_can_be_drawn(monkeypatch):
    monkeypatch.setattr(dates, "LAST_DAY", dates.FIRST_DAY)
    assert len(date_pairs(dates.TEXTS_PER_DAY, seed=0)) == dates.TEXTS_PER_DAY


def test_missing_babel_names_the_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "babel", None)
    monkeypatch.setitem(sys.modules, "babel.dates", None)
    with pytest.raises(ImportError, match=r'pip install "keras-bahdanau\[cli\]"'):
        dates._babel_dates()
