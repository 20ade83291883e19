"""The command that exports: its output and exit statuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobs.export import main
from pipeline import layout
from pipeline.commands.run import run_on
from pipeline.config import RunConfig
from pipeline.storage.open import open_storage
from testing.pipeline.fakes import InlineExecutor
from testing.pipeline.openai_batch import chat_line, completion_line, write_batch


@pytest.fixture
def output(tmp_path: Path) -> str:
    lines = [completion_line("a"), chat_line("b", stream=True), completion_line("c", n=2)]
    config = RunConfig(input=str(write_batch(tmp_path / "b.jsonl", lines)), output=str(tmp_path / "out"), model="tiny")
    run_on(InlineExecutor(), config, open_storage(config.output, layout.SCRATCH), lambda progress: None)
    return config.output


def test_results_of_a_batch(output: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([output, "--to", str(tmp_path / "r.jsonl"), "--errors-to", str(tmp_path / "e.jsonl")]) == 0
    assert capsys.readouterr().out == (
        f"answers: 2 lines in {tmp_path}/r.jsonl\nerrors: 1 lines in {tmp_path}/e.jsonl\n"
    )  # fmt: skip
    assert main([str(tmp_path / "none"), "--to", str(tmp_path / "r.jsonl")]) == 2
    assert capsys.readouterr().err.startswith("error: ")


def test_a_delta_table(output: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("deltalake", reason="deltalake is not installed")
    table = str(tmp_path / "table")
    command = [output, "--to", table, "--format", "delta"]
    assert main(command) == 0
    assert capsys.readouterr().out == f"{table}: committed data-000000, 4 rows; version 1\n"
    assert main(command) == 0
    assert capsys.readouterr().out == f"{table}: had everything already; version 1\n"
    (tmp_path / "broken" / "_delta_log").mkdir(parents=True)
    (tmp_path / "broken" / "_delta_log" / "00000000000000000000.json").write_text("no json")
    assert main([output, "--to", str(tmp_path / "broken"), "--format", "delta"]) == 2
    assert "the Delta table cannot be read" in capsys.readouterr().err
