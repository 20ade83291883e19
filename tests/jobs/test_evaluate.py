"""``wedlm-batch evaluate``: a job and its scores, as people type it."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from jobs.evaluate import main
from pipeline.commands import run as run_module
from testing.pipeline.fakes import BANNED_TOKEN, InlineExecutor, RealExecutor

ROWS = [{"question": "What is 47 + 25?", "sum": 72}, {"question": "What is 31 + 54?", "sum": 84}]


def command_of(folder: Path, rows: list[dict[str, object]]) -> list[str]:
    (folder / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return ["--input", str(folder / "sums.jsonl"), "--prompt-column", "question", "--answer-column", "sum",
            "--scorer", "numeric", "--output", str(folder / "out"), "--set", "num_threads=1", "--quiet"]  # fmt: skip


def test_one_command_runs_and_scores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run_module, "RayExecutor", lambda config, stop: RealExecutor())
    assert main([*command_of(tmp_path, ROWS), "--model", "tiny", "--confidence", "0.9"]) == 0
    printed = capsys.readouterr().out
    assert "accuracy (numeric): 50.00% (90% confidence: 12." in printed
    assert "1 correct, 1 wrong, 0 no answer, 0 failed, 0 unjudged" in printed


def test_a_run_whose_rows_all_failed_is_status_3(
    qwen3_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run_module, "RayExecutor", lambda config, stop: InlineExecutor())  # its engine refuses a token
    pq.write_table(pa.table({"prompt_token_ids": [[BANNED_TOKEN]], "sum": [1]}), tmp_path / "in.parquet")
    command = ["--input", str(tmp_path / "in.parquet"), "--output", str(tmp_path / "out"), "--answer-column", "sum"]
    assert main([*command, "--model", str(qwen3_folder), "--scorer", "numeric", "--quiet"]) == 3
    printed = capsys.readouterr()
    assert "0 no answer, 1 failed" in printed.out
    assert "error: every row failed; " in printed.err


def test_a_model_must_be_given(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command_of(tmp_path, ROWS)) == 2
    assert "error: model not given." in capsys.readouterr().err
    assert not list((tmp_path / "out").rglob("part-*"))
