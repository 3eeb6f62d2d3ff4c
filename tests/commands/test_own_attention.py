"""`train --attention` with a class of a file, and the commands that load such a run."""

import json
import re
import shutil
import sys

import keras
import pytest
from command import run

from keras_bahdanau.training import load_best

MODULE = """
import keras
from keras import ops

from keras_bahdanau.layers import ScoredAttention


@keras.saving.register_keras_serializable(package="my_attention")
class GaussianAttention(ScoredAttention):
    def __init__(self, units, width=2.0, **kwargs):
        super().__init__(**kwargs)
        self.units, self.width = units, width

    def build(self, query_shape, value_shape, key_shape=None):
        super().build(query_shape, value_shape, key_shape)
        self.query_kernel = self.add_weight(shape=(query_shape[-1], self.units), name="query")
        self.position_kernel = self.add_weight(shape=(self.units, 1), name="position")

    def lengths(self, memory):
        return ops.reshape(self.source_lengths(memory), (-1, 1, 1))

    def scores(self, query, memory, chunked=False):
        hidden = ops.tanh(ops.matmul(query, self.query_kernel))
        share = ops.cast(ops.sigmoid(ops.matmul(hidden, self.position_kernel)), "float32")
        position = ops.expand_dims(self.source_positions(memory), 1)
        return -ops.square((position - self.lengths(memory) * share) / self.width)

    def get_config(self):
        return {**super().get_config(), "units": self.units, "width": self.width}


@keras.saving.register_keras_serializable(package="my_attention")
class PaddedAttention(GaussianAttention):
    def lengths(self, memory):
        return ops.cast(ops.shape(memory.keys)[1], "float32")


class WithTwoArguments(GaussianAttention):
    def __init__(self, units, width, **kwargs):
        super().__init__(units, width, **kwargs)


number = 3
"""
CLASS = "my_attention>GaussianAttention"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with texts and the file of the class."""
    folder = tmp_path_factory.mktemp("own_attention")
    (folder / "my_attention.py").write_text(MODULE, "utf-8")
    texts = [f"{first} {second}\n" for first in "abcd" for second in "efgh"]
    (folder / "texts").write_text("".join(texts), "utf-8")
    return folder


def arguments(folder, output, *more):
    texts = [folder / "texts"] * 2
    validation = ["--validation-source", texts[0], "--validation-target", texts[1]]
    sizes = ["--units", 4, "--embedding-dim", 3, "--attention-units", 5, "--epochs", 1]
    return ["train", *texts, *validation, *sizes, "--output", output, *more]


@pytest.fixture
def forget(monkeypatch):
    """A function after which the class is not imported, as in a new process."""

    def forget_class():
        for name in [name for name in keras.saving.get_custom_objects() if "my_attention>" in name]:
            monkeypatch.delitem(keras.saving.get_custom_objects(), name)
        monkeypatch.delitem(sys.modules, "my_attention", raising=False)

    monkeypatch.setattr(sys, "path", [*sys.path])
    return forget_class


@pytest.fixture
def trained(folder, monkeypatch, capsysbinary, forget):
    """A run with the class, which is not imported any more."""
    if not (folder / "run").exists():
        chosen = f"{folder / 'my_attention.py'}:GaussianAttention"
        status, _, err = run(
            monkeypatch,
            capsysbinary,
            *arguments(folder, folder / "run", "--attention", chosen),
        )
        assert status == 0, err
    forget()
    return folder / "run"


def test_a_run_records_the_class_and_loads_after_its_import(trained, folder, monkeypatch):
    options = json.loads((trained / "options.json").read_text("utf-8"))
    assert options["attention"] == f"{folder / 'my_attention.py'}:GaussianAttention"
    message = (
        r"`run` must be a model whose classes are imported. If you trust .* `import my_attention` "
        rf"before.* --import.*{re.escape(str(trained))}.*GaussianAttention of my_attention"
    )
    with pytest.raises(ValueError, match=message):
        load_best(trained)
    assert "my_attention" not in sys.modules
    monkeypatch.syspath_prepend(folder)
    __import__("my_attention")
    attention = load_best(trained).decoder.attention
    assert (type(attention).__name__, attention.units, attention.width) == (
        "GaussianAttention",
        5,
        2.0,
    )


def test_a_command_imports_the_module_that_the_user_names(
    trained, folder, monkeypatch, capsysbinary
):
    command = ["evaluate", trained, folder / "texts", folder / "texts"]
    status, _, err = run(monkeypatch, capsysbinary, *command)
    assert status != 0 and "GaussianAttention of my_attention" in err and str(trained) in err
    assert "my_attention" not in sys.modules
    status, out, err = run(
        monkeypatch, capsysbinary, *command, "--import", folder / "my_attention.py"
    )
    assert status == 0, err
    assert out.startswith("BLEU ")


def test_a_resumed_run_and_one_with_its_weights_import_the_class(
    trained, folder, tmp_path, monkeypatch, capsysbinary, forget
):
    chosen = ["--attention", f"{folder / 'my_attention.py'}:GaussianAttention"]
    command = arguments(folder, trained, *chosen, "--resume")
    status, _, err = run(monkeypatch, capsysbinary, *command)
    assert status == 0, err
    forget()
    command = arguments(folder, tmp_path / "adapted", "--init", trained)
    status, _, err = run(monkeypatch, capsysbinary, *command)
    assert status != 0 and "class to `train --attention`" in err
    shutil.rmtree(tmp_path / "adapted")
    status, _, err = run(monkeypatch, capsysbinary, *command, *chosen)
    assert status == 0, err
    wrong = f"{folder / 'my_attention.py'}:PaddedAttention"
    other = arguments(folder, tmp_path / "other", "--init", trained, "--attention", wrong)
    status, _, err = run(monkeypatch, capsysbinary, *other)
    assert status != 0 and "is 'my_attention:PaddedAttention' instead of 'my_attention:Gau" in err


REFUSED = {
    "PaddedAttention": r"PaddedAttention fails `check_attention`: - padding: .*source_lengths",
    "WithTwoArguments": r"no required arguments except `units`.*\(units, width, \*\*kwargs\)",
    "number": r"name a subclass of .*Attention. Received: '.*number', which is 3",
    "Missing": r"name a subclass of .*Attention. Received: '.*Missing', which does not exist",
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_wrong_class_is_refused_before_training(
    name, folder, tmp_path, monkeypatch, capsysbinary, forget
):
    chosen = f"{folder / 'my_attention.py'}:{name}"
    command = arguments(folder, tmp_path / "run", "--attention", chosen)
    status, _, err = run(monkeypatch, capsysbinary, *command)
    forget()
    assert status != 0 and re.search(REFUSED[name], err), err
    assert not (tmp_path / "run" / "last.keras").exists()
