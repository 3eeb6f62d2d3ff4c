"""The command under what shells, pipes, disks and file names do to it."""

import codecs
import os
import signal
import subprocess
import sys

import pytest
from copy_artifact import make

COMMAND = [sys.executable, "-m", "keras_bahdanau_export.cli"]
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


@pytest.fixture(scope="module")
def artifact(tmp_path_factory):
    return make(tmp_path_factory.mktemp("command") / "artifact")


def run(*arguments, data=b"", **options):
    return subprocess.run(
        [*COMMAND, *map(str, arguments)],
        input=data,
        capture_output=True,
        env=ENVIRONMENT,
        **options,
    )


def assert_clear(finished, *words):
    """Exit status 1 and one line that says why."""
    said = finished.stderr.decode()
    assert finished.returncode == 1, said
    assert "Traceback" not in said and "\x1b" not in said
    assert said.startswith("error: ") and said.count("\n") == 1, said
    for word in words:
        assert word in said


def test_a_line_is_answered_before_the_next_one_comes(artifact):
    with subprocess.Popen(
        [*COMMAND, "translate", str(artifact)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=ENVIRONMENT,
    ) as waiting:  # fmt: skip
        for text in (b"a man\n", b"\n", b"a dog on a boat\n"):
            waiting.stdin.write(text)
            waiting.stdin.flush()
            assert waiting.stdout.readline() == text
        waiting.stdin.close()
        assert waiting.wait() == 0


def test_lines_come_back_in_order_whatever_their_lengths(artifact):
    texts = [f"a {'dog ' * (n * 37 % 11)}{n}".rstrip() for n in range(5000)]
    data = "".join(f"{text}\n" for text in texts).encode()
    finished = run("translate", artifact, data=codecs.BOM_UTF8 + data)
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout == data


def test_lines_that_cannot_be_translated_are_left_blank_and_named(artifact, tmp_path):
    data = b"a man\n" + b"a dog on a boat " * 30 + b"\na dog\n"
    finished = run("translate", artifact, "-o", tmp_path / "out", data=data)
    said = finished.stderr.decode()
    assert finished.returncode == 1
    assert said.startswith("line 2: ") and "at most 40 tokens" in said
    assert said.splitlines()[-1] == "error: 1 lines have no translation."
    assert (tmp_path / "out").read_bytes() == b"a man\n\na dog\n"
    assert run("translate", artifact, "--truncate", data=data).returncode == 0


def test_bytes_that_are_no_text_are_named_after_the_lines_before_them(artifact, tmp_path):
    data = b"a man\n\xff\n"
    finished = run("translate", artifact, data=data)
    assert finished.stdout in (b"", b"a man\n")  # the source may fail before the first window
    assert_clear(finished, "line 2: not UTF-8")
    assert_clear(run("translate", artifact, "-o", tmp_path / "out", data=data), "line 2")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has other limits.")
def test_a_full_disk_leaves_nothing_half_written(artifact, tmp_path):
    import resource

    def little_room():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))

    data = b"a man on a bike\n" * 5000
    finished = run("translate", artifact, "-o", tmp_path / "out", data=data, preexec_fn=little_room)
    assert_clear(finished, "File too large")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--shard", "2"], "`shard` must be I/N"),
        (["--shard", "3/2"], "`shard` must be (i, n) with i from 1 to n. Received: (3, 2)"),
        (["--engine", "spark"], "`engine` must be local or ray. Received: 'spark'"),
        (["--actors", "2"], "`actors` must be given with `engine` ray. Received: 2"),
        (["--engine", "ray", "--resume"], "`resume` must be given with `engine` local"),
    ],
)
def test_options_that_do_not_fit_are_refused(artifact, tmp_path, arguments, words):
    (tmp_path / "in").write_text("a man\n")
    command = ["translate", artifact, tmp_path / "in", "-o", tmp_path / "out", *arguments]
    assert_clear(run(*command), words)
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_what_needs_a_file_says_so_of_a_stream(artifact, tmp_path):
    data = b"a man\n"
    assert_clear(run("translate", artifact, tmp_path / "a.jsonl"), "`source`", "an `output`")
    assert_clear(run("translate", artifact, "--resume", data=data), "`resume`", "an `output`")
    assert_clear(run("translate", artifact, "--text-column", "a", data=data), "an `output`")
    assert_clear(run("translate", artifact, "--engine", "ray", data=data), "must be folders")


# A file system of 200 kB, seen by this process and its children only.
SMALL = ["unshare", "-rm", "sh", "-c", 'mount -t tmpfs -o size=200k none "$0" && cd "$0" && "$@"']


@pytest.fixture(scope="module")
def small_disk(tmp_path_factory):
    place = str(tmp_path_factory.mktemp("disk"))
    if sys.platform != "linux" or subprocess.run([*SMALL, place, "true"]).returncode:
        pytest.skip("This system lets nobody mount a file system.")
    return [*SMALL, place]


def test_what_a_full_file_system_holds_is_gone_on_with_when_there_is_room(
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
    first, second = ["1", "other", "out.journal", "out.partial"], ["1", "0", "out", "same"]
    assert finished.stdout.decode().split() == [*first, *second], finished.stderr
    full, begun = finished.stderr.decode().splitlines()
    assert full == "error: [Errno 28] No space left on device"
    assert "`resume` must be True" in begun


def test_an_artifact_that_does_not_fit_is_not_there(small_disk):
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
def test_a_closed_stream_is_an_error(artifact, closed, name):
    line = f"echo a man | {' '.join(COMMAND)} translate {artifact} {closed}"
    finished = subprocess.run(line, shell=True, capture_output=True, env=ENVIRONMENT)
    assert_clear(finished, f"`{name}`")


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has other pipes.")
def test_a_reader_who_leaves_is_no_traceback(artifact):
    line = f"yes 'a man' | head -n 20000 | {' '.join(COMMAND)} translate {artifact} | head -n 1"
    finished = subprocess.run(line, shell=True, capture_output=True, env=ENVIRONMENT)
    assert finished.stdout == b"a man\n" and finished.stderr == b""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has other signals.")
def test_ctrl_c_ends_the_wait_for_a_line(artifact):
    with subprocess.Popen(
        [*COMMAND, "translate", str(artifact)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENVIRONMENT,
        # What a shell starts in the background ignores the signal, and so does all that it starts.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as waiting:  # fmt: skip
        waiting.stdin.write(b"a man\n")
        waiting.stdin.flush()
        assert waiting.stdout.readline() == b"a man\n"
        waiting.send_signal(signal.SIGINT)
        assert waiting.wait(60) == 130
        assert b"Fatal" not in waiting.stderr.read()


NAMES = ["[/x]", "[red]x", "\x1b[2Jx", "a\nb", "no such"]


@pytest.mark.parametrize("name", NAMES)
def test_names_are_shown_as_they_are_and_do_nothing_to_a_terminal(artifact, tmp_path, name):
    finished = run("inspect", name, cwd=tmp_path)
    said = finished.stderr.decode()
    assert finished.returncode == 1 and "Traceback" not in said and "\x1b" not in said
    assert repr(name)[1:-1] in said
    link = tmp_path / name
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(artifact)
    shown = run("inspect", name, cwd=tmp_path)
    assert shown.returncode == 0 and b"\x1b" not in shown.stdout, shown.stderr
    assert name.split("\n")[0].replace("\x1b", "\\x1b") in shown.stdout.decode()


def test_what_a_manifest_says_is_neither_markup_nor_a_command(tmp_path):
    odd = {"note": "[red]\x1b[2J[/x]", "[b]": ["\x1b]0;title\x07"], "a": {"[/y]": "\x1b"}}
    finished = run("inspect", make(tmp_path / "a", **odd))
    assert finished.returncode == 0, finished.stderr
    shown = finished.stdout.decode()
    assert "\x1b" not in shown and "\x07" not in shown
    assert "[red]\\x1b[2J[/x]" in shown and "[/y]" in shown


@pytest.mark.parametrize("command", ["translate", "inspect", "evaluate", "align"])
def test_every_command_says_in_a_line_what_is_wrong_with_an_artifact(artifact, tmp_path, command):
    (tmp_path / "text").write_text("a man\n")
    files = {"translate": [tmp_path / "text"], "align": ["a man"], "inspect": []}
    rest = files.get(command, [tmp_path / "text", tmp_path / "text"])
    broken = make(tmp_path / "a")
    graph = broken / "model.onnx"
    graph.write_bytes(graph.read_bytes()[:-1] + b"\x00")
    assert_clear(run(command, broken, *rest), "sha256")
    (broken / "manifest.json").write_text('{"format": "keras_bahdanau artifact"}')
    assert_clear(run(command, broken, *rest), "'format_version'")
