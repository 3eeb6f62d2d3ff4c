"""Run tests against an installed wheel, outside the repository.

python .ci/test_wheel.py dist/keras_bahdanau-0.1.0-py3-none-any.whl tests/runtime ...

The wheel is installed in two new environments. One uses the dependencies of this Python's
environment and runs the tests. The other has only the extra `runtime`, and its command must name
the extra that is missing.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PRINT_PLACES = """
import keras_bahdanau, keras_bahdanau_cli, keras_bahdanau_export, keras_bahdanau_runtime
for package in (
    keras_bahdanau, keras_bahdanau_cli, keras_bahdanau_export, keras_bahdanau_runtime
):
    print(package.__file__)
"""


# Without the import paths of this process.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def run(*command, cwd, is_checked=True):
    """Run a command; return its output and errors."""
    finished = subprocess.run(
        list(map(str, command)), cwd=cwd, env=ENVIRONMENT, capture_output=True, text=True
    )
    if is_checked and finished.returncode != 0:
        sys.exit(f"{command} failed:\n{finished.stdout}{finished.stderr}")
    return finished


def install(folder, *requirements):
    """Create an environment with some requirements; return its folder of executables."""
    run(sys.executable, "-m", "venv", folder, cwd=ROOT)
    pip = [folder / "bin" / "python", "-m", "pip", "install", "--quiet", "--no-compile"]
    run(*pip, *requirements, cwd=ROOT)
    return folder / "bin"


def test_with_dependencies(wheel, tests, folder):
    """Run the tests with the wheel and the dependencies of this environment; return the status."""
    binaries = install(folder / "full", "--no-deps", wheel)
    [packages] = (folder / "full").glob("lib/*/site-packages")
    # The .pth files in this folder are not read, so an editable installation there is not found.
    (packages / "dependencies.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    checkout = folder / "checkout"
    shutil.copytree(ROOT / "tests", checkout / "tests")
    shutil.copy(ROOT / "pyproject.toml", checkout)
    python = binaries / "python"
    places = run(python, "-c", PRINT_PLACES, cwd=checkout).stdout.splitlines()
    assert all(Path(place).is_relative_to(packages) for place in places), places
    print(run(binaries / "keras-bahdanau", "--version", cwd=checkout).stdout, end="", flush=True)
    command = [python, "-m", "pytest", "-n", "2", "--dist", "loadfile", *tests]
    return subprocess.run(command, cwd=checkout, env=ENVIRONMENT).returncode


def test_runtime_alone(wheel, folder):
    """Check that the command of the extra `runtime` prints one line with the missing extra."""
    binaries = install(folder / "runtime", f"{wheel}[runtime]")
    run(binaries / "python", "-c", "import keras_bahdanau_runtime", cwd=folder)
    finished = run(binaries / "keras-bahdanau", "--help", cwd=folder, is_checked=False)
    [line] = finished.stderr.splitlines()
    assert finished.returncode == 1 and 'pip install "keras-bahdanau[cli]"' in line, finished
    print(f"with [runtime] only: {line}")


def main(wheel, *tests):
    """Test in both environments; exit with the status of the tests."""
    with tempfile.TemporaryDirectory() as folder:
        test_runtime_alone(Path(wheel).resolve(), Path(folder))
        sys.exit(test_with_dependencies(Path(wheel).resolve(), tests, Path(folder)))


if __name__ == "__main__":
    main(*sys.argv[1:])
