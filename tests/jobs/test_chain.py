"""The command line of chains: its file, its refusals and its exit status."""

from __future__ import annotations

import os
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from jobs import chain
from pipeline.commands import chain as chains
from testing.pipeline.chains import ChainExecutor

STAGES = [{"name": "write"}, {"name": "judge", "prompt_template": "Rate {{ text }}", "sampling": {"max_tokens": 3}}]


def write_config(folder: Path, **fields: Any) -> list[str]:
    """A file for ``--config``, and the words that name it."""
    (folder / "in.jsonl").write_text('{"prompt": "Count."}\n')
    file = folder / "chain.yaml"
    base = {"input": str(folder / "in.jsonl"), "output": str(folder / "out"), "stages": STAGES}
    file.write_text(yaml.safe_dump({**base, **fields}))
    return ["--config", str(file)]


def test_the_printed_configuration_is_one_that_may_be_given_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = write_config(tmp_path, sampling={"temperature": 0.5})
    printed = []
    for _ in range(2):
        with pytest.raises(SystemExit) as ended:
            chain.main([*words, "--print-config"])
        assert ended.value.code == 0
        printed.append(capsys.readouterr().out)
        (tmp_path / "again.yaml").write_text(printed[-1])
        words = ["--config", str(tmp_path / "again.yaml")]
    assert printed[0] == printed[1]
    assert yaml.safe_load(printed[0])["stages"] == STAGES


@pytest.mark.parametrize(
    ("fields", "words", "named"),
    [
        ({"stages": None}, [], "stages"),
        ({"stages": STAGES[:1]}, [], "stages"),
        ({"stages": [STAGES[0], {"name": "judge"}]}, [], "prompt_template"),
        ({}, ["--redo", "other"], "redo"),
    ],
)
def test_mistakes_end_with_status_2_and_their_names(
    fields: dict[str, Any], words: list[str], named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert chain.main([*write_config(tmp_path, **fields), *words]) == 2
    assert named in capsys.readouterr().err


def test_it_prints_a_summary_of_each_stage_and_ends_with_3_if_every_row_of_one_failed(
    tmp_path: Path, qwen3_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(chains, "RayExecutor", lambda config, stop, beside: ChainExecutor())
    monkeypatch.setenv("PATH", f"{sys.prefix}/bin{os.pathsep}{os.environ['PATH']}")
    kept = {"name": "kept", "filter": {"keep": "judge_text <> ''"}}
    words = write_config(tmp_path, model=str(qwen3_folder), sampling={"max_tokens": 5}, stages=[*STAGES, kept])
    assert chain.main([*words, "--quiet"], "wedlm-batch chain") == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    write, judge, filtered = re.split(r"^Stage (?:write|judge|kept):$", captured.out, flags=re.MULTILINE)[1:]
    for section in (write, judge):
        assert "Rows: 1, 1 ok, 0 failed; 1 generation" in section
        assert "To read: " in section
        assert "To look at the report: " in section
    out = tmp_path / "out"
    assert f"To verify: wedlm-batch verify {out}/write --input {tmp_path}/in.jsonl\n" in write
    assert f"To verify: wedlm-batch verify {out}/judge\n" in judge
    assert "Rows: 1 read, 1 kept, 0 dropped" in filtered
    assert f"To verify: wedlm-batch verify {out}/kept --input {out}/judge\n" in filtered
    assert "retry" not in captured.out

    failing = [STAGES[0], {"name": "judge", "prompt_template": "{{ text.missing }}"}]
    words = write_config(tmp_path, model=str(qwen3_folder), output=str(tmp_path / "bad"), stages=failing)
    assert chain.main([*words, "--redo", "write", "--progress-seconds", "9"], "wedlm-batch chain") == 3
    captured = capsys.readouterr()
    lines = [line for line in captured.err.splitlines() if line.startswith("progress ")]
    assert "stage=done" in lines[-1]
    assert " write.rows=1 write.total_rows=1 write.failed=0 judge.rows=1 judge.total_rows=1 judge.failed=1" in lines[-1]
    assert re.search(r"^  Failed rows by cause:\n    1 row: .*For example row .*:0", captured.out, re.MULTILINE)
    again = shlex.join(["wedlm-batch", "chain", *words, "--progress-seconds", "9", "--retry-failed"])
    assert captured.out.splitlines()[-1] == f"To retry failed rows: {again}"
    assert "every row of a stage failed" in captured.err
