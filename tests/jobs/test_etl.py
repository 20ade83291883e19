"""``jobs.etl``: exit statuses and output; with nothing new, quickly and without Ray or torch."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from jobs import etl
from pipeline.commands import etl as command
from pipeline.commit.lease import hold_lease
from testing.pipeline.fakes import BANNED_TOKEN, FakeEngine, InlineExecutor
from testing.pipeline.scheduled_table import ScheduledTable, prompts
from testing.repository import ROOT


@pytest.fixture(autouse=True)
def _inline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Units run in this process."""
    monkeypatch.setattr(command, "RayExecutor", lambda config, stop: InlineExecutor())
    monkeypatch.setattr(command, "_POLL_SECONDS", 0.02)


@pytest.fixture
def table(tmp_path: Path, qwen3_folder: Path) -> ScheduledTable:
    table = ScheduledTable(str(tmp_path), qwen3_folder)
    table.put("dt=2026-11-20/a.parquet", prompts(0, 2))
    table.put("dt=2026-11-21/a.parquet", prompts(10, 3))
    return table


def argv(table: ScheduledTable, *more: str) -> list[str]:
    run = table.config.run
    return ["--input", run.input, "--output", run.output, "--model", run.model, "--max-tokens", "6", "--quiet", *more]


def test_done_nothing_new_and_busy_are_successes_that_say_so(
    table: ScheduledTable, capsys: pytest.CaptureFixture[str]
) -> None:
    assert etl.main(argv(table)) == 0
    out = capsys.readouterr().out
    assert "Input: 2 new files\n" in out
    assert "This run: 5 rows" in out
    assert etl.main(argv(table)) == 0
    assert capsys.readouterr().out == "Input: nothing new\n"
    table.put("dt=2026-11-22/a.parquet", prompts(20, 1))
    with hold_lease(table.storage):
        assert etl.main(argv(table)) == 0
        assert capsys.readouterr().out == "another run is at work on this table; nothing was done\n"
        assert etl.main(argv(table, "--wait", "0.05")) == 1
        assert "is writing there" in capsys.readouterr().err
    assert etl.main(argv(table, "--wait")) == 0


def test_faults_of_input_and_settings_are_status_2(table: ScheduledTable, capsys: pytest.CaptureFixture[str]) -> None:
    assert etl.main(argv(table)) == 0
    table.put("dt=2026-11-20/a.parquet", prompts(30, 2))
    assert etl.main(argv(table)) == 2
    assert "error: input file 'dt=2026-11-20/a.parquet': its content changed after it was" in capsys.readouterr().err
    assert etl.main(argv(table, "--on-changed", "reprocess", "--print-plan")) == 0
    assert capsys.readouterr().out.splitlines()[-2:] == [
        "again, in place of its old rows: dt=2026-11-20/a.parquet",
        "Input: nothing new; 1 file again, in place of the old rows",
    ]
    assert etl.main(argv(table, "--on-changed", "reprocess")) == 0
    assert etl.main(argv(table, "--backfill", "2", "1")) == 2
    assert etl.main(argv(table, "--backfill", "1", "2", "--since", "1")) == 2
    assert "--backfill has a range of its own" in capsys.readouterr().err


def test_a_run_in_which_every_row_failed_is_status_3(
    table: ScheduledTable, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    table.put("dt=2026-11-20/a.parquet", [{"prompt_token_ids": [BANNED_TOKEN]}])
    table.remove("dt=2026-11-21/a.parquet")
    assert etl.main(argv(table)) == 3
    assert "--retry-failed" in capsys.readouterr().err
    assert etl.main(argv(table)) == 0, "nothing new"
    monkeypatch.setattr(
        command, "RayExecutor", lambda config, stop: InlineExecutor(engine=lambda: FakeEngine(bans=False))
    )
    assert etl.main(argv(table, "--retry-failed")) == 0


def test_the_configuration_file_has_the_schedule_too_and_options_win(
    table: ScheduledTable, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "job.yaml"
    path.write_text("etl: {since: 2026-11-21, on_changed: reprocess, settle_seconds: 0}\n")
    args = etl.main.parse(argv(table, "--config", str(path), "--on-changed", "ignore"))
    config = etl.make_config(args)
    assert (config.since, config.on_changed, config.settle_seconds) == ("2026-11-21", "ignore", 0)
    args = etl.main.parse(argv(table, "--config", str(path), "--backfill", "2026-11-01", "2026-11-20"))
    assert etl.make_config(args).within.last == "2026-11-20"
    path.write_text("etl: {sinse: 2026-11-21}\n")
    assert etl.main(argv(table, "--config", str(path))) == 2
    assert "no fields ['sinse']" in capsys.readouterr().err


def test_the_resolved_configuration_is_one_that_gives_itself(
    table: ScheduledTable, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wedlm_core.redaction._kept", {})  # of a store of an earlier test, the key is in our paths
    with pytest.raises(SystemExit) as ended:
        etl.main(argv(table, "--backfill", "2026-11-20", "2026-11-21", "--wait", "--print-config"))
    assert ended.value.code == 0
    printed = capsys.readouterr().out
    path = tmp_path / "resolved.yaml"
    path.write_text(printed)
    config = etl.make_config(etl.main.parse(["--config", str(path)]))
    assert (config.backfill, config.wait, config.run.model) == (
        ("2026-11-20", "2026-11-21"), math.inf, table.config.run.model,
    )  # fmt: skip
    assert not table.storage.keys(".")


def nothing_new(table: ScheduledTable) -> tuple[float, dict[str, Any]]:
    """The seconds of a command that finds nothing new, and which of the large libraries it has imported."""
    code = (
        "import json, sys\nfrom jobs import etl\nstatus = etl.main(sys.argv[1:])\n"
        "print(json.dumps([status, [m for m in ('ray', 'torch', 'transformers') if m in sys.modules]]))"
    )
    begin = time.monotonic()
    ended = subprocess.run(
        [sys.executable, "-c", code, *argv(table)], cwd=ROOT, capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    seconds = time.monotonic() - begin
    first, last = ended.stdout.splitlines()
    assert first == "Input: nothing new"
    return seconds, json.loads(last)


def many(table: ScheduledTable, files: int) -> None:
    for i in range(files):
        folder = Path(table.root, "in", f"dt={i % 10}")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{i}.jsonl").write_text(json.dumps({"prompt": f"Count from {i}."}) + "\n")
    assert etl.main(argv(table)) == 0


def test_nothing_new_among_many_files_takes_neither_ray_nor_torch(tmp_path: Path, qwen3_folder: Path) -> None:
    table = ScheduledTable(str(tmp_path), qwen3_folder)
    many(table, 300)
    _, found = nothing_new(table)
    assert found == [0, []]
