"""The examples in docstrings run, and every public name has a docstring."""

import doctest
import importlib
import pkgutil

import pytest

import keras_bahdanau
import keras_bahdanau_runtime.text

MODULES = sorted(
    module.name
    for package in (keras_bahdanau, keras_bahdanau_runtime.text)
    for module in pkgutil.walk_packages(package.__path__, prefix=f"{package.__name__}.")
)
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def examples(module):
    public = {name: getattr(keras_bahdanau, name) for name in keras_bahdanau.__all__}
    finder = doctest.DocTestFinder(exclude_empty=True)
    tests = finder.find(module, extraglobs={**public, **vars(module)})
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


@pytest.mark.parametrize("name", keras_bahdanau.__all__)
def test_public_names_have_docstrings(name):
    member = getattr(keras_bahdanau, name)
    # A dataclass without a docstring gets its signature. A class must not inherit its docstring.
    documented = vars(member).get("__doc__") if isinstance(member, type) else member.__doc__
    assert documented and not documented.startswith(f"{name}(")
