"""The README's Python examples run as printed, one after the other in one folder, as a new user would."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from testing.repository import ROOT


def python_blocks() -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)


def test_the_python_examples_run_after_the_demo(tmp_path: Path) -> None:
    blocks = python_blocks()
    assert len(blocks) >= 2
    (tmp_path / "out" / "demo").mkdir(parents=True)  # where `make demo` wrote before
    (tmp_path / "out" / "demo" / "part.parquet").write_bytes(b"somebody's table")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    program = "\n".join(blocks) + "\nprint('rows', result.summary.total.rows)\n"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "rows 2" in done.stdout
    assert "x = 7" in done.stdout, "the streamed equation"
