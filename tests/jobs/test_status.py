"""``status``: lines to read, and one JSON object for programs, equal to Python's result."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import pipeline
from jobs.status import main
from pipeline import layout
from pipeline.commands.run import run_on
from pipeline.config import RunConfig
from pipeline.storage.open import open_storage
from testing.pipeline.fakes import InlineExecutor


def test_the_json_object_is_what_python_returns(
    tmp_path: Path, qwen3_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in.jsonl").write_text('{"prompt": "a"}\n{"prompt": ""}\n')
    output = tmp_path / "out"
    config = RunConfig(input=str(tmp_path / "in.jsonl"), output=str(output), model=str(qwen3_folder))
    run_on(InlineExecutor(), config, open_storage(config.output, layout.SCRATCH), lambda progress: None)
    assert main([str(output), "--json"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line) == json.loads(json.dumps(pipeline.status(output)))
    assert json.loads(line)["rows_failed"] == 1
    assert main([str(output)]) == 0
    assert "rows_failed: 1\n" in capsys.readouterr().out
