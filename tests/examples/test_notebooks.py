"""The notebooks of the documentation run, with small models."""

import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "notebooks"
# Values of the cell "parameters" of each notebook.
SHORT = {
    "attention_layer": {"REVIEWS": 50, "EPOCHS": 1, "UNITS": 4},
    "dates": {"PAIRS": 64, "EPOCHS": 1, "UNITS": 8},
    "forecasting": {"SERIES": 50, "EPOCHS": 1, "UNITS": 4},
    "pointer_network": {"LISTS": 100, "EPOCHS": 1, "UNITS": 4},
    "pronunciation": {"WORDS": 64, "EPOCHS": 1, "UNITS": 8},
    "serving": {"NUMBERS": 64, "EPOCHS": 1, "UNITS": 8},
}
RESULTS = {
    "attention_layer": r"attention: [\d.]+% correct\nmean of the words: [\d.]+% correct",
    "dates": r"\d+ of 200 unseen dates are correct",
    "forecasting": r"attentive decoder: root mean squared error [\d.]+\n",
    "pointer_network": r"8 numbers: [\d.]+% of the lists sorted",
    "pronunciation": r"[\d.]+% of 200 unseen words are wrong, [\d.]+% of their phonemes\n",
    "serving": r"the service ended with status 0\n",
}


def test_every_notebook_is_tested():
    assert {path.stem for path in FOLDER.glob("*.py")} == set(SHORT) == set(RESULTS)


@pytest.mark.parametrize("name", SHORT)
def test_short_run_prints_its_result_and_draws(name, tmp_path, capsys):
    source = (FOLDER / f"{name}.py").read_text("utf-8")
    for parameter, value in {**SHORT[name], "OUTPUT": f"Path({str(tmp_path)!r})"}.items():
        source, count = re.subn(
            rf"^{parameter} = .*$", f"{parameter} = {value}", source, flags=re.M
        )
        assert count == 1, parameter
    namespace = {"__name__": "__main__"}
    exec(compile(source, name, "exec"), namespace)
    assert re.search(RESULTS[name], capsys.readouterr().out)
    assert (tmp_path / f"{name}.png").stat().st_size > 5000
    if "plt" in namespace:
        namespace["plt"].close("all")


@pytest.mark.parametrize("name", SHORT)
def test_notebook_has_cells_and_a_title(name):
    source = (FOLDER / f"{name}.py").read_text("utf-8")
    first, *others = re.split(r"^# %%", source, flags=re.M)
    assert "name: python3" in first
    assert re.match(r" \[markdown\]\n# # .+\n", others[0])
    assert sum(cell.startswith(' tags=["parameters"]\n') for cell in others) == 1
