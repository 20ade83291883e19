"""``wedlm-batch filter``: options reach the filter, and mistakes end with status 2 and one line."""

from __future__ import annotations

from pathlib import Path

import pytest

import pipeline
from testing.pipeline.exactly_once import SmallJob
from wedlm_batch.console import main


@pytest.fixture
def output(tmp_path: Path, qwen3_folder: Path) -> str:
    job = SmallJob(tmp_path / "job", qwen3_folder)
    job.run()
    return job.config.output


def test_it_filters_and_prints_what_was_kept_and_dropped(
    output: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    to = str(tmp_path / "to")
    options = ["--keep", "best 2 where finish_reason = 'stop'", "--by", "topic", "--score", "mean_logprob",
               "--dedup", "0.9", "--outliers", "{length: 9, script_share: null}",
               "--selection-column", "why"]  # fmt: skip
    assert main(["filter", output, "--to", to, *options]) == 0
    assert "6 kept" in capsys.readouterr().out
    settings = pipeline.status(to)["settings"]
    assert settings["filter.dedup"]["threshold"] == 0.9
    assert settings["filter.outliers"] == {"length": 9, "script_share": None}
    assert (settings["filter.by"], settings["filter.score"]) == (["topic"], "mean_logprob")
    assert "why" in pipeline.read(to).schema.names
    assert main(["verify", to, "--input", output]) == 0
    assert main(["status", to]) == 0
    assert "dropped_by_reason: " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--keep", "evidence.worst_logprb > -3"], "Near it: evidence.worst_logprob"),
        (["--keep", "best half"], '"best N per row"'),
        (["--dedup", "7"], "dedup.threshold=7"),
        ([], "there is nothing to filter by"),
    ],
)
def test_mistakes_are_one_line(
    output: str, tmp_path: Path, options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["filter", output, "--to", str(tmp_path / "to"), *options]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert len(said.splitlines()) == 1
