"""The examples of the page on quality run as they are printed, one after the other."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from testing.readme import code_blocks
from testing.repository import ROOT

PAGE = ROOT / "docs" / "quality.md"


@pytest.mark.slow  # half a minute: it generates with Ray
def test_the_examples_run(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHON": sys.executable}
    (example,) = code_blocks(PAGE, "python")
    done = subprocess.run(
        [sys.executable, "-c", example], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "12 of" in done.stdout
    assert "3 kept (25.0%), 9 dropped" in done.stdout
    (commands,) = code_blocks(PAGE, "bash")
    # The console script of this checkout.
    script = 'set -e\nwedlm-batch() { "$PYTHON" -m wedlm_batch "$@"; }\n' + commands
    done = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr + done.stdout
    assert "This run: nothing was left to do" in done.stdout, "the first is what the Python example did"
    assert "proven" in done.stdout.splitlines()[-1]
