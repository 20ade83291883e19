"""The command that pushes: its output and exit statuses, without a token."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import pytest

import pipeline
from jobs.push import main
from pipeline.commands.push import push
from testing.pipeline.exactly_once import SmallJob
from testing.pipeline.hub_server import TOKEN, serve_hub


@pytest.fixture
def job(tmp_path: Path, qwen3_folder: Path) -> SmallJob:
    return SmallJob(tmp_path / "job", qwen3_folder)


def test_the_statuses_say_what_to_do(
    job: SmallJob, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
    command: Callable[..., int] = lambda *more: main([job.config.output, "--repo", "me/rows", *more])  # noqa: E731
    assert command() == 2
    assert "no run was begun there" in capsys.readouterr().err
    job.run()
    assert command("--dry-run", "--license", "mit") == 0
    assert capsys.readouterr().out.startswith("data-000000/part-000000.parquet\n")
    with serve_hub() as hub:
        # The client reads HF_ENDPOINT when it is imported, which it may be here.
        monkeypatch.setattr(pipeline, "push", functools.partial(push, endpoint=hub.endpoint), raising=False)
        assert command() == 0
        assert capsys.readouterr().out.startswith("uploaded: ")
        assert command() == 0
        assert capsys.readouterr().out.startswith("unchanged: me/rows has this publication")
        monkeypatch.setenv("HF_TOKEN", "hf_another_secret")
        job.retry()
        assert command() == 1
    shown = capsys.readouterr()
    assert "Set HF_TOKEN to a token that may write there" in shown.err
    assert "secret" not in shown.out + shown.err
