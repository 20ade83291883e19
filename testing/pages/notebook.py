"""A notebook as a page: its cells as code blocks, what they printed and drew below them.

The page is made of the outputs that are stored in the file; making it runs nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

__all__ = ["notebook_page"]

Cell = Mapping[str, Any]


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
        return f"![what the cell above draws](data:image/png;base64,{encoded})\n"
    if "text/plain" in data:
        return _text("".join(data["text/plain"]))
    raise ValueError(f"{output['output_type']}: an output of a notebook is text or a PNG. Run the notebook again.")


def _text(text: str) -> str:
    return f"```text\n{text.rstrip()}\n```\n"
