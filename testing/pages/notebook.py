"""Notebooks: run them, and make pages of them.

    python -m testing.pages.notebook docs/notebooks/first-run.ipynb

runs a notebook in a folder of its own and stores its outputs, without accidental differences from run to run. The
page is made of the stored outputs; making it runs nothing.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

Cell = Mapping[str, Any]
Notebook = dict[str, Any]
_METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def run_notebook(path: Path, folder: Path, timeout: float = 240) -> Notebook:
    """The notebook with the outputs of a run, in cells without times and identities of the run.

    Args:
        path: of the notebook, which is not changed.
        folder: where it runs.
        timeout: seconds for each cell.

    Raises:
        nbclient.exceptions.CellExecutionError: a cell failed.
    """
    import nbclient
    import nbformat

    book = nbformat.read(path, as_version=4)
    client = nbclient.NotebookClient(
        book, timeout=timeout, kernel_name="python3", resources={"metadata": {"path": folder}}
    )
    client.execute()
    for number, cell in enumerate(book.cells):
        cell.metadata = {}
        cell.id = f"cell-{number}"
        if cell.cell_type == "code":
            cell.outputs = _joined([output for output in cell.outputs if not _is_progress(output)])
    book.metadata = _METADATA
    return dict(book)


def _is_progress(output: Mapping[str, Any]) -> bool:
    """Whether an output is the view of a run or a line of a log: they differ from run to run."""
    return output.get("name") == "stderr" or "text/html" in output.get("data", {})


def _joined(outputs: list[Any]) -> list[Any]:
    """Outputs, with prints that came in several pieces joined."""
    joined: list[Any] = []
    for output in outputs:
        if joined and output["output_type"] == joined[-1]["output_type"] == "stream":
            joined[-1]["text"] += output["text"]
        else:
            joined.append(output)
    return joined


def notebook_page(path: Path) -> str:
    """Markdown of a notebook of format 4.

    Raises:
        ValueError: a cell ended with an error, or has an output that is neither text nor a PNG.
    """
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    parts = [part for cell in cells for part in _parts(cell)]
    note = f"This page is a notebook with the outputs of one run: [{path.name}]({path.name}).\n"
    return "\n".join([parts[0], note, *parts[1:]])


def _parts(cell: Cell) -> Iterator[str]:
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        yield source + "\n"
        return
    yield f"```python\n{source}\n```\n"
    for output in cell["outputs"]:
        yield _shown(output)


def _shown(output: Mapping[str, Any]) -> str:
    if output["output_type"] == "stream":
        return _text("".join(output["text"]))
    data = output.get("data", {})
    if "image/png" in data:
        encoded = "".join(data["image/png"]).replace("\n", "")
        return f"![the drawing of the cell above](data:image/png;base64,{encoded})\n"
    if "text/plain" in data:
        return _text("".join(data["text/plain"]))
    raise ValueError(f"{output['output_type']}: an output of a notebook is text or a PNG. Run the notebook again.")


def _text(text: str) -> str:
    return f"```text\n{text.rstrip()}\n```\n"


def _main(names: list[str]) -> None:
    import nbformat

    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            book = run_notebook(Path(name), Path(folder))
        nbformat.write(nbformat.from_dict(book), name)
        print(name)


if __name__ == "__main__":
    _main(sys.argv[1:])
