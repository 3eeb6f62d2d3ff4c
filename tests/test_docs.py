"""Examples in docstrings and on pages run, and every public name is in one namespace."""

import doctest
import importlib
import importlib.util
import json
import pkgutil
import re
import shlex
from types import ModuleType

import pytest
from copy_artifact import COPY_SCORE, COPY_STEPS, make_with_options
from pages import (
    DOCS,
    MIGRATION,
    PAGES,
    ROOT,
    blocks,
    is_export,
    is_message,
    page_id,
    quick_commands,
    run_python,
    run_shell,
    shell_commands,
    write_files,
)
from service_process import serving

import keras_bahdanau
import keras_bahdanau_runtime.text

MODULES = sorted(
    module.name
    for package in (keras_bahdanau, keras_bahdanau_runtime.text)
    for module in pkgutil.walk_packages(package.__path__, prefix=f"{package.__name__}.")
)
NAMESPACES = [
    name for name in keras_bahdanau.__all__ if isinstance(getattr(keras_bahdanau, name), ModuleType)
]
PUBLIC = {
    name: getattr(namespace, name)
    for namespace in (getattr(keras_bahdanau, name) for name in NAMESPACES)
    for name in namespace.__all__
}
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


class Checker(doctest.OutputChecker):
    """Accepts `ValueError` for its subclass `ArgumentError`, as the examples show it."""

    def check_output(self, want, got, optionflags):
        got = got.replace("keras_bahdanau_runtime.errors.ArgumentError: ", "ValueError: ")
        return super().check_output(want, got, optionflags)


def examples(module):
    finder = doctest.DocTestFinder(exclude_empty=True)
    tests = finder.find(module, extraglobs={**PUBLIC, **vars(module)})
    return [test for test in tests if test.examples]


def test_pages_install_from_a_clone_and_link_to_other_ways():
    for path in PAGES:
        commands = shell_commands(path, r'pip install (?:.*keras.bahdanau|"\.)')
        if commands and path.name != "install.md":
            assert all(command.startswith('pip install ".[') for command in commands), path
            assert "get-started/install.md#without-a-clone)" in path.read_text("utf-8"), path


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_run(name):
    runner = doctest.DocTestRunner(Checker(), optionflags=OPTIONS)
    report = []
    for test in examples(importlib.import_module(name)):
        runner.run(test, out=report.append)
    assert not runner.failures, "".join(report)


def test_docstrings_have_more_than_ten_examples():
    tests = [test for name in MODULES for test in examples(importlib.import_module(name))]
    assert len(tests) > 10


def test_every_public_name_is_in_one_namespace():
    names = [name for space in NAMESPACES for name in getattr(keras_bahdanau, space).__all__]
    assert sorted(names) == sorted(PUBLIC)
    for name in set(keras_bahdanau.__all__) - set(NAMESPACES) - {"Translator", "export"}:
        assert getattr(keras_bahdanau, name) is PUBLIC[name]


PYTHON_PAGES = [
    path
    for path in PAGES
    if blocks(path, "python") and not is_export(path) and path.parent != MIGRATION
]
COMMANDS = sorted({command for path in PAGES for command in quick_commands(path)})
TROUBLESHOOTING = DOCS / "guides" / "troubleshooting.md"


@pytest.fixture
def files(tmp_path, monkeypatch):
    """The current folder, with the files that the pages name."""
    write_files(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("path", PYTHON_PAGES, ids=page_id)
def test_python_of_a_page_runs(path, files):
    run_python(path)


@pytest.mark.parametrize("command", COMMANDS, ids=str)
def test_commands_of_pages_run(command, files):
    run_shell(command)


def test_the_service_of_the_page_answers_its_requests(files):
    path = DOCS / "guides" / "serving.md"
    [serve] = shell_commands(path, "keras-bahdanau serve ")
    requests = shell_commands(path, "curl ")
    [client] = blocks(path, "python notest")
    assert len(requests) == 4 and "localhost:8000" in client
    make_with_options(files / "artifact", steps=COPY_STEPS, score=COPY_SCORE, overwrite=True)
    with serving(*shlex.split(serve)[2:], "--port", "0") as (_, url):
        answers = [run_shell(request.replace("localhost:8000", url)) for request in requests]
        answers.append(
            run_shell(f"python -c {shlex.quote(client.replace('http://localhost:8000', url))}")
        )
    translations, completed, scores = map(json.loads, answers[:3])
    assert len(translations["translations"][0]) == 2
    [completion] = completed["translations"]
    # The last "a" may be the start of a longer token. The graph copies the source there.
    assert completion["text"].startswith("Ein M")
    assert completion["score"] == pytest.approx(-6 * 0.8)
    [score] = scores["scores"]
    assert "".join(score["tokens"]) == "Ein Mann auf einem Fahrrad.</s>"
    assert re.search(r'data: \{"text":"[^"]+"\}\n\n$', answers[3])
    assert answers[4].count("\n") == 2


@pytest.mark.parametrize("message", blocks(TROUBLESHOOTING, "text"))
def test_messages_in_troubleshooting_are_raised_by_the_code(message):
    assert is_message(message.strip())


def test_a_message_that_the_code_does_not_raise_is_found():
    assert not is_message("Argument `output` must be purple. Received: 'run'")


def test_the_readme_is_one_page():
    text = (ROOT / "README.md").read_text("utf-8")
    assert text.count("\n") <= 150
    assert "\nmake quickstart\n" in text and "\nmake test " in text


def test_figures_on_several_pages_are_those_of_the_table_of_their_benchmark():
    benchmarks, readme, results = (
        (ROOT / path).read_text("utf-8")
        for path in ("benchmarks/README.md", "README.md", "docs/results.md")
    )
    [section] = re.findall(r"^## Attention with many queries\n(.*?)^## ", benchmarks, re.M | re.S)
    rows = re.findall(r"^\| \w+ \| .* \| ([\d.]+)x \| .* \| ([\d.]+)x \|$", section, re.M)
    assert len(rows) == 3  # a backend each
    time, memory = (
        f"{min(column)}{{0}} to {max(column)}{{0}}" for column in zip(*rows, strict=True)
    )
    ratios = f"{time} of the time, {memory} of the memory"
    assert f"| {ratios.format('x')} |" in benchmarks
    assert f"| {ratios.format('')} |" in readme and f"| {ratios.format('')} |" in results
    assert f"needs {memory.format('')} of the memory" in readme


def test_the_results_of_the_readme_are_rows_of_the_page_of_results():
    """Both have the same figures for the same measurement."""
    readme, page = (
        {row[0]: row[1:] for row in result_rows((ROOT / path).read_text("utf-8"))}
        for path in ("README.md", "docs/results.md")
    )
    shared = readme.keys() & page.keys()
    assert len(shared) >= 6
    assert {name: readme[name] for name in shared} == {name: page[name] for name in shared}


def result_rows(text):
    """The cells of tables with a result and a reference, without their links."""
    text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", text)
    rows = re.findall(r"^\| ([^|]*) \| ([^|]*) \| ([^|]*) \|$", text, re.M)
    return [row for row in rows if not row[0].startswith("-")]


def test_the_diagrams_of_the_concept_pages_are_current():
    path = DOCS / "concepts" / "draw.py"
    spec = importlib.util.spec_from_file_location("draw", path)
    draw = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(draw)
    files = {f"{figure.__name__}.svg": figure().svg() for figure in draw.FIGURES}
    assert {file.name: file.read_text("utf-8") for file in path.parent.glob("*.svg")} == files
