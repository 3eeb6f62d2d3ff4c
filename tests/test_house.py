"""The order of the house: who may import whom, read from the source without running it."""

import ast
import graphlib
import io
import os
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

pytestmark = pytest.mark.once

ROOT = Path(__file__).resolve().parent.parent
LIBRARY = ROOT / "keras_bahdanau"
EXPORT = ROOT / "export" / "keras_bahdanau_export"

# From the ground up. A module imports from its own floor and the floors below it, never in circles.
FLOORS = [
    {"backend", "cells", "checks", "ids", "compiled", "errors", "initializers", "loop", "replicas"},
    {"cell_steps", "coverage", "links", "masking"},
    {"attention"},
    {"encoder", "readout", "bridge", "scheduled_sampling", "tfa"},
    {"decoder"},
    {"search"},
    {"losses", "metrics", "averaging", "callbacks"}
    | {"corpus", "evaluation", "text", "data", "alignment"},
    {"generation"},
    {"seq2seq", "ensemble"},
    {"rnn_search"},
    {""},  # keras_bahdanau/__init__.py
]
FLOOR = {name: floor for floor, names in enumerate(FLOORS) for name in names}

# These run where there is no Keras, so what they import of their own package must be one of them.
# "" is keras_bahdanau_export/__init__.py.
KERAS_FREE = ["", "artifact", "cli", "contents", "dates", "errors", "pieces", "runtime"]
KERAS_FREE += ["session", "signature", "stepper"]
BACKENDS = ["keras", "tensorflow", "jax", "torch"]

LIBRARY_FILES = sorted(LIBRARY.rglob("*.py"))
EXPORT_FILES = sorted(EXPORT.rglob("*.py"))
OTHER_FILES = [
    path for name in ("examples", "benchmarks", "tests") for path in (ROOT / name).rglob("*.py")
]


class Import(NamedTuple):
    module: str
    scope: tuple[str, ...]  # the classes and functions around the statement
    deferred: bool  # inside a function, so not run when the file is imported


def file_id(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def module_name(path: Path) -> str:
    """`.../keras_bahdanau/attention/base.py` is `keras_bahdanau.attention.base`."""
    parts = path.relative_to(EXPORT.parent if path.is_relative_to(EXPORT) else ROOT).with_suffix("")
    return ".".join(part for part in parts.parts if part != "__init__")


def part_of(module: str, package: str) -> str | None:
    """The module's name below the package: `"attention"`, `""` for the package, `None` outside."""
    top, *rest = module.split(".")
    return None if top != package else rest[0] if rest else ""


def statements(
    node: ast.AST, scope: tuple[str, ...] = (), deferred: bool = False
) -> Iterator[tuple[ast.Import | ast.ImportFrom, tuple[str, ...], bool]]:
    """Every import statement but those under `if TYPE_CHECKING`, with its surroundings."""
    for child in ast.iter_child_nodes(node):
        match child:
            case ast.Import() | ast.ImportFrom():
                yield child, scope, deferred
            case ast.If() if "TYPE_CHECKING" in ast.unparse(child.test):
                continue
            case ast.ClassDef(name=name):
                yield from statements(child, (*scope, name), deferred)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield from statements(child, (*scope, name), True)
            case _:
                yield from statements(child, scope, deferred)


def imports_of(source: str, module: str, is_package: bool, modules: set[str]) -> list[Import]:
    """The imports of a file; `from a import b` counts as `a.b` where that is one of `modules`."""
    found = []
    for node, scope, deferred in statements(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [Import(alias.name, scope, deferred) for alias in node.names]
            continue
        base = node.module or ""
        if node.level:
            parents = module.split(".")
            parents = parents[: len(parents) - node.level + is_package]
            base = ".".join([*parents, base]).rstrip(".")
        for alias in node.names:
            full = f"{base}.{alias.name}"
            found.append(Import(full if full in modules else base, scope, deferred))
    return found


MODULES = {module_name(path) for path in [*LIBRARY_FILES, *EXPORT_FILES]}


def imports(path: Path) -> list[Import]:
    source = path.read_text("utf-8")
    return imports_of(source, module_name(path), path.name == "__init__.py", MODULES)


def assert_no_cycles(files: list[Path]) -> None:
    graph = {module_name(path): {i.module for i in imports(path)} & MODULES for path in files}
    try:
        tuple(graphlib.TopologicalSorter(graph).static_order())
    except graphlib.CycleError as error:
        pytest.fail("Modules import one another in a circle: " + " <- ".join(error.args[1]))


def test_library_has_no_import_cycles():
    assert_no_cycles(LIBRARY_FILES)


def test_export_has_no_import_cycles():
    assert_no_cycles(EXPORT_FILES)


@pytest.mark.parametrize("path", LIBRARY_FILES, ids=file_id)
def test_library_imports_only_downward(path):
    own = part_of(module_name(path), "keras_bahdanau")
    assert own in FLOOR, f"Give {file_id(path)} its floor in FLOORS."
    for module, _, _ in imports(path):
        other = part_of(module, "keras_bahdanau")
        if other is not None:
            assert other in FLOOR, (
                f"{file_id(path)} imports {module}, which has no floor in FLOORS."
            )
            assert FLOOR[other] <= FLOOR[own], f"{file_id(path)} imports {module} from above it."


@pytest.mark.parametrize("path", LIBRARY_FILES, ids=file_id)
def test_library_knows_export_only_inside_seq2seq_export(path):
    for module, scope, deferred in imports(path):
        if part_of(module, "keras_bahdanau_export") is not None:
            assert path == LIBRARY / "seq2seq.py", f"{file_id(path)} imports {module}."
            assert deferred and scope[:2] == ("Seq2Seq", "export")


@pytest.mark.parametrize("name", KERAS_FREE)
def test_keras_free_modules_load_no_keras(name):
    path = EXPORT / f"{name or '__init__'}.py"
    if not path.exists():
        pytest.skip(f"{file_id(path)} is not there yet")
    for module, _, deferred in imports(path):
        if deferred:
            continue
        assert module.split(".")[0] not in [*BACKENDS, "keras_bahdanau"], (
            f"{file_id(path)} imports {module} when it is loaded; do so inside a function."
        )
        own = part_of(module, "keras_bahdanau_export")
        assert own is None or own in KERAS_FREE, (
            f"{file_id(path)} loads {module}, which needs Keras."
        )


def private_keras_lines(source: str) -> list[int]:
    """The lines of code that name `keras.src` with no comment beside or right above them."""
    tokens = list(tokenize.generate_tokens(io.StringIO(source).readline))
    comments = {token.start[0] for token in tokens if token.type == tokenize.COMMENT}
    lines = {
        first.start[0]
        for first, dot, last in zip(tokens, tokens[1:], tokens[2:], strict=False)
        if (first.string, dot.string, last.string) == ("keras", ".", "src")
    }
    return sorted(line for line in lines if not {line, line - 1} & comments)


@pytest.mark.parametrize("path", [*LIBRARY_FILES, *EXPORT_FILES, *OTHER_FILES], ids=file_id)
def test_private_keras_is_used_only_with_a_reason(path):
    assert private_keras_lines(path.read_text("utf-8")) == []


@pytest.mark.parametrize("package", [LIBRARY, EXPORT], ids=file_id)
def test_exported_names_are_sorted(package):
    path = package / "__init__.py"
    if not path.exists():
        pytest.skip(f"{file_id(path)} is not there yet")
    for node in ast.parse(path.read_text("utf-8")).body:
        match node:
            case ast.Assign(targets=[ast.Name(id="__all__")]):
                names = ast.literal_eval(node.value)
                assert list(names) == sorted(set(names))
                return
    pytest.fail(f"{file_id(path)} has no __all__")


def test_runtime_is_imported_without_keras():
    if not (EXPORT / "runtime.py").exists():
        pytest.skip("the runtime is not there yet")
    code = (
        "import sys, keras_bahdanau_export.runtime\n"
        f"print(*sorted({{*{BACKENDS}, 'keras_bahdanau'}} & set(sys.modules)))"
    )
    paths = [str(EXPORT.parent), str(ROOT)]
    result = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == []


# The rules above are only as good as the reading of the files: it is tested on made-up ones.


def test_imports_are_read_in_every_form():
    source = """
import a.b, c
from pkg import one, name
from . import one
from .one import thing
from ..up import x
if TYPE_CHECKING:
    from pkg import hidden
try:
    import tried
except ImportError:
    pass
class C:
    import in_class
    def method(self):
        from late import y
"""
    found = imports_of(source, "pkg.sub.mod", False, {"pkg.one", "pkg.sub.one"})
    assert [(i.module, i.deferred) for i in found] == [
        ("a.b", False),
        ("c", False),
        ("pkg.one", False),
        ("pkg", False),
        ("pkg.sub.one", False),
        ("pkg.sub.one", False),
        ("pkg.up", False),
        ("tried", False),
        ("in_class", False),
        ("late", True),
    ]
    assert found[-1].scope == ("C", "method")
    assert imports_of("from . import one", "pkg", True, {"pkg.one"})[0].module == "pkg.one"


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("from keras.src import backend\n", [1]),
        ("from keras.src import backend  # issue 1: no public name\n", []),
        ("# no public name\nfrom keras.src import backend\n", []),
        ("import keras\n\nx = keras.src.backend\n", [3]),
        ('"""Mentions keras.src only."""\n', []),
    ],
)
def test_private_keras_is_found(source, lines):
    assert private_keras_lines(source) == lines
