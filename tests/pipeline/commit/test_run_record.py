"""Outputs of earlier versions are read, verified and continued as they were begun: version 1 had no evidence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

import pipeline
from pipeline.commands.run import run_on
from pipeline.commit import run_record
from pipeline.commit.run_record import Origin, RunState
from pipeline.errors import FingerprintError, OutputError
from pipeline.schema import DATA_COLUMNS
from testing.pipeline.exactly_once import SmallJob
from testing.pipeline.fakes import InlineExecutor
from wedlm_core.config import EngineConfig


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
    names = ["prompt", "topic", *(name for name in DATA_COLUMNS if name != "retry")]
    assert table.select(names).to_pylist() == [{name: row[name] for name in names} for row in undisturbed_rows]
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


def test_rows_of_narrow_weights_go_on_with_the_keys_and_values_that_they_have(make_job: Callable[[], SmallJob]) -> None:
    """An earlier version recorded "auto", and meant the dtype of the model."""
    job = make_job()
    job.run(dtype="float32", engine=EngineConfig(weight_dtype="int8", kv_cache_dtype="float32"))
    own = RunState.load_begun(job.storage)

    def saying(**settings: str) -> RunState:
        names = {"kv": "engine.kv_cache_dtype", "dtype": "dtype"}
        return replace(own, fingerprint={**own.fingerprint, **{names[key]: value for key, value in settings.items()}})

    assert saying(kv="auto").continued_by(own, "here") == saying(kv="auto")
    for go_on in (RunState.continued_by, RunState.followed_by):
        with pytest.raises(FingerprintError, match="was 'float32', is 'bfloat16'"):
            go_on(saying(kv="auto"), saying(kv="bfloat16"), "here")
        with pytest.raises(
            OutputError, match=r"here: engine\.kv_cache_dtype='auto' beside .* int8: an earlier.*mode='new'"
        ):
            go_on(saying(kv="auto", dtype="auto"), saying(kv="bfloat16", dtype="auto"), "here")
    plain = replace(own, fingerprint={**saying(kv="auto", dtype="auto").fingerprint, "engine.weight_dtype": "auto"})
    assert plain.continued_by(plain, "here") == plain


def test_a_run_whose_prompts_had_whole_numbers_as_fractions_is_refused(make_job: Callable[[], SmallJob]) -> None:
    job = make_job()
    job.run()
    own = RunState.load_begun(job.storage)
    earlier, whole = replace(own, whole_numbers=None), replace(own, whole_numbers=("n",))
    assert own.whole_numbers == ()
    assert whole.continued_by(whole, "here") == whole
    assert earlier.continued_by(own, "here") == earlier
    with pytest.raises(FingerprintError, match=r"columns n: 1 was 1\.0 in prompts"):
        earlier.continued_by(whole, "here")


def test_columns_of_fractions_that_the_template_writes_are_recorded(make_job: Callable[[], SmallJob]) -> None:
    rows = [{"q": "Count", "n": 1, "other": 1}, {"q": "Count", "n": 2.5, "other": 2.5}]
    job = make_job()
    config = replace(job.config, input=rows, columns=("q",), prompt_template="{{ q }} {{ n }}")
    run_on(InlineExecutor(), config, job.storage, lambda progress: None)
    assert RunState.load_begun(job.storage).whole_numbers == ("n",)
