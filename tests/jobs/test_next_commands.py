"""The commands after a run: only those that apply, quoted for a shell, and never with a credential."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from jobs.next_commands import next_commands
from pipeline import RunConfig, RunSummary
from pipeline.types import Totals

PROG = "wedlm-batch generate"


@pytest.fixture(autouse=True)
def active(monkeypatch: pytest.MonkeyPatch) -> None:
    """The shell has this environment active."""
    monkeypatch.setenv("PATH", f"{sys.prefix}/bin{os.pathsep}{os.environ['PATH']}")


def commands(failed: int = 0, argv: tuple[str, ...] = (), prog: str = PROG, scheduled: bool = False,
             published: bool = True, corrected: bool = False, **fields: Any) -> dict[str, list[str]]:  # fmt: skip
    config = RunConfig.from_mapping({"input": "in put.jsonl", "output": "o u't", **fields})
    total = Totals(rows=9, failed_rows=failed)
    summary = RunSummary(output=config.output, total=total, session=total, seconds=1.0, generating_seconds=1.0,
                         publications=("data-000000",) if published else (), corrected_rows=corrected)  # fmt: skip
    found = next_commands(summary, config, prog, argv, scheduled=scheduled)
    return {fact.label: shlex.split(fact.value) for fact in found}


def test_every_word_survives_the_shell() -> None:
    found = commands(failed=1, argv=("--input", "in put.jsonl", "--set", "sampling.stop=['a b']"))
    assert found["verify"] == ["wedlm-batch", "verify", "o u't", "--input", "in put.jsonl"]
    assert found["retry failed rows"] == [
        "wedlm-batch", "generate", "--input", "in put.jsonl", "--set", "sampling.stop=['a b']", "--retry-failed"
    ]  # fmt: skip
    assert found["read"][2] == 'import wedlm_batch as wb; print(wb.read("o u\'t").to_pandas())'


def test_only_what_applies() -> None:
    assert "retry failed rows" not in commands()
    assert commands(published=False) == {}
    assert "--input" not in commands(scheduled=True)["verify"]
    assert commands(prog="python -m jobs.generate")["verify"][:3] == ["python", "-m", "jobs.verify"]


def test_corrected_rows_alone_are_not_named_as_the_input_of_the_run() -> None:
    found = commands(failed=1, argv=("--input", "fixed.jsonl", "--retry-failed"), corrected=True)
    assert found["verify"] == ["wedlm-batch", "verify", "o u't"]
    assert "retry failed rows" not in found


def test_the_report_is_named_where_there_is_one(tmp_path: Path) -> None:
    assert "look at the report" not in commands(output=str(tmp_path))
    (tmp_path / "__wedlm").mkdir()
    (tmp_path / "__wedlm" / "report.html").write_text("<html>")
    page = str(tmp_path / "__wedlm" / "report.html")
    assert commands(output=str(tmp_path))["look at the report"] == ["python", "-m", "webbrowser", page]


@pytest.mark.parametrize("mode", [("--mode", "new"), ("--mode=new",), ("--retry-failed", "--mode", "error_if_exists")])
def test_a_retry_never_discards_the_output(mode: tuple[str, ...]) -> None:
    given = mode[-1].rpartition("=")[2]
    words = commands(failed=1, argv=("--input", "i", *mode), mode=given)["retry failed rows"]
    assert "new" not in words
    assert words.count("--retry-failed") == 1
    assert words[words.index("--mode") + 1] == "resume", "a mode of the configuration file would hold otherwise"


def test_options_of_the_storage_are_repeated_and_secrets_never(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_SECRET", "x")
    s3 = {"output": "s3://bucket/out", "input": "s3://bucket/in"}
    found = commands(failed=1, argv=("--config", "j.yaml"), storage_options={"secret": {"env": "MY_SECRET"}}, **s3)
    assert found["verify"][-2:] == ["--storage-options", '{"secret": {"env": "MY_SECRET"}}']
    assert "read" not in found
    typed = ("--storage-options", "{secret: hush-hush}")
    assert commands(failed=1, argv=typed, storage_options={"secret": "hush-hush"}, **s3) == {}


def test_programs_of_an_environment_that_is_not_active_stand_by_their_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / ".venv" / "bin"
    folder.mkdir(parents=True)
    for name in ("python", "wedlm-batch"):
        (folder / name).touch(mode=0o755)
    monkeypatch.setattr(sys, "prefix", str(tmp_path / ".venv"))
    assert commands()["verify"][0] == str(folder / "wedlm-batch")
    monkeypatch.chdir(tmp_path)
    assert commands(prog="python -m jobs.demo")["verify"][:3] == [".venv/bin/python", "-m", "jobs.verify"]
    monkeypatch.setenv("PATH", str(folder))
    assert commands()["read"][0] == "python"
