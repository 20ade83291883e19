"""``--help`` of every job says what its exit statuses mean."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys

import pytest

from testing.repository import ROOT
from wedlm_batch.console import COMMANDS

JOBS = sorted(
    path.stem
    for path in (ROOT / "jobs").glob("*.py")
    if 'if __name__ == "__main__":' in path.read_text(encoding="utf-8") and path.stem != "__init__"
)


def test_every_command_is_a_job() -> None:
    assert set(COMMANDS) <= set(JOBS)


@pytest.mark.parametrize("name", JOBS)
def test_the_help_lists_exit_statuses(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    with pytest.raises(SystemExit) as ended:
        importlib.import_module(f"jobs.{name}").main()
    assert ended.value.code == 0
    listed = capsys.readouterr().out.partition("Exit status:")[2]
    statuses = re.findall(r"^  ([\d, ]+\d|\d)  +\S", listed, re.MULTILINE)
    assert statuses[0] == "0"
    assert len(statuses) >= 2, listed


@pytest.mark.parametrize(
    ("command", "status", "last"),
    [
        (["status", "nowhere"], 2, "error: .*no run was begun there"),
        (["verify", "nowhere"], 2, "error: "),
        (["validate", "--input", "nowhere.jsonl", "--output", "o"], 2, "not ok"),
        (["demo", "--model", "./nowhere"], 2, "error: model='./nowhere': "),
        (["evaluate", "--input", "nowhere", "--output", "o"], 2, ".*--answer-column"),
    ],
)
def test_a_failed_job_exits_with_its_status_and_ends_its_output_with_the_reason(
    command: list[str], status: int, last: str, tmp_path: object
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", f"jobs.{command[0]}", *command[1:]], cwd=str(tmp_path), check=False, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env={"PYTHONPATH": str(ROOT), "PATH": "", "HOME": "/nowhere"},
    )  # fmt: skip
    assert done.returncode == status, done.stdout
    assert re.match(last, done.stdout.splitlines()[-1]), done.stdout
