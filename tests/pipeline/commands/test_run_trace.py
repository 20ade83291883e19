"""A job enters a bounded number of files before its first unit. The bounds may only fall."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from testing.repository import ROOT

MOST_FILES = 69
MOST_MOVES = 950
MOST_FILES_OF_DATASET = 20


def test_a_job_enters_few_files_before_its_first_unit(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "testing.pipeline.first_unit_trace", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert {"pipeline/commands/run.py", "pipeline/plan/job.py"} < set(found["files"]), "it saw the run"
    assert len(found["files"]) <= MOST_FILES, found["files"]
    assert found["moves"] <= MOST_MOVES
    assert {"pipeline/config.py", "pipeline/sources/source_opening.py"} < set(found["dataset"]), "it saw the input"
    assert len(found["dataset"]) <= MOST_FILES_OF_DATASET, found["dataset"]
