"""The command `evaluate` with an artifact that copies its source."""

import json

import click.testing
import pytest
from copy_artifact import make

from keras_bahdanau_cli.app import app
from keras_bahdanau_runtime.text.tokenizer import Tokenizer


@pytest.mark.parametrize("references", [["ein@@ er ist da"], ["einer ist da"]])
def test_references_of_a_model_of_split_text_may_be_split_or_joined(tmp_path, references):
    Tokenizer.from_pieces(["ein@@", "er", "ist", "da"]).save(tmp_path / "tokenizer.json")
    document = json.loads((tmp_path / "tokenizer.json").read_text("utf-8"))
    artifact = make(tmp_path / "artifact", document=document)
    (tmp_path / "a.en").write_text("ein@@ er ist da\n", "utf-8")
    (tmp_path / "a.de").write_text("\n".join(references) + "\n", "utf-8")
    arguments = ["evaluate", artifact, tmp_path / "a.en", tmp_path / "a.de"]
    result = click.testing.CliRunner().invoke(app, [str(each) for each in arguments])
    assert result.exit_code == 0, result.output
    assert "exact 100.0%" in result.output
