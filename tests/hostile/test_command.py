"""The command with unusual shells, pipes, disks, file names and artifacts."""

import codecs
import contextlib
import functools
import os
import signal
import subprocess
import sys
import threading

import pytest
from copy_artifact import make

from keras_bahdanau_cli import __main__ as cli
from keras_bahdanau_runtime.artifact import publish, write_manifest

COMMAND = [sys.executable, "-m", "keras_bahdanau_cli"]
# With this variable Python's standard output has no buffer, so a missing flush would not matter.
ENVIRONMENT = {name: os.environ[name] for name in os.environ if name != "PYTHONUNBUFFERED"}


@pytest.fixture(scope="module")
def artifact(tmp_path_factory):
    return make(tmp_path_factory.mktemp("command") / "artifact")


def run(*arguments, **options):
    """Run the command in a child process."""
    command = [*COMMAND, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, env=ENVIRONMENT, **options)


@pytest.fixture
def call(monkeypatch, capsysbinary, tmp_path):
    """Run the command in this process, in an empty folder and without standard input."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["keras-bahdanau", *map(str, arguments)])
        status = 0
        with open(os.devnull) as stdin, monkeypatch.context() as patch:
            patch.setattr(sys, "stdin", stdin)
            try:
                cli.main()
            except SystemExit as end:
                status = end.code or 0
        return subprocess.CompletedProcess(arguments, status, *capsysbinary.readouterr())

    return call


@contextlib.contextmanager
def translating(artifact, **options):
    """Run `translate` on standard input. A timer kills it so that no test waits for ever."""
    with subprocess.Popen(
        [*COMMAND, "translate", str(artifact)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=ENVIRONMENT, **options,
    ) as process:  # fmt: skip
        timer = threading.Timer(60, process.kill)
        timer.start()
        try:
            yield process
        finally:
            timer.cancel()


def assert_one_line_error(finished, *words, status=2):
    """Check for an exit status and a message of one line with these words."""
    error = finished.stderr.decode()
    assert finished.returncode == status, error
    assert "Traceback" not in error and "\x1b" not in error
    assert error.startswith("error: ") and error.count("\n") == 1, error
    for word in words:
        assert word in error


def test_each_line_is_translated_before_the_next_one_is_written(artifact):
    with translating(artifact) as process:
        for text in (b"a man\n", b"\n", b"a dog on a boat\n"):
            process.stdin.write(text)
            process.stdin.flush()
            assert process.stdout.readline() == text
        process.stdin.close()
        assert process.wait() == 0


def test_lines_of_any_length_keep_their_order(artifact):
    texts = [f"a {'dog ' * (n * 37 % 11)}{n}".rstrip() for n in range(5000)]
    data = "".join(f"{text}\n" for text in texts).encode()
    finished = run("translate", artifact, input=codecs.BOM_UTF8 + data)
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout == data


def test_too_long_lines_are_left_blank_and_reported(artifact, tmp_path):
    data = b"a man\n" + b"a dog on a boat " * 30 + b"\na dog\n"
    finished = run("translate", artifact, "-o", tmp_path / "out", input=data)
    error = finished.stderr.decode()
    assert finished.returncode == 3
    assert error.startswith("line 2: ") and "at most 40 tokens" in error
    assert error.splitlines()[-1] == "error: Without a translation: 1 row."
    assert (tmp_path / "out").read_bytes() == b"a man\n\na dog\n"
    assert run("translate", artifact, "--truncate", input=data).returncode == 0


@pytest.mark.parametrize("output", ["", "-", "out"])
def test_lines_that_are_not_utf8_are_left_blank_and_reported(artifact, tmp_path, output):
    arguments = ["-", "-o", output] if output else []
    data = b"a man\n\xff\na dog\n"
    finished = run("translate", artifact, *arguments, input=data, cwd=tmp_path)
    assert finished.returncode == 3
    lines = finished.stderr.decode().splitlines()
    assert lines[0] == "line 2: not UTF-8 (byte 0xff, invalid start byte)."
    assert lines[-1] == "error: Without a translation: 1 row."
    assert len(lines) == (3 if output == "out" else 2)  # with a summary
    written = (tmp_path / "out").read_bytes() if output == "out" else finished.stdout
    assert written == b"a man\n\na dog\n"


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such names.")
def test_message_with_a_path_of_several_lines_is_one_line(artifact, tmp_path):
    name, shown = "a\nb\x1b[31m\u2028c\td", r"a\nb\x1b[31m\u2028c\td"
    finished = run("score", artifact, f"{name}1", f"{name}2", cwd=tmp_path)
    [line] = finished.stderr.decode().splitlines()
    assert line.startswith("error: ") and rf"{shown}1" in line.replace("\\\\", "\\")
    (tmp_path / name).write_text("a man\n")
    for _ in range(2):  # an error, and then a warning of the log
        assert run("translate", artifact, name, "-o", "out", cwd=tmp_path).returncode in (0, 2)
        finished = run("translate", artifact, name, "-o", f"{name}out", "--resume", cwd=tmp_path)
    logged = finished.stderr.decode()
    assert f"{shown}out exists:" in " ".join(logged.split()) and "\x1b" not in logged
    finished = run("translate", artifact, name, "-o", name, cwd=tmp_path)
    [line] = finished.stderr.decode().splitlines()
    assert line.startswith("error: Argument `output` must be a new file.")


@pytest.mark.parametrize("arguments", [["-", "text"], ["text", "-"]])
def test_evaluate_reads_either_side_from_standard_input(artifact, tmp_path, arguments):
    (tmp_path / "text").write_bytes(b"a man on a bike\na dog\n")
    data = b"a man on a bike\na cat\n"
    finished = run("evaluate", artifact, *arguments, input=data, cwd=tmp_path)
    assert b"exact 50.0%" in finished.stdout, finished.stderr
    names = " and ".join("standard input" if name == "-" else name for name in arguments)
    assert f"{names}: 1 of 2 (50.0%) pairs are identical" in finished.stderr.decode()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="This system has no /dev/full.")
@pytest.mark.parametrize("command", ["translate", "inspect"])
def test_full_standard_output_is_named(artifact, command):
    line = f"echo a man | {' '.join(COMMAND)} {command} {artifact} > /dev/full"
    finished = subprocess.run(line, shell=True, capture_output=True, env=ENVIRONMENT)
    assert_one_line_error(finished, "No space left on device: 'standard output'", status=1)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has other limits.")
def test_full_disk_leaves_no_partial_output(artifact, tmp_path):
    import resource

    def limit():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))

    data = b"a man on a bike\n" * 5000
    finished = run("translate", artifact, "-o", tmp_path / "out", input=data, preexec_fn=limit)
    assert_one_line_error(finished, "File too large: ", "out.partial'", status=1)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--shard", "2"], "`shard` must be I/N"),
        (["--shard", "3/2"], "`shard` must be (i, n) with i from 1 to n. Received: (3, 2)"),
        (["--engine", "spark"], "`engine` must be local or ray. Received: 'spark'"),
        (["--actors", "2"], "`actors` must be used with `engine` ray. Received: 2"),
        (["--engine", "ray", "--resume"], "`resume` must be used with `engine` local"),
    ],
)
def test_options_that_do_not_fit_are_refused(artifact, tmp_path, call, arguments, words):
    (tmp_path / "in").write_text("a man\n")
    assert_one_line_error(call("translate", artifact, "in", "-o", "out", *arguments), words)
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["a.jsonl"], ["`sources`", "an `output`"]),
        (["a", "b"], ["`output` must be a folder for several sources"]),
        (["-", "b", "-o", "out"], ["`sources` must be files for an output folder"]),
        (["--resume"], ["`resume`", "an `output`"]),
        (["--text-column", "a"], ["an `output`"]),
        (["--engine", "ray"], ["must be files and a folder for the engine ray"]),
    ],
)
def test_options_that_need_a_file_are_refused_for_a_stream(artifact, call, arguments, words):
    assert_one_line_error(call("translate", artifact, *arguments), *words)


# A file system of 200 kB that only this process and its children see.
SMALL = ["unshare", "-rm", "sh", "-c", 'mount -t tmpfs -o size=200k none "$0" && cd "$0" && "$@"']


@pytest.fixture(scope="module")
def small_disk(tmp_path_factory):
    folder = str(tmp_path_factory.mktemp("disk"))
    if sys.platform != "linux" or subprocess.run([*SMALL, folder, "true"]).returncode:
        pytest.skip("This system does not allow mounting a file system.")
    return [*SMALL, folder]


def test_translation_that_filled_the_disk_is_resumed_when_there_is_room(
    artifact, small_disk, tmp_path
):
    (tmp_path / "texts").write_bytes(b"a man on a bike\n" * 9000)  # 144 kB
    line = "; ".join([
        "head -c 120000 /dev/zero > other", '"$@"', "echo $?", "ls -A",
        "rm other", '"$@"', "echo $?", '"$@" --resume', "echo $?", "ls -A",
        'cmp out "$0" && echo same',
    ])  # fmt: skip
    texts = str(tmp_path / "texts")
    command = [*COMMAND, "translate", str(artifact), texts, "-o", "out"]
    finished = subprocess.run(
        [*small_disk, "sh", "-c", line, texts, *command], capture_output=True, env=ENVIRONMENT
    )
    first, second = (
        ["1", "other", "out.journal", "out.partial"],
        ["2", "0", ".out.journal", "out", "same"],
    )
    assert finished.stdout.decode().split() == [*first, *second], finished.stderr
    disk_error, resume_error, _ = finished.stderr.decode().splitlines()
    assert disk_error == "error: [Errno 28] No space left on device: 'out.partial'"
    assert "`resume` must be True" in resume_error


def test_artifact_that_does_not_fit_on_the_disk_is_not_published(small_disk):
    code = (
        "from keras_bahdanau_runtime.artifact import publish, write_manifest\n"
        "with publish('a') as folder:\n"
        "    (folder / 'a.bin').write_bytes(bytes(100_000))\n"
        "    write_manifest(folder, {'n': 1})\n"
        "try:\n"
        "    with publish('a', overwrite=True) as folder:\n"
        "        (folder / 'a.bin').write_bytes(bytes(150_000))\n"
        "        write_manifest(folder, {'n': 2})\n"
        "except OSError as error:\n"
        "    print(error.strerror)\n"
        "import os\n"
        "from keras_bahdanau_runtime.manifest import read_manifest\n"
        "print(os.listdir('.'), read_manifest('a').other)\n"
    )
    command = [*small_disk, sys.executable, "-c", code]
    finished = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT)
    assert finished.stdout == "No space left on device\n['a'] {'n': 1}\n", finished.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="A shell of Windows closes no streams.")
@pytest.mark.parametrize(("closed", "name"), [("<&-", "stdin"), (">&-", "stdout")])
def test_closed_standard_stream_is_refused(artifact, closed, name):
    line = f"echo a man | {' '.join(COMMAND)} translate {artifact} {closed}"
    finished = subprocess.run(line, shell=True, capture_output=True, env=ENVIRONMENT)
    assert_one_line_error(finished, f"`{name}`")


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has other pipes.")
def test_reader_that_closes_the_pipe_causes_no_traceback(artifact):
    line = f"yes 'a man' | head -n 20000 | {' '.join(COMMAND)} translate {artifact} | head -n 1"
    finished = subprocess.run(line, shell=True, capture_output=True, env=ENVIRONMENT)
    assert finished.stdout == b"a man\n" and finished.stderr == b""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has other signals.")
def test_ctrl_c_ends_the_wait_for_a_line(artifact):
    # A background job of a shell ignores the signal, and its child processes inherit this.
    restore_signal = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    options = {"stderr": subprocess.PIPE, "preexec_fn": restore_signal}
    with translating(artifact, **options) as process:
        process.stdin.write(b"a man\n")
        process.stdin.flush()
        assert process.stdout.readline() == b"a man\n"
        process.send_signal(signal.SIGINT)
        assert process.wait() == 130
        assert b"Fatal" not in process.stderr.read()


@pytest.mark.parametrize("name", ["[/x]", "[red]x", "\x1b[2Jx", "a\nb", "no such"])
def test_artifact_names_are_shown_without_markup_and_control_characters(
    artifact, tmp_path, call, name
):
    finished = call("inspect", name)
    error = finished.stderr.decode()
    assert finished.returncode == 4 and "Traceback" not in error and "\x1b" not in error
    assert repr(name)[1:-1] in error
    link = tmp_path / name
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(artifact)
    finished = call("inspect", name)
    assert finished.returncode == 0 and b"\x1b" not in finished.stdout, finished.stderr
    assert name.split("\n")[0].replace("\x1b", "\\x1b") in finished.stdout.decode()


def test_manifest_and_file_names_are_shown_without_markup_and_control_characters(tmp_path, call):
    odd = {"note": "[red]\x1b[2J[/x]", "[b]": ["\x1b]0;title\x07"], "a": {"[/y]": "\x1b"}}
    with publish(tmp_path / "a") as folder:
        (folder / "[bold]weights").touch()
        write_manifest(folder, odd)
    finished = call("inspect", "a")
    assert finished.returncode == 0, finished.stderr
    output = finished.stdout.decode()
    assert "\x1b" not in output and "\x07" not in output
    assert "[red]\\x1b[2J[/x]" in output and "[/y]" in output and "[bold]weights" in output


@pytest.mark.parametrize(
    "command", ["translate", "inspect", "evaluate", "score", "align", "select"]
)
def test_every_command_reports_a_damaged_artifact_in_one_line(tmp_path, call, command):
    (tmp_path / "text").write_text("a man\n")
    arguments = {"translate": ["text"], "select": ["text"], "inspect": []}
    rest = arguments.get(command, ["text", "text"])
    graph = make(tmp_path / "a") / "model.onnx"
    graph.write_bytes(graph.read_bytes()[:-1] + b"\x00")
    assert_one_line_error(call(command, "a", *rest), "sha256", status=4)
    graph.with_name("manifest.json").write_text('{"format": "keras_bahdanau artifact"}')
    assert_one_line_error(call(command, "a", *rest), "'format_version'", status=4)
