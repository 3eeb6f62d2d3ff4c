"""The Python of pages that export runs, top to bottom; tests/test_docs.py runs the others."""

import pytest
from pages import PAGES, blocks, is_export, page_id, run_python, write_files


@pytest.mark.parametrize("path", [path for path in PAGES if is_export(path)], ids=page_id)
def test_python_of_a_page_that_exports_runs(path, tmp_path, monkeypatch):
    write_files(tmp_path, code="".join(blocks(path, "python")))
    monkeypatch.chdir(tmp_path)
    run_python(path)
