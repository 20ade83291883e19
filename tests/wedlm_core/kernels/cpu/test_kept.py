"""Kernels compile, and are kept, where neither the installation nor the home can be written to."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from testing.repository import ROOT

USE = """
import numpy as np, wedlm_core
from wedlm_core.kernels.cpu.layer import silu_mul
out = np.zeros((1, 16), np.float32)
silu_mul(np.ones((1, 32), np.float32), out, 0, 1)
print(wedlm_core.__file__, out[0, 0] > 0.7)
"""


def test_kernels_are_kept_in_a_temporary_folder_if_nothing_else_can_be_written_to(tmp_path: Path) -> None:
    core = tmp_path / "site" / "wedlm_core"
    for package in ("wedlm_core", "wedlm_base"):
        shutil.copytree(ROOT / package, core.with_name(package), ignore=shutil.ignore_patterns("__pycache__"))
    for folder in [core, *(path for path in core.rglob("*") if path.is_dir())]:
        (folder / "__pycache__").write_text("in the way of a folder")  # as root, permissions would not be
    (tmp_path / "tmp").mkdir()
    environment = {name: value for name, value in os.environ.items() if "CACHE" not in name}
    environment |= {"HOME": "/proc/nowhere", "PYTHONPATH": str(core.parent), "TMPDIR": str(tmp_path / "tmp")}
    done = subprocess.run(
        [sys.executable, "-c", USE], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(core / "__init__.py"), "True"]
    assert list((tmp_path / "tmp").rglob("*silu_mul*.nbc")), "compiled once per machine, not once per process"
    (line,) = done.stderr.splitlines()
    assert "cannot be written to" in line
