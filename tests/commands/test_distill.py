"""The command `distill`: a teacher that copies its source, and a student trained on its output."""

import re

import pytest
from command import history, run
from copy_artifact import make

TEXTS = "".join(f"say {n % 7} {n}\n" for n in range(16))


@pytest.fixture
def distill(tmp_path, monkeypatch, capsysbinary):
    """A function that runs the command in this process; returns its status and error output."""
    teacher = make(tmp_path / "teacher")
    texts = TEXTS + "\n" + "a dog on a boat " * 30 + "\n"
    (tmp_path / "a").write_text(texts.replace("\n", "\tunused\n"), "utf-16")
    held_out = tmp_path / "dev"
    held_out.write_text(TEXTS, "utf-16")
    options = {
        "validation-source": held_out, "validation-target": held_out, "vocabulary-size": 270,
        "units": 4, "embedding-dim": 4, "attention-units": 3, "batch-size": 8, "max-length": 6,
        "epochs": 1, "encoding": "utf-16", "output": tmp_path / "student",
    }  # fmt: skip
    flags = [part for name, value in options.items() for part in (f"--{name}", value)]

    def distill(*more):
        arguments = ("distill", teacher, tmp_path / "a", "--pairs", *flags, *more)
        status, _, err = run(monkeypatch, capsysbinary, *arguments)
        return status, err

    return distill


def test_student_is_trained_on_the_translations_and_the_command_resumes(distill, tmp_path):
    student = tmp_path / "student"
    status, err = distill()
    assert status == 0, err
    assert "a, pair 18: " in err
    for name in ("source.txt", "target.txt"):
        assert (student / "distilled" / name).read_text() == TEXTS
    assert (student / "best.keras").exists() and len(history(student)) == 1
    status, err = distill()
    assert status != 0 and "`output` must be a new folder, or `resume` be True" in err
    status, err = distill("--resume", "--n-best", 1)
    assert status != 0 and "`references` must be the one that" in err
    status, err = distill("--resume")
    assert status == 0 and len(history(student)) == 1, err


def test_a_student_with_a_wrong_attention_is_refused_before_the_teacher_translates(
    distill, tmp_path, monkeypatch
):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "student_attention.py").write_text(
        "from keras_bahdanau.layers import Attention\nclass Unfinished(Attention):\n    pass\n"
    )
    for name, words in (
        ("Missing", "which does not exist"),
        ("Unfinished", "must pass `check_attention`, .* has no method `memory`"),
    ):
        status, err = distill("--attention", f"student_attention:{name}")
        assert status != 0 and re.search(words, err), err
        assert not (tmp_path / "student").exists()
