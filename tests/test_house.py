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

ROOT = Path(__file__).resolve().parent.parent
LIBRARY = ROOT / "keras_bahdanau"
RUNTIME = ROOT / "export" / "keras_bahdanau_runtime"
EXPORT = ROOT / "export" / "keras_bahdanau_export"
PACKAGES = [LIBRARY, RUNTIME, EXPORT]

# What each package may import of the other two.
MAY_IMPORT = {
    "keras_bahdanau_runtime": set(),
    "keras_bahdanau": {"keras_bahdanau_runtime"},
    "keras_bahdanau_export": {"keras_bahdanau", "keras_bahdanau_runtime"},
}
# Inside the library, from the ground up: a module imports from its own folder and those below it.
# Modules that stand in no folder are the ground.
FLOORS = ["", "layers", "search", "data", "models", "training"]
# What loads without Keras, until a command needs it.
WITHOUT_KERAS = [
    EXPORT / f"{name}.py"
    for name in (
        "__init__", "cli", "export_command", "prepare_command", "quiet", "serve_command",
        "shortlist_command", "shown", "translate_command", "triton_layout",
    )
]  # fmt: skip
BACKENDS = ["keras", "tensorflow", "jax", "torch"]
# What is used only where a comment says why.
PRIVATE_KERAS = [("keras", ".", "src")]
WALL_CLOCK = [
    *[("time", ".", name) for name in ("time", "time_ns", "localtime", "gmtime")],
    *[("datetime", ".", name) for name in ("now", "utcnow", "today", "datetime")],
    ("from", "time", "import"),
    ("from", "datetime", "import"),
]

FILES = {package.name: sorted(package.rglob("*.py")) for package in PACKAGES}
LIBRARY_FILES = FILES["keras_bahdanau"]
RUNTIME_FILES = FILES["keras_bahdanau_runtime"]
EXPORT_FILES = FILES["keras_bahdanau_export"]
ALL_FILES = [*LIBRARY_FILES, *RUNTIME_FILES, *EXPORT_FILES]
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
    """`.../keras_bahdanau/attention/base.py` is `keras_bahdanau.layers.attention.base`."""
    parts = path.relative_to(EXPORT.parent if path.is_relative_to(EXPORT) else ROOT).with_suffix("")
    return ".".join(part for part in parts.parts if part != "__init__")


def floor_of(module: str) -> int:
    """The floor of a module of the library."""
    folder = module.split(".")[1:2]
    return FLOORS.index(folder[0]) if folder and folder[0] in FLOORS else 0


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


MODULES = {module_name(path) for path in ALL_FILES}


def imports(path: Path) -> list[Import]:
    source = path.read_text("utf-8")
    return imports_of(source, module_name(path), path.name == "__init__.py", MODULES)


@pytest.mark.parametrize("package", FILES)
def test_there_are_no_import_cycles(package):
    graph = {
        module_name(path): {i.module for i in imports(path)} & MODULES for path in FILES[package]
    }
    try:
        tuple(graphlib.TopologicalSorter(graph).static_order())
    except graphlib.CycleError as error:
        pytest.fail("Modules import one another in a circle: " + " <- ".join(error.args[1]))


def exports_a_model(path: Path, found: Import) -> bool:
    """Whether this is the one import that may lead from the library to the export package."""
    return (
        path.parent == LIBRARY / "models"
        and found.module == "keras_bahdanau_export"
        and found.deferred
        and found.scope[-1:] == ("export",)
    )


def test_packages_import_only_what_they_need():
    for package, files in FILES.items():
        for path in files:
            for found in imports(path):
                top = found.module.split(".")[0]
                if top in FILES and top != package and not exports_a_model(path, found):
                    assert top in MAY_IMPORT[package], f"{file_id(path)} imports {found.module}."


def test_runtime_imports_no_keras_anywhere():
    for path in RUNTIME_FILES:
        for found in imports(path):
            assert found.module.split(".")[0] not in BACKENDS, (
                f"{file_id(path)} imports {found.module}."
            )


def test_library_imports_only_downward():
    for path in LIBRARY_FILES:
        own = module_name(path)
        for found in imports(path) if own != "keras_bahdanau" else ():
            if found.module.split(".")[0] == "keras_bahdanau":
                assert floor_of(found.module) <= floor_of(own), (
                    f"{file_id(path)} imports {found.module} from above it."
                )


def test_floors_are_the_folders_of_the_library():
    folders = {path.parent.name for path in LIBRARY.glob("*/__init__.py")}
    assert folders == set(FLOORS) - {""}


@pytest.mark.parametrize("path", WITHOUT_KERAS, ids=file_id)
def test_command_loads_only_the_runtime(path):
    for found in imports(path):
        if not found.deferred:
            assert found.module.split(".")[0] not in [*BACKENDS, "keras_bahdanau"]
            own = found.module.startswith("keras_bahdanau_export")
            assert not own or EXPORT / f"{found.module.split('.')[1]}.py" in WITHOUT_KERAS


def unexplained_lines(source: str, words: list[tuple[str, str, str]]) -> list[int]:
    """The lines of code that hold one of `words` with no comment beside or right above them."""
    tokens = list(tokenize.generate_tokens(io.StringIO(source).readline))
    comments = {token.start[0] for token in tokens if token.type == tokenize.COMMENT}
    lines = {
        three[0].start[0]
        for three in zip(tokens, tokens[1:], tokens[2:], strict=False)
        if tuple(token.string for token in three) in words
    }
    return sorted(line for line in lines if not {line, line - 1} & comments)


def test_private_keras_is_used_only_with_a_reason():
    found = {
        file_id(p): unexplained_lines(p.read_text("utf-8"), PRIVATE_KERAS)
        for p in ALL_FILES + OTHER_FILES
    }
    assert {name: lines for name, lines in found.items() if lines} == {}


def test_service_reckons_with_no_clock_that_may_jump():
    files = sorted((RUNTIME / "service").rglob("*.py"))
    found = {file_id(p): unexplained_lines(p.read_text("utf-8"), WALL_CLOCK) for p in files}
    assert {name: lines for name, lines in found.items() if lines} == {}


@pytest.mark.parametrize("package", PACKAGES, ids=file_id)
def test_exported_names_are_sorted(package):
    path = package / "__init__.py"
    for node in ast.parse(path.read_text("utf-8")).body:
        match node:
            case ast.Assign(targets=[ast.Name(id="__all__")]):
                names = ast.literal_eval(node.value)
                assert list(names) == sorted(set(names))
                return
    pytest.fail(f"{file_id(path)} has no __all__")


def test_runtime_is_imported_without_keras():
    modules = [module_name(path) for path in RUNTIME_FILES]
    code = (
        f"import sys, {', '.join(modules)}\n"
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
    ("source", "words", "lines"),
    [
        ("from keras.src import backend\n", PRIVATE_KERAS, [1]),
        ("from keras.src import backend  # issue 1: no public name\n", PRIVATE_KERAS, []),
        ("# no public name\nfrom keras.src import backend\n", PRIVATE_KERAS, []),
        ("import keras\n\nx = keras.src.backend\n", PRIVATE_KERAS, [3]),
        ('"""Mentions keras.src only."""\n', PRIVATE_KERAS, []),
        ("import time\n\nnow = time.time()\n", WALL_CLOCK, [3]),
        ("from time import time_ns\n", WALL_CLOCK, [1]),
        ("import time\n\nnow = time.monotonic()\n", WALL_CLOCK, []),
        ("now = datetime.now()\n", WALL_CLOCK, [1]),
    ],
)
def test_unexplained_lines_are_found(source, words, lines):
    assert unexplained_lines(source, words) == lines
