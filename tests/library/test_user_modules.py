"""Names of modules and classes that a user passes."""

import sys

import pytest

from keras_bahdanau import TrainingOptions
from keras_bahdanau.user_modules import check_module, import_user_module, split_class


def test_a_class_is_named_by_its_module_or_its_file():
    assert split_class("attention", "my_package.parts:Mine") == ("my_package.parts", "Mine")
    assert split_class("attention", r"C:\parts.py:Mine") == (r"C:\parts.py", "Mine")


@pytest.mark.parametrize("text", ["Mine", "parts:", ":Mine", "parts:Mine()", "parts.py"])
def test_another_form_is_refused(text):
    with pytest.raises(ValueError, match=r"`attention` must be MODULE:CLASS or FILE\.py:CLASS"):
        split_class("attention", text)


def test_options_refuse_a_class_of_the_script_and_a_model_without_attention():
    files = dict(source="a", target="b", validation_source="c", validation_target="d")
    with pytest.raises(ValueError, match="`attention` must name a class of a module, because othe"):
        TrainingOptions(**files, attention="__main__:Mine")
    with pytest.raises(ValueError, match="`attention` must be left out with `model` rnnencdec"):
        TrainingOptions(**files, attention="parts:Mine", model="rnnencdec")


@pytest.mark.parametrize(
    ("module", "message"),
    [
        ("missing_parts.py", "Received: 'missing_parts.py', which does not exist"),
        ("missing_parts", "'missing_parts'. PYTHONPATH must contain .* write missing_parts.py"),
        ("missing parts", "`import` must be the name of a module, or its file"),
        ("", "`import` must be the name of a module, or its file"),
    ],
)
def test_a_missing_module_is_named_without_an_import(module, message):
    with pytest.raises(ValueError, match=message):
        check_module("import", module)


def test_a_file_is_imported_from_its_folder_and_hides_no_other_module(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in ("some_user_parts", "json"):
        (tmp_path / f"{name}.py").write_text("number = 3\n", "utf-8")
    imported = import_user_module("import", str(tmp_path / "some_user_parts.py"))
    monkeypatch.delitem(sys.modules, "some_user_parts")
    assert imported.number == 3
    with pytest.raises(ValueError, match=r"no other module has the name of.*json is .*json"):
        import_user_module("import", str(tmp_path / "json.py"))
