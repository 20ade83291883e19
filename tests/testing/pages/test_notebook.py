"""The notebook runs, and its page shows the stored outputs."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from testing.pages.notebook import notebook_page, run_notebook
from testing.repository import ROOT

NOTEBOOKS = sorted((ROOT / "docs").rglob("*.ipynb"))


@pytest.mark.slow(reason="a run in a kernel of its own: 14 s")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_gives_the_outputs_that_are_stored(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("nbclient", reason='notebooks need the extra "docs"')
    for name in [name for name in os.environ if name.startswith("RAY_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    run = run_notebook(path, tmp_path)
    stored = json.loads(path.read_text(encoding="utf-8"))
    assert shown(run["cells"]) == shown(stored["cells"])


def shown(cells: list[dict[str, Any]]) -> list[list[str]]:
    """The outputs of each cell of code: texts, and the word "picture" for each picture."""
    return [
        ["picture" if "data" in output else "".join(output["text"]) for output in cell["outputs"]]
        for cell in cells
        if cell["cell_type"] == "code"
    ]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_stored_outputs_are_of_one_run_from_the_first_cell_to_the_last(path: Path) -> None:
    code = [cell for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    assert not [output for cell in code for output in cell["outputs"] if output["output_type"] == "error"]
    assert any("picture" in given for given in shown(code))
    assert path.stat().st_size < 200_000


def test_a_page_has_the_cells_and_their_outputs(tmp_path: Path) -> None:
    cells = [
        {"cell_type": "markdown", "source": ["# Title\n", "text"]},
        {"cell_type": "code", "source": ["1 + 1"], "outputs": [
            {"output_type": "stream", "name": "stdout", "text": ["printed\n"]},
            {"output_type": "execute_result", "data": {"text/plain": ["2"]}},
            {"output_type": "display_data", "data": {"image/png": "AAAA\n", "text/plain": ["<Figure>"]}},
        ]},
    ]  # fmt: skip
    path = tmp_path / "a.ipynb"
    path.write_text(json.dumps({"cells": cells}))
    page = notebook_page(path)
    assert page.startswith("# Title\ntext\n\nThis page is a notebook")
    assert "```python\n1 + 1\n```" in page
    assert "```text\nprinted\n```" in page
    assert "data:image/png;base64,AAAA)" in page
    assert "<Figure>" not in page
    path.write_text(json.dumps({"cells": [*cells, {"cell_type": "code", "source": [], "outputs": [
        {"output_type": "error"}]}]}))  # fmt: skip
    with pytest.raises(ValueError, match="error"):
        notebook_page(path)


def test_what_a_cell_prints_in_pieces_is_one_output_and_its_progress_is_none(tmp_path: Path) -> None:
    nbformat = pytest.importorskip("nbformat", reason='notebooks need the extra "docs"')
    source = "import sys, time\nprint(1, flush=True)\ntime.sleep(0.5)\nprint(2)\nprint('no', file=sys.stderr)"
    source += "\ndisplay({'text/html': '<pre>rows</pre>', 'text/plain': 'rows'}, raw=True)"
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source)])
    nbformat.write(book, tmp_path / "a.ipynb")
    (cell,) = run_notebook(tmp_path / "a.ipynb", tmp_path)["cells"]
    assert [output["text"] for output in cell["outputs"]] == ["1\n2\n"]
