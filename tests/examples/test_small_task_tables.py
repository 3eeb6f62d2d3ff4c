"""Tables and curves of the benchmark of small tasks, from rows with round numbers."""

import json
import sys
from xml.etree import ElementTree

import pytest
from pages import ROOT

sys.path.append(str(ROOT / "benchmarks"))

import draw_small_tasks
from bench_small_tasks import LOW, Training, task_files


def row(task, pairs, wrong, seed=None, seeds=None, **changes):
    errors = {
        "word_errors": wrong, "word_errors_interval": [wrong - 1, wrong + 1],
        "symbol_errors": wrong / 10,
    }  # fmt: skip
    return {
        "task": task, "pairs": pairs, "seed": seed, "seeds": seeds, "flags": [], "seconds": 90,
        "first_progress": 9.6, "errors": {"test": errors}, **changes,
    }  # fmt: skip


def figures(*rows):
    return draw_small_tasks.Figures(rows, "test")


def test_a_row_has_the_mean_of_the_seeds_with_all_pairs():
    table = draw_small_tasks.task_table(
        figures(
            row("bul", 8000, 20.0),
            row("bul", 8000, 18.0, seed=1, seconds=150),
            row("bul", 500, 70.0),
            row("bul", 8000, 16.0, seeds=5),
            row("bul", 8000, 1.0, flags=["--epochs", "1"]),
            row("kor", 8000, 30.0, seconds=50),
        ),
        ["bul", "kor", "hun"],
    )
    assert table.splitlines()[0].split(" | ")[2:4] == ["wrong, %", "5 models"]
    assert table.splitlines()[2:] == [
        "| Bulgarian | 8,000 | 19.0, mean of 2 seeds | 16.0 | 18.3 | 1.90 | 2.0 min | 10 s |",
        "| Korean | 8,000 | 30.0 (29.0 to 31.0) |  | 16.3 | 3.00 | 50 s | 10 s |",
    ]


def test_seconds_that_were_not_recorded_are_left_out():
    busy = row("bul", 8000, 20.0, seconds=None, first_progress=None)
    [line] = draw_small_tasks.task_table(figures(busy), ["bul"]).splitlines()[2:]
    assert line.endswith("| 18.3 | 2.00 |  |  |")


def test_the_summary_has_only_groups_that_are_complete():
    errors = dict(zip(LOW, (10.0, 20.0, 30.0, 40.0, 50.0), strict=True))
    rows = [row(task, 800, wrong) for task, wrong in errors.items()]
    table = draw_small_tasks.summary_table(figures(*rows, row("bul", 8000, 20.0)))
    assert table.splitlines()[2:] == [
        "| pronunciation of words, few pairs | 5 languages | 800 | 30.0 % (10.0 to 50.0) | 3.0 % "
        "| 1.5 min |"
    ]


def test_a_curve_joins_the_sizes_of_a_language(tmp_path):
    rows = [row("bul", 500, 70.0), row("bul", 8000, 20.0), row("bul", 8000, 10.0, seed=1)]
    rows += [row("turkish-high", 10000, 5.0), row("turkish-medium", 1000, 25.0)]
    curves = draw_small_tasks.curves(figures(*rows, row("kor", 8000, 30.0)))
    assert curves == {
        "Bulgarian": {500: 70.0, 8000: 15.0},
        "Turkish, inflection": {1000: 25.0, 10000: 5.0},
    }
    draw_small_tasks.draw(curves, tmp_path / "curve.svg")
    assert ElementTree.parse(tmp_path / "curve.svg").getroot().tag.endswith("svg")


def test_blocks_of_a_page_are_replaced(tmp_path, monkeypatch):
    monkeypatch.setattr(draw_small_tasks, "ROOT", tmp_path)
    page = "a\n<!-- small tasks: summary -->\nold\n<!-- end of small tasks -->\nb\n"
    (tmp_path / "page.md").write_text(page, "utf-8")
    for _ in range(2):
        draw_small_tasks.fill("page.md", {"summary": "| new |\n"})
    filled = (tmp_path / "page.md").read_text("utf-8")
    assert filled == page.replace("\nold\n", "\n\n| new |\n\n")


def test_tables_of_the_documentation_are_those_of_the_kept_rows():
    if not draw_small_tasks.RESULTS.exists():
        pytest.skip("benchmarks/small_tasks.json is absent: the small tasks are not measured yet.")
    kept = json.loads(draw_small_tasks.RESULTS.read_text("utf-8"))
    tables = draw_small_tasks.blocks(draw_small_tasks.Figures(kept["rows"], kept["set"]), None)
    text = "\n".join((ROOT / page).read_text("utf-8") for page in draw_small_tasks.PAGES)
    for name, table in tables.items():
        assert table in text, f"Run benchmarks/draw_small_tasks.py: {name} is not current."


def test_files_and_folders_of_trainings():
    assert task_files("ady")[0].name == "ady_low_train.tsv"
    assert task_files("bul")[2].name == "bul_test.tsv"
    assert task_files("turkish-high")[0].name == "turkish-train-high.tsv"
    names = {
        Training("bul").name, Training("bul", 500).name, Training("bul", 500, 1).name,
        Training("bul", 500, 1, 5).name, Training("bul", flags=("--epochs", "1")).name,
    }  # fmt: skip
    assert len(names) == 5 and "bul" in names
