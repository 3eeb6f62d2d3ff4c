"""Examples in docstrings run, every public name is in one namespace, diagrams are current."""

import doctest
import importlib
import importlib.util
import pkgutil
from pathlib import Path
from types import ModuleType

import pytest

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


def examples(module):
    finder = doctest.DocTestFinder(exclude_empty=True)
    tests = finder.find(module, extraglobs={**PUBLIC, **vars(module)})
    return [test for test in tests if test.examples]


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_run(name):
    runner = doctest.DocTestRunner(optionflags=OPTIONS)
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
    for name in set(keras_bahdanau.__all__) - set(NAMESPACES):
        assert getattr(keras_bahdanau, name) is PUBLIC[name]


def test_the_diagrams_of_the_concept_pages_are_current():
    path = Path(__file__).parent.parent / "docs" / "concepts" / "draw.py"
    spec = importlib.util.spec_from_file_location("draw", path)
    draw = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(draw)
    files = {f"{figure.__name__}.svg": figure().svg() for figure in draw.FIGURES}
    assert {file.name: file.read_text("utf-8") for file in path.parent.glob("*.svg")} == files
