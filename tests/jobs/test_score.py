"""The command ``score``: its options, its refusals, and that a killed one continues."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import pipeline
from jobs import score
from pipeline.commands import run as run_module
from pipeline.commit import lease
from testing.pipeline.fakes import InlineExecutor


@pytest.fixture(autouse=True)
def _inline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Units run in this process."""
    monkeypatch.setattr(run_module, "RayExecutor", lambda config, stop: InlineExecutor())
    monkeypatch.setattr(lease, "_SETTLE_SECONDS", 0.0)


def argv(tmp_path: Path, *options: str) -> list[str]:
    rows = [{"prompt": f"Is {i} even?", "own": ["yes", "no"], "answer": f" {i}"} for i in range(6)]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    places = ["--input", str(tmp_path / "in.jsonl"), "--output", str(tmp_path / "out"), "--model", "tiny"]
    return [*places, "--quiet", *options]


@pytest.mark.parametrize(
    ("options", "texts"),
    [
        (["--choices", "yes", "no"], {"yes", "no"}),
        (["--choices-column", "own", "--with-end"], {"yes", "no"}),
        (["--continuation-column", "answer", "--chat"], {f" {i}" for i in range(6)}),
        (["--set", "task.choices=[a, b]"], {"a", "b"}),
    ],
)
def test_the_texts_come_from_options(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], texts: set[str]
) -> None:
    assert score.main(argv(tmp_path, *options)) == 0
    assert "in the texts or best choices" in capsys.readouterr().out
    rows = pipeline.read(tmp_path / "out", format="arrow").to_pylist()
    assert len(rows) == 6
    assert {row["text"] for row in rows} <= texts
    assert all(row["logprob"] < 0 for row in rows)
    assert pipeline.verify(tmp_path / "out", input=str(tmp_path / "in.jsonl")).ok


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "task: the texts to score are not given. Use --choices"),
        (["--choices", "a", "--choices-column", "own"], "exactly one of"),
        (["--choices", "a", "a"], "each choice occurs once"),
        (["--choices-column", "absent"], "no such column"),
        (["--choices", "a", "--set", "sampling.max_tokens=3"], "generates nothing"),
    ],
)
def test_mistakes_end_with_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], words: str
) -> None:
    assert score.main(argv(tmp_path, *options)) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert words in line


def test_printed_settings_are_the_same_job(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = argv(tmp_path, "--choices", "yes", "\u00fc no", "--with-end", "--print-config")
    with pytest.raises(SystemExit):
        score.main(command)
    printed = capsys.readouterr().out
    assert yaml.safe_load(printed)["task"]["choices"] == ["yes", "\u00fc no"]
    (tmp_path / "job.yaml").write_text(printed)
    assert score.main(["--config", str(tmp_path / "job.yaml"), "--quiet"]) == 0
    assert score.main([*command[:-1]]) == 0, "the same settings continue it"


_KILLED = """
import os, signal, sys
from jobs import score
from pipeline.commands import run
from testing.pipeline.fakes import InlineExecutor

class Kills(InlineExecutor):
    def run_units(self, job, work):
        for number, records in enumerate(super().run_units(job, work)):
            yield records
            if number == 0:
                os.kill(os.getpid(), signal.SIGKILL)

run.RayExecutor = lambda config, stop: Kills()
score.main(sys.argv[1:])
"""


def test_a_killed_run_continues_with_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = argv(tmp_path, "--choices", "yes", "no", "--set", "unit_rows=2")
    done = subprocess.run([sys.executable, "-c", _KILLED, *command], check=False)
    assert done.returncode == -9
    assert pipeline.read(tmp_path / "out", committed=True, format="arrow").num_rows == 2
    executor = InlineExecutor()
    monkeypatch.setattr(run_module, "RayExecutor", lambda config, stop: executor)
    assert score.main(command) == 0
    assert executor.units_done == 2
    kept = pipeline.read(tmp_path / "out", format="arrow").drop_columns(["timings", "stats"])
    assert score.main([*command, "--mode", "new"]) == 0
    assert pipeline.read(tmp_path / "out", format="arrow").drop_columns(["timings", "stats"]) == kept
