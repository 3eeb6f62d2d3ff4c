"""Names, files and options in documents and docstrings that do not exist.

The packages are parsed and not imported, because that would import Keras.
"""

import ast
import functools
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = {
    "keras_bahdanau": ROOT / "keras_bahdanau",
    "keras_bahdanau_runtime": ROOT / "export" / "keras_bahdanau_runtime",
    "keras_bahdanau_export": ROOT / "export" / "keras_bahdanau_export",
    "keras_bahdanau_cli": ROOT / "export" / "keras_bahdanau_cli",
}
TREES = {
    ".".join(part for part in (name, *path.relative_to(folder).with_suffix("").parts)).removesuffix(
        ".__init__"
    ): ast.parse(path.read_text("utf-8"))
    for name, folder in PACKAGES.items()
    for path in sorted(folder.rglob("*.py"))
}
FOREIGN = ast.Pass()  # the definition of every name outside of the packages


def bindings(body):
    """The names that statements bind: each with its definition, or the dotted name it imports."""
    names = {}
    for node in body:
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name):
                names[name] = node
            case ast.Assign(targets=targets):
                parts = [part for target in targets for part in ast.walk(target)]
                names |= {part.id: node for part in parts if isinstance(part, ast.Name)}
            case ast.AnnAssign(target=ast.Name(id=name)):
                names[name] = node
            case ast.Import(names=aliases):
                names |= {alias.asname or alias.name: alias.name for alias in aliases}
            case ast.ImportFrom(module=module, names=aliases):
                names |= {a.asname or a.name: f"{module}.{a.name}" for a in aliases}
            case ast.If() | ast.Try():
                names |= bindings([*node.body, *node.orelse])
    return names


BINDINGS = {module: bindings(tree.body) for module, tree in TREES.items()}
# The names that a package imports on first use are in its stub.
STUBS = {}
for folder in PACKAGES.values():
    for stub in folder.rglob("__init__.pyi"):
        package = ".".join(stub.parent.relative_to(folder.parent).parts)
        STUBS[package] = {
            alias.name: ".".join(filter(None, [package, node.module, alias.name]))
            for node in ast.parse(stub.read_text("utf-8")).body
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        }
        BINDINGS[package] |= STUBS[package]


def definition(name):
    """The definition of a dotted name, `FOREIGN` outside of the packages, or `None` if missing."""
    parts = name.split(".")
    if parts[0] not in PACKAGES:
        return FOREIGN
    size = max(i for i in range(1, len(parts) + 1) if ".".join(parts[:i]) in TREES)
    module, rest = ".".join(parts[:size]), parts[size:]
    if not rest:
        return TREES[module]
    bound = BINDINGS[module].get(rest[0])
    if bound is None and "__getattr__" in BINDINGS[module]:  # imports its names when they are read
        inner = [m for m in TREES if m.startswith(f"{module}.") and rest[0] in BINDINGS[m]]
        return definition(".".join([inner[0], *rest])) if inner else None
    if isinstance(bound, str):
        return definition(".".join([bound, *rest[1:]]))
    for member in rest[1:]:
        bound = class_member(bound, member, module)
    return bound


def class_member(node, name, module):
    """A method, field or attribute of a class or of its bases; `None` if there is none."""
    if not isinstance(node, ast.ClassDef):
        return node if node is FOREIGN else None
    members = bindings(node.body)
    for part in ast.walk(node):
        match part:
            case ast.Attribute(value=ast.Name(id="self"), attr=attribute, ctx=ast.Store()):
                members[attribute] = part
            case ast.FunctionDef(name="__init__", args=arguments):
                members |= {a.arg: a for a in [*arguments.args, *arguments.kwonlyargs]}
    if name in members:
        return members[name]
    for base in map(ast.unparse, node.bases):
        if base != "NamedTuple":
            head, _, rest = base.partition(".")
            bound = BINDINGS[module].get(head, head)
            full = bound if isinstance(bound, str) else f"{module}.{head}"
            if member := definition(".".join(filter(None, [full, rest, name]))):
                return member
    return None


def public_names():
    """The dotted names of every `__all__` and of every stub."""
    names = [f"{module}.{name}" for module, names in STUBS.items() for name in names]
    return names + [
        f"{module}.{name}"
        for module, names in BINDINGS.items()
        if "__all__" in names and module not in STUBS
        for name in ast.literal_eval(names["__all__"].value)
    ]


def documented(tree):
    """The modules, classes and functions of a tree that have a docstring."""
    kinds = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    return [node for node in ast.walk(tree) if isinstance(node, kinds) and ast.get_docstring(node)]


def docstrings():
    """Pairs of a module and one of its docstrings."""
    return [
        (module, ast.get_docstring(node))
        for module, tree in TREES.items()
        for node in documented(tree)
    ]


def summary(name):
    """The first line of the docstring of a name; `None` for a constant, "" without a docstring."""
    node = definition(name)
    if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
        return None
    return (ast.get_docstring(node) or "").split("\n\n")[0]


def missing_names(text):
    """The names of the packages in a text that do not exist."""
    names = re.findall(r"(?<![\w/.-])keras_bahdanau(?:_\w+)?(?:\.[A-Za-z_]\w*)+", text)
    for module, imported in re.findall(
        r"^\s*(?:>>> )?from (keras_bahdanau[\w.]*) import (\([^)]*\)|.+)", text, re.M
    ):
        words = re.sub(r"#.*| as \w+", "", imported)
        names += [f"{module}.{word}" for word in re.findall(r"\w+", words)]
    classes = {name.rpartition(".")[2]: name for name in public_names()}
    for name, member in re.findall(r"`([A-Z]\w+)\.(\w+)", text):
        if name in classes:
            names.append(f"{classes[name]}.{member}")
    return sorted({name for name in names if definition(name) is None})


@functools.cache
def identifiers():
    """The words of the Python code in the repository, without docstrings and comments."""
    words = set()
    for name in repository_files():
        if name.endswith(".py") and not name.endswith("/test_house.py"):
            source = (ROOT / name).read_text("utf-8")
            words.update(re.findall(r"\w+", re.sub(r'"""[\s\S]*?"""|#.*', "", source)))
    return words


def missing_identifiers(text, others=()):
    """The identifiers in backticks that occur nowhere in the code.

    Words without an underscore or an inner capital, and symbols with an index such as `e_ij`, are
    no identifiers.
    """
    missing = set()
    for name in re.findall(r"`([A-Za-z_][\w.]*)(?:\([^`]*\))?`", text):
        for word in name.split("."):
            is_symbol = re.fullmatch(r"[A-Za-z]+_[a-z]{1,2}", word)
            if re.search(r"[a-z][A-Z]|_", word) and not is_symbol and not is_file(name, ROOT):
                missing.add(word)
    return sorted(missing - identifiers() - {*others})


def missing_files(text, folder):
    """The Python files and documents in a text that do not exist, there or in the repository."""
    names = re.findall(r"`((?:[\w.-]+/)*\w+\.py|(?:[\w.-]+/)+\w+\.(?:md|mjs|toml))`", text)
    names += re.findall(r"\]\((?!https?:|#)([^)#\s]+)", text)
    return sorted({name for name in names if not is_file(name, folder)})


def is_file(name, folder):
    """Whether a relative path exists in a folder, or ends the path of a file in the repository."""
    return (
        "NAME" in name  # a name to be chosen
        or (folder / name).exists()
        or any(f"/{path}".endswith(f"/{name}") for path in repository_files())
    )


@functools.cache
def repository_files():
    """The paths of the files in the folders of the repository, relative to its root."""
    return [
        path.relative_to(ROOT).as_posix()
        for folder in ("keras_bahdanau", "export", "tests", "examples", "benchmarks", "docs")
        for path in (ROOT / folder).rglob("*.*")
    ]


def command_options():
    """The options of each command of `keras-bahdanau`."""

    from keras_bahdanau_cli.app import app

    return {
        name: {option for p in command.params for option in (*p.opts, *p.secondary_opts)}
        | {"--help"}
        for name, command in app.load_commands().items()
    }


def script_options():
    """The options of the examples and the benchmarks."""
    return {
        option
        for name in repository_files()
        if name.startswith(("examples/", "benchmarks/")) and name.endswith(".py")
        for option in re.findall(r'"(--[a-z][\w-]*)"', (ROOT / name).read_text("utf-8"))
    }


def missing_options(text, commands, others):
    """The options in a text that no command has.

    An option that follows the name of a command must be one of that command.
    """
    missing = []
    text = text.replace("\\\n", " ")
    for command, words in re.findall(
        rf"(?:keras-bahdanau |`)({'|'.join(commands)}) ([^`|#;>\n]*)", text
    ):
        options = re.findall(r"(?<!\S)--[a-z][\w-]*", words)
        missing += [f"{command} {option}" for option in options if option not in commands[command]]
    all_options = set().union(*commands.values(), others)
    missing += [o for o in re.findall(r"`(--[a-z][\w-]*)", text) if o not in all_options]
    return sorted(set(missing))
