"""The page on formats is true: its blocks run, in order, in one folder, with a hub on loopback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.prompts.batch_request import IGNORED, REFUSED
from testing.pages.blocks import blocks_of, text_of
from testing.pipeline.hub_server import TOKEN, serve_hub
from testing.repository import ROOT

PAGE = ROOT / "docs" / "reference" / "formats.md"


def code_blocks(language: str) -> list[str]:
    return [block.code for block in blocks_of(PAGE) if block.language == language and block.use == "run"]


@pytest.mark.slow(reason="a job, exports and two pushes: about 20 s")
def test_the_blocks_run(tmp_path: Path) -> None:
    commands = "\n".join(code_blocks("bash")).replace("wedlm-batch ", f"{sys.executable} -m wedlm_batch ")
    script = "\n".join(code_blocks("python"))
    assert (len(code_blocks("bash")), len(code_blocks("python"))) == (4, 8)
    for block in blocks_of(PAGE):
        if block.title:
            (tmp_path / block.title).write_text(block.code)
    with serve_hub() as hub:
        env = {**os.environ, "PYTHONPATH": str(ROOT), "HF_ENDPOINT": hub.endpoint, "HF_TOKEN": TOKEN,
               "HF_HUB_DISABLE_XET": "1", "HF_HOME": str(tmp_path / "hf"), "OMP_NUM_THREADS": "1"}  # fmt: skip

        def printed(*words: str) -> str:
            done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
            assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
            assert TOKEN not in done.stdout + done.stderr
            return done.stdout

        said = printed("bash", "-e", "-c", commands)
        assert "Rows: 3, 2 ok, 1 failed" in said
        assert "answers: 2 lines in results.jsonl\nerrors: 1 lines in results_errors.jsonl" in said
        assert "uploaded: 2 files" in said
        assert "unchanged: me/rows has this publication" in said
        assert "committed data-000000, 4 rows; version 1" in said
        assert "had everything already; version 1" in said
        assert "lake.rows: committed data-000000, 4 rows; version " in said
        lines = printed(sys.executable, "-c", script).splitlines()
    assert lines[0] == "3, 4, 5, 6, 7, 8, 9"
    assert lines[1].startswith("2 {'prompt_tokens': ")
    assert lines[2].startswith("q3 400 body.tool_choice='required': this run does not read calls of tools")
    assert lines[3].startswith("4 ['custom_id', 'method', 'url', 'body', 'row_id'")
    assert lines[4] == "1 data-000000"
    assert "data-000000 4" in lines
    at = lines.index("('data-000000',)")
    assert lines[at + 1 : at + 3] == ["[('error', 1), ('stop', 3)]", "()"]
    assert any(line.startswith("4 4 3 ") and line.endswith(" 4") for line in lines)
    answers = [json.loads(line)["custom_id"] for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert answers == ["q1", "q2"]


def test_every_parameter_that_is_ignored_or_refused_is_named() -> None:
    rows = {line.split("|")[1].strip(): line for line in text_of(PAGE).splitlines() if line.startswith("| ")}
    ignored = rows["ignored, as they do not change the answer"]
    assert not [name for name in IGNORED if f"`{name}`" not in ignored]
    assert not [name for name in REFUSED if f"`{name}`" not in rows["refused"]]
