"""Exit status of ``jobs.generate`` for rows that fail, and its summary of them."""

from __future__ import annotations

import logging
import signal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pipeline
from jobs import generate, status
from pipeline.commands import run as run_module
from pipeline.commit import lease
from testing.pipeline.fakes import BANNED_TOKEN, InlineExecutor

BAN = f"token {BANNED_TOKEN} is banned here"


@pytest.fixture(autouse=True)
def _inline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Units run in this process, on an engine that refuses a token."""
    monkeypatch.setattr(run_module, "RayExecutor", lambda config, stop: InlineExecutor())
    monkeypatch.setattr(lease, "_SETTLE_SECONDS", 0.0)


def argv(tmp_path: Path, model: Path, *prompts: list[int]) -> list[str]:
    pq.write_table(pa.table({"prompt_token_ids": list(prompts)}), tmp_path / "in.parquet")
    return [
        "--input",
        str(tmp_path / "in.parquet"),
        "--output",
        str(tmp_path / "out"),
        "--model",
        str(model),
        "--quiet",
    ]


def test_a_run_in_which_every_row_failed_is_no_success_and_shows_why(
    qwen3_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = argv(tmp_path, qwen3_folder, [BANNED_TOKEN], [6, BANNED_TOKEN])
    for _ in range(2):  # the second finds everything done, and every row failed
        assert generate.main(command) == 3
        printed = capsys.readouterr()
        assert "Failed rows by cause:\n" in printed.out
        assert f"  2 rows: {BAN}. For example row in.parquet:0.\n" in printed.out
        assert "error: every row failed; " in printed.err
        assert "--retry-failed" in printed.err
    assert pipeline.read(tmp_path / "out", format="arrow").num_rows == 2, "it is published like any other"
    assert status.main([str(tmp_path / "out")]) == 0
    assert f"failed_by_cause: 2 rows: {BAN}. For example row in.parquet:0." in capsys.readouterr().out


def test_a_run_in_which_a_row_succeeded_is_done_and_shows_one_example_of_each_reason(
    qwen3_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    long = [6] * 600
    assert generate.main(argv(tmp_path, qwen3_folder, [6], [BANNED_TOKEN], [BANNED_TOKEN], long, [-1])) == 0
    out = capsys.readouterr().out
    assert "1 ok, 4 failed" in out
    assert "Failed rows by cause:" in out
    assert out.count("For example row in.parquet:") == 3, "a line for each cause"
    assert "at most 512 tokens together, the model's length. Shorten the prompt, lower max_tokens" in out


def test_a_terminated_command_says_that_it_continues_and_ends_with_143(
    qwen3_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def terminated(**_: object) -> None:
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(pipeline, "run", terminated)
    before = signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(SystemExit) as ended:
            generate.main(argv(tmp_path, qwen3_folder, [6]))
    finally:
        signal.signal(signal.SIGTERM, before)
        logging.disable(logging.NOTSET)
    assert ended.value.code == 143
    assert capsys.readouterr().err.endswith("terminated: the same command continues from the committed rows\n")
