"""Pictures that are drawn from the tables of the documentation."""

import re
import sys
from pathlib import Path

import pytest

from benchmarks import redraw

ROOT = Path(__file__).resolve().parents[2]
PICTURES = ROOT / "docs" / "pictures"
PAGES = [
    *ROOT.glob("*.md"),
    *(path for name in ("docs", "examples", "benchmarks") for path in (ROOT / name).rglob("*.md")),
]


@pytest.fixture
def _restore_imports(monkeypatch):
    """Forget the modules that the script imports from its folders."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = set(sys.modules)
    yield
    scripts = {"bench_large_corpus", "compare_transformer", "figures"}
    for name in {*scripts, "joined_sentences", "word_tokenizer"} - before:
        sys.modules.pop(name, None)


def test_tables_are_read():
    assert redraw.memory_by_pairs("## Preparing a large corpus", "MB")[1_000_000] == 523
    assert redraw.memory_by_pairs("## Reading a large corpus", "MB beyond imports") == {
        1_000_000: 106,
        12_000_000: 111,
    }
    assert redraw.transformers()["transformer of 128 units, int8"] == (261, 37.1)
    assert redraw.bleu_by_length()["RNNsearch-50"]["by_length"]["60+"] == {"bleu": 45.21}


@pytest.mark.usefixtures("_restore_imports")
def test_pictures_are_drawn(tmp_path):
    redraw.main([str(tmp_path)])
    names = {"memory.png", "transformer.png", "paper-figure2.png"}
    assert {path.name for path in tmp_path.iterdir()} == names


def test_every_picture_is_listed_with_its_command_and_shown():
    documented = re.findall(r"`([\w-]+\.(?:png|svg))`", (PICTURES / "README.md").read_text("utf-8"))
    names = sorted(path.name for path in PICTURES.iterdir() if path.suffix in (".png", ".svg"))
    assert sorted(set(documented)) == names
    pages = "".join(path.read_text("utf-8") for path in PAGES)
    assert [name for name in names if f"pictures/{name}" not in pages] == []


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_pictures_have_alternative_texts(path):
    text = path.read_text("utf-8")
    for alt in re.findall(r"!\[([^\]]*)\]\(", text):
        assert len(alt) > 10, alt
    for picture in re.findall(r"<img [^>]*>", text):
        assert re.search(r'alt="[^"]{10,}"', picture), picture
    for card in re.findall(r"^:img-top: .*\n(.*)$", text, re.M):
        assert card.startswith(":img-alt: "), card
