"""Runs pages as their tests do, each in a folder of its own, and shows their output.

python -m testing.pages docs/quickstart.md ...
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from testing.pages.runner import run_page

for name in sys.argv[1:]:
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        print(run_page(Path(name), Path(folder)), end="")
    print(f"{name}: {time.monotonic() - begun:.1f} s")
