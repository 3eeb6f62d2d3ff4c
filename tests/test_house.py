"""Rules for imports, clocks, docstrings and documents, checked by parsing the source files."""

import ast
import functools
import graphlib
import importlib
import io
import os
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from documented_names import (
    command_options,
    docstrings,
    missing_files,
    missing_identifiers,
    missing_names,
    missing_options,
    public_names,
    script_options,
    summary,
)

from keras_bahdanau import backend
from keras_bahdanau_runtime.bulk.formats import OutputFormat
from keras_bahdanau_runtime.text.scores import MEASURES

ROOT = Path(__file__).resolve().parent.parent
LIBRARY = ROOT / "keras_bahdanau"
RUNTIME = ROOT / "export" / "keras_bahdanau_runtime"
EXPORT = ROOT / "export" / "keras_bahdanau_export"
CLI = ROOT / "export" / "keras_bahdanau_cli"
PACKAGES = [LIBRARY, RUNTIME, EXPORT, CLI]

# The other packages that each package may import.
MAY_IMPORT = {
    "keras_bahdanau_runtime": set(),
    "keras_bahdanau": {"keras_bahdanau_runtime"},
    "keras_bahdanau_export": {"keras_bahdanau", "keras_bahdanau_runtime"},
    "keras_bahdanau_cli": {"keras_bahdanau", "keras_bahdanau_export", "keras_bahdanau_runtime"},
}
# The namespaces of the library from the bottom up: a module imports from its own namespace and from
# those below it. Other modules are at the bottom.
FLOORS = [
    "",
    "layers",
    "losses",
    "metrics",
    "search",
    "data",
    "models",
    "callbacks",
    "training",
    "toolkits",
]
# Folders of code that needs a GPU or a server, and the only module outside that may import each.
SEAMS = {
    "keras_bahdanau_export.cuda": "keras_bahdanau_export.graph.writer",
    "keras_bahdanau_export.triton": "keras_bahdanau_cli.export",
    "keras_bahdanau_runtime.cuda": "keras_bahdanau_runtime.translator",
    "keras_bahdanau_runtime.ray": "keras_bahdanau_cli.translate",
}


def file_of(module: str) -> Path:
    parts = module.split(".")
    path = (ROOT if parts[0] == LIBRARY.name else EXPORT.parent).joinpath(*parts)
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


# Modules that load without Keras until a name that needs it is used.
WITHOUT_KERAS = [
    LIBRARY / "__init__.py",
    *(file_of(module) for module in sorted(backend.WITHOUT_KERAS)),
    *(
        EXPORT / f"{name}.py"
        for name in ("__init__", "garbage_collection", "model_card", "options")
    ),
    EXPORT / "graph" / "writer.py",
    EXPORT / "triton" / "repository.py",
    *CLI.glob("*.py"),
]
BACKENDS = ["keras", "tensorflow", "jax", "torch"]
# Names that need a comment with the reason.
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
ALL_FILES = [path for files in FILES.values() for path in files]
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
    """The dotted name of a file, such as `keras_bahdanau.layers.attention.base`."""
    parts = path.relative_to(ROOT if path.is_relative_to(LIBRARY) else EXPORT.parent).with_suffix(
        ""
    )
    return ".".join(part for part in parts.parts if part != "__init__")


def floor_of(module: str) -> int:
    """The index of a module's namespace in `FLOORS`."""
    folder = module.split(".")[1:2]
    return FLOORS.index(folder[0]) if folder and folder[0] in FLOORS else 0


def statements(
    node: ast.AST, scope: tuple[str, ...] = (), deferred: bool = False
) -> Iterator[tuple[ast.Import | ast.ImportFrom, tuple[str, ...], bool]]:
    """Every import statement with its scope, except those under `if TYPE_CHECKING`."""
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
    parsed = []
    for node, scope, deferred in statements(ast.parse(source)):
        if isinstance(node, ast.Import):
            parsed += [Import(alias.name, scope, deferred) for alias in node.names]
            continue
        base = node.module or ""
        if node.level:
            parents = module.split(".")
            parents = parents[: len(parents) - node.level + is_package]
            base = ".".join([*parents, base]).rstrip(".")
        for alias in node.names:
            full = f"{base}.{alias.name}"
            parsed.append(Import(full if full in modules else base, scope, deferred))
    return parsed


MODULES = {module_name(path) for path in ALL_FILES}


@functools.cache
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


def exports_a_model(path: Path, statement: Import) -> bool:
    """Whether this is an import that the library may have of the export package."""
    if statement.module != "keras_bahdanau_export" or not statement.deferred:
        return False
    if path.parent == LIBRARY / "models":
        return statement.scope[-1:] == ("export",)
    return path == LIBRARY / "artifacts.py"


def test_packages_import_only_the_allowed_packages():
    for package, files in FILES.items():
        for path in files:
            for statement in imports(path):
                top = statement.module.split(".")[0]
                if top in FILES and top != package and not exports_a_model(path, statement):
                    message = f"{file_id(path)} imports {statement.module}."
                    assert top in MAY_IMPORT[package], message


@pytest.mark.parametrize("folder", SEAMS)
def test_folder_is_imported_by_one_module(folder):
    importers = {
        module_name(path)
        for path in ALL_FILES
        for statement in imports(path)
        if f"{statement.module}.".startswith(f"{folder}.")
    }
    outside = {name for name in importers if not f"{name}.".startswith(f"{folder}.")}
    assert outside == {SEAMS[folder]}


def test_runtime_has_no_import_of_keras_or_a_backend():
    for path in RUNTIME_FILES:
        for statement in imports(path):
            message = f"{file_id(path)} imports {statement.module}."
            assert statement.module.split(".")[0] not in BACKENDS, message


def test_library_imports_only_from_its_own_namespace_or_those_below():
    for path in LIBRARY_FILES:
        own = module_name(path)
        for module in [statement.module for statement in imports(path)]:
            if module.split(".")[0] == "keras_bahdanau" and own != "keras_bahdanau.registered":
                message = f"{file_id(path)} imports {module} from above it."
                assert floor_of(module) <= floor_of(own), message


def test_floors_are_the_folders_of_the_library():
    folders = {path.parent.name for path in LIBRARY.glob("*/__init__.py")}
    modules = {path.stem for path in LIBRARY.glob("*.py")}
    assert folders <= set(FLOORS) <= folders | modules | {""}


@pytest.mark.parametrize("path", WITHOUT_KERAS, ids=file_id)
def test_modules_of_commands_import_keras_only_when_they_need_it(path):
    for module in [statement.module for statement in imports(path) if not statement.deferred]:
        assert module.split(".")[0] not in BACKENDS
        if module in MODULES and not module.startswith("keras_bahdanau_runtime"):
            assert file_of(module) in WITHOUT_KERAS


def unexplained_lines(source: str, words: list[tuple[str, str, str]]) -> list[int]:
    """The lines with one of `words` and without a comment in or right above them."""
    tokens = list(tokenize.generate_tokens(io.StringIO(source).readline))
    comments = {token.start[0] for token in tokens if token.type == tokenize.COMMENT}
    lines = {
        three[0].start[0]
        for three in zip(tokens, tokens[1:], tokens[2:], strict=False)
        if tuple(token.string for token in three) in words
    }
    return sorted(line for line in lines if not {line, line - 1} & comments)


@pytest.mark.parametrize(
    "files, words",
    [
        (ALL_FILES + OTHER_FILES, PRIVATE_KERAS),
        (sorted((RUNTIME / "service").rglob("*.py")), WALL_CLOCK),
    ],
    ids=["private Keras", "wall clock in the service"],
)
def test_exceptional_names_are_used_only_with_a_comment(files, words):
    lines = {file_id(path): unexplained_lines(path.read_text("utf-8"), words) for path in files}
    assert {name: numbers for name, numbers in lines.items() if numbers} == {}


NAMESPACES = [
    EXPORT / "__init__.py",
    *(path for path in LIBRARY.glob("*/__init__.py") if not path.with_suffix(".pyi").exists()),
    *(path for path in LIBRARY.glob("*.py") if "\n__all__ = " in path.read_text("utf-8")),
]


@pytest.mark.parametrize("path", sorted(set(NAMESPACES)), ids=file_id)
def test_exported_names_are_sorted(path):
    for node in ast.parse(path.read_text("utf-8")).body:
        match node:
            case ast.Assign(targets=[ast.Name(id="__all__")]):
                names = ast.literal_eval(node.value)
                assert list(names) == sorted(set(names))
                return
    pytest.fail(f"{file_id(path)} has no __all__")


def test_importing_the_runtime_does_not_import_keras():
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


DOCUMENTS = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
    *(path for name in ("docs", "examples", "export") for path in (ROOT / name).rglob("*.md")),
    ROOT / "benchmarks" / "README.md",
]
# Options and identifiers of other programs and libraries, and names in logs.
OTHER_OPTIONS = {"--durations", "--logdir", *script_options()}
KEYS = OutputFormat(n_best=1, alignments="json", as_json=True).key_suffixes
OTHER_IDENTIFIERS = {
    "DescriptorProto",
    "HF_TOKEN",
    "HfApi",
    "KIND_GPU",
    "OTEL_TRACES_SAMPLER",
    "ServerCredentials",
    "SummaryWriter",
    "decode_0",
    "decode_1",
    "gpu_mem_limit",
    "grpc_service",
    "name_1",
    "name_2",
    "process_cpu_seconds_total",
    "steps_per_epoch",
    *(f"translation_{name}" for name in KEYS),
    *(f"val_{name}" for name in MEASURES),
}


def is_plain(line: str) -> bool:
    """Whether a docstring begins with one line that is a sentence or a noun phrase."""
    begins_plainly = not line.startswith(("Of ", "What ", "By ", "Whatever ", "Beside"))
    return begins_plainly and re.fullmatch(r"[A-Z0-9`\"].*\.", line) is not None


@pytest.mark.parametrize("name", public_names())
def test_public_object_has_a_one_line_summary(name):
    line = summary(name)
    assert line is None or is_plain(line), line


@pytest.mark.parametrize("path", DOCUMENTS, ids=file_id)
def test_documents_mention_only_what_exists(path):
    text = path.read_text("utf-8")
    assert missing_names(text) == []
    assert missing_files(text, path.parent) == []
    assert missing_options(text, command_options(), OTHER_OPTIONS) == []
    if path.parent.name != "migration":  # these pages map names of other libraries to ours
        assert missing_identifiers(text, OTHER_IDENTIFIERS) == []


def test_docstrings_mention_only_what_exists():
    commands = command_options()
    missing = {
        (module, name)
        for module, text in docstrings()
        for name in [
            *missing_names(text),
            *missing_files(text, ROOT),
            *missing_options(text, commands, OTHER_OPTIONS),
            *missing_identifiers(text, OTHER_IDENTIFIERS),
        ]
    }
    assert missing == set()


# The parsing that the rules above need is tested on short sources.


@pytest.mark.parametrize(
    "line, expected",
    [
        ("Return the projected keys.", True),
        ("Beam search over a step function.", True),
        ("A loss without a period", False),
        ("What a step chooses from.", False),
        ("A sentence that runs over\ntwo lines.", False),
        ("", False),
    ],
)
def test_summaries_are_plain_lines(line, expected):
    assert is_plain(line) == expected


@pytest.mark.parametrize(
    "text, missing",
    [
        ("`keras_bahdanau.layers.BahdanauAttention` and `BeamSearch.n_best`", []),
        ("keras_bahdanau.layers.NoSuchLayer", ["keras_bahdanau.layers.NoSuchLayer"]),
        (
            "from keras_bahdanau.search import (\n    BeamSearch,\n    Dream,\n)",
            ["keras_bahdanau.search.Dream"],
        ),
        ("`BeamSearch.breadth`", ["keras_bahdanau.search.BeamSearch.breadth"]),
        ("`Seq2Seq.fit` and `RNNSearch.generate` are methods", []),
        ("`keras_bahdanau_export.export`", []),
    ],
)
def test_missing_names_are_found(text, missing):
    assert missing_names(text) == missing


def test_missing_files_options_and_identifiers_are_found():
    assert missing_files("`layers/decoder.py`, [here](docs/guides/recipes.md)", ROOT) == []
    assert missing_files("`layers/no_file.py`, [here](no_page.md)", ROOT) == [
        "layers/no_file.py",
        "no_page.md",
    ]
    commands = {"train": {"--output"}, "export": {"--stepwise"}}
    text = "keras-bahdanau train a \\\n  --output b --stepwise\n`--precise` `export --stepwise`"
    assert missing_options(text, commands, set()) == ["--precise", "train --stepwise"]
    assert missing_identifiers("`BeamSearch` reads `e_ij`, `n_best` and `NoSuchName`") == [
        "NoSuchName"
    ]


def test_imports_of_every_form_are_parsed():
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
    parsed = imports_of(source, "pkg.sub.mod", False, {"pkg.one", "pkg.sub.one"})
    assert [(i.module, i.deferred) for i in parsed] == [
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
    assert parsed[-1].scope == ("C", "method")
    assert imports_of("from . import one", "pkg", True, {"pkg.one"})[0].module == "pkg.one"


def dead_handlers(source: str, names: dict[str, object]) -> list[int]:
    """The lines of handlers whose exceptions an earlier handler of the same `try` catches.

    A handler with a name that is not in `names` is skipped.
    """
    lines = []
    for statement in ast.walk(ast.parse(source)):
        if not isinstance(statement, ast.Try | ast.TryStar):
            continue
        earlier: tuple[type[BaseException], ...] = ()
        for handler in statement.handlers:
            try:
                caught = eval(ast.unparse(handler.type), names) if handler.type else BaseException
            except (NameError, AttributeError):
                continue
            classes = caught if isinstance(caught, tuple) else (caught,)
            lines += [handler.lineno for kind in classes if issubclass(kind, earlier)]
            earlier += classes
    return lines


@pytest.mark.parametrize(
    "path", [p for p in ALL_FILES if p.read_text("utf-8").count("    except ") > 1], ids=file_id
)
def test_no_handler_follows_one_of_a_base_class(path):
    source = path.read_text("utf-8")
    tries = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Try)]
    if any(len(node.handlers) > 1 for node in tries):  # importing the others may take Keras
        names = vars(importlib.import_module(module_name(path)))
        errors = importlib.import_module("huggingface_hub.errors")
        assert not dead_handlers(source, {"errors": errors, **names})


@pytest.mark.parametrize(
    ("handlers", "lines"),
    [
        (["OSError", "FileNotFoundError"], [5]),
        (["FileNotFoundError", "OSError"], []),
        (["Exception", "(KeyError, MyError)"], [5, 5]),
        (["MyError", "unknown.Error", "ValueError"], []),
        (["ValueError", "KeyError", "MyError"], [7]),
    ],
)
def test_dead_handlers_are_found(handlers, lines):
    class MyError(ValueError):
        pass

    clauses = "".join(f"except {name}:\n    pass\n" for name in handlers)
    source = f"try:\n    pass\n{clauses}"
    assert dead_handlers(source, {"MyError": MyError}) == lines


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
