"""The command line of the report."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobs import report
from testing.pipeline.exactly_once import SmallJob


def test_it_prints_where_the_page_is_and_refuses_what_is_no_output(
    tmp_path: Path, qwen3_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = SmallJob(tmp_path / "job", qwen3_folder)
    assert report.main([job.config.output]) == 2
    assert "no run was begun there" in capsys.readouterr().err
    job.run()
    assert report.main([job.config.output, "--to", str(tmp_path / "r.html")]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "r.html")
    assert report.main([job.config.output]) == 0
    assert Path(capsys.readouterr().out.strip()).read_bytes()[:15] == b"<!doctype html>"


def test_it_prints_two_outputs_side_by_side_and_makes_no_page_of_them(
    tmp_path: Path, qwen3_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = SmallJob(tmp_path / "job", qwen3_folder)
    job.run()
    assert report.main([job.config.output, job.config.output]) == 0
    shown = capsys.readouterr().out
    assert [line for line in shown.splitlines() if line and line[0] != " "] == [
        "Settings that differ", "Speed", "Quality",
    ]  # fmt: skip
    assert report.main([job.config.output, job.config.output, "--to", str(tmp_path / "r.html")]) == 2
    assert "for the page of one output" in capsys.readouterr().err
