"""Runs pages as their tests do, each in a folder of its own, and shows what they print.

python -m testing.pages docs/quickstart.md ...
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from testing.pages.blocks import Block, blocks_of
from testing.pages.runner import PageRunner


def show(block: Block, printed: str) -> None:
    """Print a block's place and what it printed."""
    print(f"--- {block.place}\n{printed}", flush=True)


for name in sys.argv[1:]:
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as above:
        folder = Path(above, "page")
        folder.mkdir()
        with PageRunner(folder, on_run=show) as runner:
            runner.run(blocks_of(Path(name)))
    print(f"{name}: runs as written, {time.monotonic() - begun:.1f} s")
