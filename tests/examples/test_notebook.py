"""The notebook, run from its first cell to its last."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).parents[2] / "examples/report.ipynb"


@pytest.mark.two_cores
def test_the_notebook_shows_tables_and_writes_a_page(tmp_path: Path) -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    NotebookClient(notebook, timeout=240, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    shown = [output.data for output in outputs if output.output_type == "execute_result"]
    assert "is chosen" in shown[0]["text/html"]
    assert "branch0" in shown[-2]["text/html"]
    assert 1e6 < int(shown[-1]["text/plain"]) < 5e6
