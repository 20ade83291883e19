"""Outputs of schema version 1, which have no evidence, are read, verified and continued as they were begun."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

import pipeline
from pipeline.commands.run import run_on
from pipeline.commit import run_record
from pipeline.commit.run_record import Origin, RunState
from testing.pipeline.exactly_once import SmallJob
from testing.pipeline.fakes import InlineExecutor


@pytest.fixture
def old(make_job: Callable[[], SmallJob], monkeypatch: pytest.MonkeyPatch) -> SmallJob:
    """An output that was begun with version 1 and stopped half-way."""
    job = make_job()
    with monkeypatch.context() as before:
        before.setattr("pipeline.commands.begin.Origin", lambda **given: Origin(**given, schema_version=1))
        job.stop_after(3)
    state = RunState.load(job.storage)
    assert state is not None
    assert state.schema_version == 1
    return job


def test_it_is_continued_with_its_columns(old: SmallJob, undisturbed_rows: list[dict[str, Any]]) -> None:
    assert "evidence" not in pipeline.read(old.config.output, committed=True).schema.names
    run_on(InlineExecutor(), old.config, old.storage, lambda progress: None)
    table = pipeline.read(old.config.output, format="arrow")
    assert "evidence" not in table.column_names
    assert table.schema.metadata[b"wedlm.schema_version"] == b"1"
    assert old.data() == undisturbed_rows
    assert old.problems() == ()
    old.retry()
    assert old.problems() == ()
    assert "evidence" not in pipeline.read(old.config.output).schema.names


def test_it_can_be_filtered_by_what_it_has(old: SmallJob, tmp_path: Any) -> None:
    old.run()
    kept = pipeline.filter(old.config.output, to=tmp_path / "best", keep="best 50%", score="mean_logprob")
    assert kept.kept == 20
    with pytest.raises(pipeline.ConfigError, match="this output has no worst_logprob"):
        pipeline.filter(old.config.output, to=tmp_path / "worst", keep="best 50%", score="worst_logprob")


def test_begun_anew_it_has_evidence(old: SmallJob) -> None:
    old.run(mode="new")
    assert pa.types.is_struct(pipeline.read(old.config.output).schema.field("evidence").type)
    assert old.problems() == ()


def test_a_version_to_come_is_refused(old: SmallJob, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_record, "KNOWN_VERSIONS", (2,))
    with pytest.raises(pipeline.OutputError, match="its output of schema 1, this version writes"):
        old.run()
