"""The reference of the site is complete. It is compared by parsing, without Sphinx."""

import dataclasses
import importlib
import re
import runpy
import sys

import pytest
from documented_names import ROOT, TREES, definition, public_names

from keras_bahdanau_runtime import signature
from keras_bahdanau_runtime.service import messages
from keras_bahdanau_runtime.service.errors import KINDS
from keras_bahdanau_runtime.service.http import create_app
from keras_bahdanau_runtime.service.settings import Limits, Settings
from keras_bahdanau_runtime.text.parallel import TextFormat

REFERENCE = ROOT / "docs" / "reference"
COMMENT = re.compile(r"^<!-- generate: (\w+) ?(.*) -->$", re.M)


@pytest.fixture(scope="module", autouse=True)
def extensions():
    """Make the extensions and scripts of the site importable."""
    folders = [str(ROOT / "docs"), str(ROOT / "docs" / "_extensions")]
    sys.path[:0] = folders
    yield
    for folder in folders:
        sys.path.remove(folder)


def page(name):
    return (REFERENCE / f"{name}.md").read_text("utf-8")


def rows(text, columns=1):
    """The first columns of the rows of all tables in a page, without their headings."""
    lines = re.findall(r"^\| (.*) \|$", re.sub(r"^\|.*\n\|---.*\n", "", text, flags=re.M), re.M)
    cells = [[cell.strip(" `") for cell in line.split(" | ")] for line in lines]
    return [tuple(row[:columns]) if columns > 1 else row[0] for row in cells]


def section(text, heading):
    [part] = re.findall(rf"^#+ {heading}\n([\s\S]*?)(?=^#|\Z)", text, re.M)
    return part


def documented_names():
    """The dotted names for which the pages of the reference have an entry."""
    names = []
    for path in sorted(REFERENCE.glob("*.md")):
        for kind, arguments in COMMENT.findall(path.read_text("utf-8")):
            if kind == "namespace":
                module, *chosen = arguments.split()
                all_names = [n for n in public_names() if n.rpartition(".")[0] == module]
                names += [f"{module}.{name}" for name in chosen] or all_names
    return names


def test_every_public_name_has_one_entry():
    names = documented_names()
    assert sorted(set(names)) == sorted(names)
    entries = {id(definition(name)) for name in names}
    missing = [name for name in public_names() if id(definition(name)) not in entries]
    modules = {id(tree) for tree in TREES.values()}
    assert [name for name in missing if id(definition(name)) not in modules] == []


def test_namespaces_and_commands_are_generated():
    kinds = [
        kind for path in REFERENCE.glob("*.md") for kind, _ in COMMENT.findall(page(path.stem))
    ]
    assert {*kinds} == {"namespace", "options", "settings", "shortcuts", "statuses", "commands"}
    assert kinds.count("commands") == 1


def test_signatures_are_those_of_the_constructors():
    attribute = importlib.import_module("docstrings").class_attribute
    layers = importlib.import_module("keras_bahdanau.layers")
    assert attribute(layers.BahdanauAttention, "__new__", None) is None
    assert attribute(layers.BahdanauAttention, "__init__") is layers.BahdanauAttention.__init__
    assert attribute(layers.Memory, "__new__") is layers.Memory.__new__


def test_no_public_name_is_an_ignored_reference(monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    settings = runpy.run_path(str(ROOT / "docs" / "conf.py"))
    ignored = [name for _, name in settings["nitpick_ignore"]]
    patterns = [pattern for _, pattern in settings["nitpick_ignore_regex"]]
    names = ["Translator", "keras_bahdanau_runtime.translator.Translator", *public_names()]
    assert [n for n in names if n in ignored or any(re.fullmatch(p, n) for p in patterns)] == []
    assert [name for name in ignored if definition(name) is None] == []


def test_start_page_shows_the_short_example_of_the_readme():
    example = re.findall(
        r"^```python\n([\s\S]*?)^```$", (ROOT / "README.md").read_text("utf-8"), re.M
    )[0]
    assert "<!-- generate: example -->" in (ROOT / "docs" / "index.md").read_text("utf-8")
    assert "model.fit(" in example
    assert len([line for line in example.split("\n") if line.strip()]) <= 12


def test_all_endpoints_are_listed():
    text = page("endpoints")
    routes = {
        (method, route.path)
        for route in create_app(fake_repository()).routes
        for method in route.methods - {"HEAD"}
    }
    documented = rows(section(text, "HTTP"), columns=2)
    assert set(documented) == routes and len(documented) == len(routes)
    assert rows(section(text, "gRPC")) == list(messages.METHODS)
    statuses = [(kind, str(status.http), status.grpc) for kind, status in KINDS.items()]
    assert [
        tuple(c.strip("`") for c in row) for row in rows(section(text, "Errors"), 3)
    ] == statuses


def fake_repository():
    """A repository for endpoints that are not called."""


def test_all_settings_of_the_service_are_listed():
    text = page("service").partition("## Signals")[0]
    for kind in (Settings, Limits):
        assert f"<!-- generate: options {kind.__module__}.{kind.__name__} -->" in text
        for field in dataclasses.fields(kind):
            assert "help" in field.metadata or f"`{field.name}`" in text


def test_all_files_of_an_artifact_are_listed():
    names = {
        name
        for key, value in vars(signature).items()
        if key.endswith(("_FILE", "_FILES", "_FOLDER"))
        for name in ([value] if isinstance(value, str) else value)
    }
    documented = {name.strip("/") for row in rows(page("artifact")) for name in row.split("`, `")}
    assert names <= documented


def test_all_options_of_a_graph_are_listed():
    names = re.findall(r"`(\w+)`", section(page("artifact"), "Options of model.onnx"))
    assert set(signature.OPTIONS) - set(signature.SETTINGS) <= set(names)
    assert "<!-- generate: settings -->" in section(page("runtime"), "Settings of a search")


@pytest.mark.parametrize(
    "docstring, expected",
    [
        ("Return `x`.", "Return ``x``."),
        ("Two `Layer`s.", r"Two :py:obj:`Layer <a.Layer>`\ s."),
        ("Weights `W` * `v_`, and a_ b.", r"Weights ``W`` \* ``v_``, and a\_ b."),
        ("Text:\n\n    a = b\n\nMore.", "Text:\n\n\n.. code-block:: text\n\n    a = b\n\n\nMore."),
        ("Args:\n    x: Int.\n\n        More.", "Args:\n    x: Int.\n\n        More."),
        ("Returns:\n    Pair:\n    two.", ":returns: Pair:\n    two.\n"),
        ("Raises:\n    ValueError: If `x`.", ":raises ValueError: If ``x``.\n"),
        ("Raises:\n    As `f`.", ":raises: As ``f``.\n"),
        ("Call arguments: see `f`.\n    More.", "**Call arguments:** see ``f``. More.\n"),
        ("```python\nf(`)\n```", ".. code-block:: python\n\n    f(`)\n"),
        ("Example:\n\n>>> f(*x)\n3", "Example:\n\n>>> f(*x)\n3"),
    ],
)  # fmt: skip
def test_docstrings_are_converted(docstring, expected):
    to_rst = importlib.import_module("docstrings").to_rst
    assert "\n".join(to_rst(docstring.split("\n"), {"Layer": "a.Layer"})) == expected


def test_fields_with_a_help_text_are_arguments():
    with_options = importlib.import_module("docstrings").with_options
    lines = with_options(["Format.", "", "Raises:", "    ValueError: Wrong."], TextFormat)
    assert lines[3] == "Args:" and lines.index("Raises:") == len(lines) - 2
    assert "    encoding: Encoding of the text files." in lines
    documented = ["Args:", "    encoding: Name of an encoding."]
    assert len(with_options(documented, TextFormat)) == len(documented) + 3
    assert with_options(["A page."], str) == ["A page."]


@pytest.mark.parametrize(
    "link, url, expected",
    [
        ("[a](examples)", "", "[a](gallery/index.md)"),
        ("[a](Makefile)", "", "a"),
        ("[a](Makefile)", "https://host/x", "[a](https://host/x/blob/main/Makefile)"),
        ("[a](docs/reference/layers.md#b)", "", "[a](reference/layers.md#b)"),
        ("[a](CHANGELOG.md)", "", "[a](changelog.md)"),
        ("[a](https://host/y)", "", "[a](https://host/y)"),
        ("[a](no_file.md)", "", "[a](no_file.md)"),
        ("```\n[a](Makefile)\n```", "", "```\n[a](Makefile)\n```"),
    ],
)
def test_links_lead_to_pages_or_to_the_repository(link, url, expected):
    module = importlib.import_module("repository_links")
    page = ROOT / "docs" / "contributing.md"
    assert module.rewrite_links(link, ROOT / "CONTRIBUTING.md", page, url) == expected


PAGE = """<!doctype html><title>A page</title><meta name="viewport" content="width=device-width">
<link rel="icon" href="data:,"><article>{}</article>"""
WIDE = "<p style='width: 900px'>a</p>"
NO_THUMB = "<style>div::-webkit-scrollbar { height: 9px }</style>"


def write_site(folder, **pages):
    for name, body in pages.items():
        (folder / f"{name}.html").write_text(PAGE.format(body), "utf-8")
    return folder


@pytest.mark.parametrize(
    "body, problem",
    [
        ("<a href='other.html'>a</a><a href='#x'>b</a><b id='x'></b>", None),
        ("<a href='other.html'></a><a href='none.html'>a</a>", "missing file: none.html"),
        ("<a href='other.html#none'>a</a>", "missing anchor: other.html#none"),
        ("<a href='other.html'></a><img src='https://host/a.png'>", "loads https://host/a.png"),
        ("<a href='https://host/'>a</a>", "other.html is more than 2 clicks from the start page"),
    ],
)
def test_links_of_the_built_site_are_checked(tmp_path, body, problem):
    check_site = importlib.import_module("check_site").check_site
    problems = check_site(write_site(tmp_path, index=body, other="text"))
    assert len(problems) == (problem is not None)
    assert not problems or problem in problems[0]


@pytest.mark.parametrize(
    "body, problem",
    [
        ("<p>text <b>and more</b></p>", None),
        (f"<div style='overflow-x: auto'>{WIDE}</div>", None),
        (WIDE, "at 390 pixels in the light theme: <p> is wider than the window: a"),
        ("<p style='width: 1300px'>a</p>", "at 1280 pixels in the dark theme: <p> is wider than"),
        (f"<div style='overflow: hidden'>{WIDE}</div>", "<div> is cut: a"),
        (f"<div style='overflow: auto; scrollbar-width: none'>{WIDE}</div>", "<div> is cut: a"),
        (f"{NO_THUMB}<div style='overflow: auto'>{WIDE}</div>", "<div> is cut: a"),
        (f"<pre style='overflow: auto'>{WIDE}</pre>", None),
        ("<pre style='overflow: auto'><b style='margin: 640px'>a", "1280 pixels in the dark"),
        ("<p style='color: #777'>pale</p>", "in the light theme: too little contrast: pale"),
        ("<p style='color: #767676'>less pale</p>", None),
        ("<script>console.error('a message')</script>", "index.html logs a message"),
        ("<script>throw Error('a message')</script>", "index.html raises a message"),
        ("<img src='http://127.0.0.1:1/a.png'>", "requests http://127.0.0.1:1/a.png"),
        ("<img src='none.png'>", "404"),
    ],
)
def test_pages_are_checked_in_a_browser(tmp_path, body, problem):
    module = importlib.import_module("check_in_browser")
    if reason := module.missing():
        pytest.skip(reason)
    problems = module.check_in_browser(write_site(tmp_path, index=body), {})
    assert bool(problems) == (problem is not None)
    assert not problems or any(problem in line for line in problems)


def test_searches_are_checked_in_a_browser(tmp_path, monkeypatch):
    module = importlib.import_module("check_in_browser")
    if reason := module.missing():
        pytest.skip(reason)
    monkeypatch.setattr(module, "SEARCH_MILLISECONDS", 500)
    results = "<div id='search-results'><a href='index.html'>a page</a></div>"
    site = write_site(tmp_path, index="<p>text</p>", search=results)
    problems = module.check_in_browser(site, {"cron": "index.html", "at night": "other.html"})
    assert problems == ["search.html?q=at night does not list other.html"]
