"""Pages of the documentation: their code blocks, commands and error messages."""

import ast
import contextlib
import functools
import gzip
import json
import lzma
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FILES = ROOT / "tests" / "files"
DOCS = ROOT / "docs"
PAGES = [
    ROOT / "README.md",
    *sorted(path for path in DOCS.rglob("*.md") if "_build" not in path.parts),
]
MIGRATION = DOCS / "guides" / "migration"  # tests/library/test_migration.py runs these pages
TEXT = "red cat\nthe dog sees the cat\none two three\n"
TEXT_NAMES = ("train", "dev", "test", "val", "test_2016_flickr", "part1", "part2")


def page_id(path):
    return path.relative_to(ROOT).as_posix()


def blocks(path, language):
    """The code blocks of a language, without those marked `notest`."""
    return re.findall(rf"^```{language}\n(.*?)^```", path.read_text("utf-8"), re.M | re.S)


def is_export(path):
    """Whether a page exports a model or an artifact, which needs TensorFlow."""
    code = "\n".join(blocks(path, "python"))
    return "keras_bahdanau_export" in code or re.search(r"\bexport\(", code) is not None


def run_shell(command):
    """Run a command of a page in a shell, and return its output."""
    functions = (
        f'python() {{ "{sys.executable}" "$@"; }}\n'
        f'keras-bahdanau() {{ "{sys.executable}" -m keras_bahdanau_cli "$@"; }}\n'
    )
    paths = [str(ROOT), str(ROOT / "export")]
    finished = subprocess.run(
        ["bash", "-c", functions + command],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


def run_python(path):
    """Run the Python blocks of a page from top to bottom in one namespace, and return it.

    A block whose first line is a comment with the name of a file is written to this file of the
    current folder instead, from which later blocks import it.
    """
    namespace = {"__name__": "page"}
    with module_files() as write_file:
        for block in blocks(path, "python"):
            if match := re.match(r"# (\w+)\.py\n", block):
                write_file(match[1], block)
            else:
                exec(compile(block, page_id(path), "exec"), namespace)
    return namespace


@contextlib.contextmanager
def module_files():
    """Yield a function that writes a module into the current folder, importable in the block."""
    folder, written = os.getcwd(), []

    def write_file(name, text):
        Path(folder, f"{name}.py").write_text(text, encoding="utf-8")
        written.append(name)

    sys.path.insert(0, folder)
    try:
        yield write_file
    finally:
        sys.path.remove(folder)
        for name in written:
            sys.modules.pop(name, None)


def write_files(folder, code=""):
    """Write the files that pages name: texts, also as .gz; a run; an artifact, if `code` does not.

    `folder` becomes the current one in the tests.
    """
    shutil.copytree(FILES / "run", folder / "run")
    (folder / "run" / "corpus").mkdir()
    with zipfile.ZipFile(FILES / "run" / "best.keras") as model:
        tokenizer = model.read("assets/tokenizer.json")
    (folder / "run" / "corpus" / "tokenizer.json").write_bytes(tokenizer)
    (folder / "run" / "tokenizer.json").write_bytes(tokenizer)  # as of an imported run
    shutil.copytree(FILES / "artifact", folder / "quickstart" / "artifact")
    if not re.search(r'export\((?:\w+, )?"artifact"', code):
        shutil.copytree(FILES / "artifact", folder / "artifact")
    for name in TEXT_NAMES:
        for language in ("en", "de"):
            path = folder / f"{name}.{language}"
            path.write_text(TEXT, encoding="utf-8")
            path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(TEXT.encode()))
    pairs = [(line, line.title()) for line in TEXT.splitlines()]
    tabbed = "".join(f"{source}\t{target}\n" for source, target in pairs)
    for name in ("pairs.tsv", "test.tsv"):
        (folder / name).write_text(tabbed, encoding="utf-8")
    (folder / "pairs.csv").write_text(f"en,de\n{tabbed}".replace("\t", ","), encoding="utf-8")
    (folder / "in").mkdir()
    (folder / "in" / "monday.jsonl").write_text('{"text": "red cat"}\n', encoding="utf-8")
    objects = ({"translation": {"en": source, "de": target}} for source, target in pairs)
    lines = "".join(f"{json.dumps(value)}\n" for value in objects)
    (folder / "pairs.jsonl.xz").write_bytes(lzma.compress(lines.encode()))


def shell_commands(path, pattern):
    """The lines of a page's shell blocks that match a pattern, joined and without comments."""
    lines = "".join(blocks(path, "(?:bash|sh|shell)")).replace("\\\n", "").splitlines()
    return [re.sub(r"\s+#.*", "", line) for line in lines if re.match(pattern, line)]


def quick_commands(path):
    """The commands of a page that need no training, no export, no server and no Hub."""
    names = "prepare|translate|align|inspect|evaluate artifact|--"
    commands = shell_commands(path, rf"(?:echo [^|]*\| )?keras-bahdanau (?:{names})|python -c ")
    return [command for command in commands if "hf://" not in command]


def parts_of(node):
    """The parts of a string in code, of which expressions are values of any text."""
    return node.values if isinstance(node, ast.JoinedStr) else [node]


@functools.cache
def message_patterns():
    """Regular expressions of the strings in the code, which match any text as a value.

    Strings without 16 characters in a row, such as "Argument `...` must be ...", match too much.
    """
    patterns = set()
    for folder in (ROOT / "keras_bahdanau", ROOT / "export"):
        for path in folder.rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                parts = parts_of(node)
                match node:
                    case ast.Call(func=ast.Name(id="argument_error"), args=[name, expectation, *_]):
                        begin, must = ast.Constant("Argument `"), ast.Constant("` must ")
                        parts = [begin, *parts_of(name), must, *parts_of(expectation)]
                texts = [getattr(part, "value", None) for part in parts]
                texts = [text if isinstance(text, str) else "" for text in texts]
                if max(map(len, texts), default=0) >= 16:
                    patterns.add("".join(re.escape(text) or ".*" for text in texts))
    return [re.compile(pattern) for pattern in patterns]


def is_message(text):
    """Whether most of a text is one string of the code, with values filled in."""
    matches = (pattern.search(text) for pattern in message_patterns())
    return any(match and len(match[0]) > len(text) / 2 for match in matches)
