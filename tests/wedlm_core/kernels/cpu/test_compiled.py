"""Machine code of kernels is kept for later processes, wherever the package lies, until a kernel changes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from testing.repository import ROOT
from wedlm_core.kernels.cpu import kept

CODE = """
import numpy as np
from wedlm_core.kernels.cpu.kept import kernel_folder
before = any(kernel_folder().glob("*.nbc"))
from wedlm_core.kernels.cpu.step import _is_stop
assert _is_stop(3, np.array([[1, 3, -1]]), 0)
print(before, len(_is_stop.stats.cache_hits), len(_is_stop.stats.cache_misses), any(kernel_folder().glob("*.nbc")))
"""


def ask(cache: Path) -> str:
    environment = {**os.environ, "WEDLM_CACHE_HOME": str(cache)}
    done = subprocess.run(
        [sys.executable, "-c", CODE], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_a_kernel_is_compiled_once_and_then_taken_from_the_cache_folder(tmp_path: Path) -> None:
    assert ask(tmp_path) == "False 0 1 True"
    assert ask(tmp_path) == "True 1 0 True"
    (folder,) = tmp_path.iterdir()
    assert any(path.name.startswith("step._is_stop") for path in folder.iterdir())


@pytest.mark.parametrize("damaged", ["*.nbc", "*.nbi"])
def test_a_damaged_kernel_is_compiled_anew(damaged: str, tmp_path: Path) -> None:
    ask(tmp_path)
    for file in tmp_path.rglob(damaged):
        file.write_bytes(file.read_bytes()[:40] if damaged == "*.nbc" else b"")
    assert ask(tmp_path) == "True 0 1 True"
    assert ask(tmp_path) == "True 1 0 True"


def test_the_folder_is_another_one_if_any_kernel_changes(tmp_path: Path) -> None:
    versions = []
    for text in ("a", "a", "b"):
        (tmp_path / "vector.py").write_text(text)
        (tmp_path / "attention.py").write_text("inlines functions of vector.py")
        versions.append(kept._version_of.__wrapped__(tmp_path))
    assert versions[0] == versions[1] != versions[2]
