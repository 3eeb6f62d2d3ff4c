"""Count the bugs of `table.py` that the tests find.

    python tests/mutation/run.py                 # every bug, with the tests of `make test`
    python tests/mutation/run.py --all           # with the tests of `make test-all`
    python tests/mutation/run.py NAME ...        # some of them
    python tests/mutation/run.py --missed-by RESULTS.jsonl
    python tests/mutation/run.py --check         # only list the entries that do not apply

Each bug is written into a copy of the working tree. The test files of its entry then run on each
backend until a test fails. For code that computes, tests/conformance runs, too.
Results are appended to a file. A bug that is already in this file is not run again.
"""

import argparse
import ast
import concurrent.futures
import json
import os
import queue
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from syntax import mutated
from table import MUTATIONS

ROOT = Path(__file__).resolve().parents[2]
PYTHON = ROOT / ".venv" / "bin" / "python"
BACKENDS = ("torch", "tensorflow", "jax")
SECONDS = 600  # for one backend; a bug may make a test wait for ever
CONFORMANCE = "tests/conformance"
# The tests of that folder for the code of each package. The others need no backend.
CONFORMANCE_OF = {
    "keras_bahdanau": [CONFORMANCE],
    "keras_bahdanau_export": [f"{CONFORMANCE}/test_export.py"],
    "keras_bahdanau_runtime": [],
    "keras_bahdanau_cli": [],
}


def package_of(mutation):
    return mutation.code.partition(":")[0].partition(".")[0]


def selection(mutation, backend, everything):
    """The test files and folders of an entry that a backend runs in `make test` or `test-all`."""
    files = [f"tests/{name}" for name in mutation.tests.split()]
    files = [file for file in files if not file.startswith(CONFORMANCE)]
    exports = [file for file in files if file.startswith("tests/export/")]
    others = [file for file in files if file not in exports]
    library = [file for file in others if file.startswith(("tests/library/", "tests/examples/"))]
    conformance = CONFORMANCE_OF[package_of(mutation)]
    if backend == "torch":
        return others + conformance
    if backend == "tensorflow":
        return exports + conformance + (library if everything else [])
    return conformance + (library if everything else [])


def copy_of_the_tree(folder):
    """A copy of the tracked files with their changes, and a link to the environment."""
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    for name in listing.splitlines():
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, folder / name)
    (folder / ".venv").symlink_to(ROOT / ".venv")
    return folder


def first_failure(tree, backend, files):
    """The first test that fails, or `None` where all pass."""
    environment = {
        **os.environ,
        "KERAS_BACKEND": backend,
        "PYTHONPATH": os.pathsep.join([str(tree), str(tree / "export")]),
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    command = [PYTHON, "-m", "pytest", "-x", "-p", "no:cacheprovider", *files]
    try:
        finished = subprocess.run(
            command, cwd=tree, env=environment, capture_output=True, text=True, timeout=SECONDS
        )
    except subprocess.TimeoutExpired:
        return f"no end after {SECONDS} s"
    if finished.returncode in (0, 5):  # 5: every test is skipped
        return None
    line = re.search(r"^(?:FAILED|ERROR) (\S+)", finished.stdout, re.M)
    return line.group(1) if line else f"exit status {finished.returncode}"


def examine(mutation, tree, everything):
    """Run the tests of a bug until one fails; return the entry of the results."""
    begin = time.monotonic()
    path, code = mutated(mutation, tree)
    source = path.read_text("utf-8")
    path.write_text(code, "utf-8")
    name = path.relative_to(tree).as_posix()
    entry = {"name": mutation.name, "path": name, "backend": None, "test": None}
    try:
        # TensorFlow runs tests/export, which is the most likely place for a bug of that package.
        exports = package_of(mutation) == "keras_bahdanau_export"
        for backend in sorted(BACKENDS, key=lambda name: exports and name != "tensorflow"):
            files = selection(mutation, backend, everything)
            test = first_failure(tree, backend, files) if files else None
            if test is not None:
                entry.update(backend=backend, test=test)
                break
    finally:
        path.write_text(source, "utf-8")
    return {**entry, "seconds": round(time.monotonic() - begin)}


def errors_of(mutations):
    """Return one message per entry that does not apply to the code, or does not change it."""
    messages = []
    for mutation in mutations:
        try:
            path, code = mutated(mutation, ROOT)
        except ValueError as error:
            messages.append(str(error))
        else:
            if ast.dump(ast.parse(path.read_text("utf-8"))) == ast.dump(ast.parse(code)):
                messages.append(f"Mutation {mutation.name}: `new` must differ from `old`.")
    return messages


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", help="bugs; all of them without a name")
    parser.add_argument("--all", action="store_true", help="the tests of `make test-all`")
    parser.add_argument("--missed-by", type=Path, help="only the bugs that these results missed")
    parser.add_argument("--check", action="store_true", help="only check that entries apply")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--output", type=Path, default=Path("mutations.jsonl"))
    options = parser.parse_args()
    names = set(options.names) or {mutation.name for mutation in MUTATIONS}
    if unknown := names - {mutation.name for mutation in MUTATIONS}:
        parser.error(f"`names` must be in tests/mutation/table.py. Received: {sorted(unknown)}")
    if options.missed_by:
        lines = options.missed_by.read_text("utf-8").splitlines()
        names &= {entry["name"] for entry in map(json.loads, lines) if entry["test"] is None}
    errors = errors_of([mutation for mutation in MUTATIONS if mutation.name in names])
    if errors or options.check:
        print("\n".join([*errors, f"{len(errors)} of {len(names)} entries do not apply."]))
        return 1 if errors else 0
    entries = []
    if options.output.exists():
        entries = [json.loads(line) for line in options.output.read_text("utf-8").splitlines()]
    todo = [m for m in MUTATIONS if m.name in names - {entry["name"] for entry in entries}]
    with tempfile.TemporaryDirectory() as folder, options.output.open("a", encoding="utf-8") as out:
        trees = queue.Queue()
        for number in range(options.jobs):
            trees.put(copy_of_the_tree(Path(folder, str(number))))

        def work(mutation):
            tree = trees.get()
            try:
                return examine(mutation, tree, options.all)
            finally:
                trees.put(tree)

        with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
            for entry in pool.map(work, todo):
                print(json.dumps(entry), file=out, flush=True)
                entries.append(entry)
                found_by = f"{entry['backend']}: {entry['test']}" if entry["test"] else "MISSED"
                print(f"{entry['name']:55} {entry['seconds']:4} s  {found_by}", flush=True)
    missed = [entry["name"] for entry in entries if entry["test"] is None]
    print(f"{len(entries) - len(missed)} of {len(entries)} found. Missed: {missed}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
