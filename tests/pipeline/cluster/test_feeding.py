"""Two real actors, one of them hanging or slow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pipeline
from pipeline import layout
from pipeline.cluster.executor import RayExecutor
from pipeline.commands.run import run_on
from pipeline.commands.summary import RunSummary
from pipeline.config import RunConfig
from pipeline.storage.open import open_storage
from testing.pipeline.deadly_engines import one_hangs_engine, one_is_slow_engine

ROWS = 240


def config_of(folder: Path, model: Path, **fields: Any) -> RunConfig:
    ids = [[10 + i % 50, 300 - i] for i in range(ROWS)]
    pq.write_table(pa.table({"prompt_token_ids": ids, "k": list(range(ROWS))}), folder / "in.parquet")
    settings: dict[str, Any] = {"unit_rows": 4, "actors": 2, "units_in_flight": 4, **fields}
    return RunConfig(input=str(folder / "in.parquet"), output=str(folder / "out"), model=str(model), **settings)


def go(config: RunConfig, load: object) -> RunSummary:
    executor = RayExecutor(config, load)  # type: ignore[arg-type]
    return run_on(executor, config, open_storage(config.output, layout.SCRATCH), lambda progress: None)


def check_whole(config: RunConfig, summary: RunSummary) -> None:
    assert (summary.total.rows, summary.total.failed_rows) == (ROWS, 0)
    assert pipeline.read(config.output, format="arrow")["k"].to_pylist() == list(range(ROWS))
    assert pipeline.verify(config.output, input=config.input).ok
    assert not list(Path(config.output, layout.STAGED).glob("*")), "results that came second are removed too"


@pytest.mark.slow(reason="waits for an actor that hangs: 30 s")
@pytest.mark.usefixtures("cluster")
def test_an_actor_that_hangs_costs_no_row_and_the_job_ends(qwen3_folder: Path, tmp_path: Path) -> None:
    config = config_of(tmp_path, qwen3_folder)
    check_whole(config, go(config, one_hangs_engine))


@pytest.mark.usefixtures("cluster")
def test_an_actor_that_is_slow_is_given_little_and_relieved_of_what_is_left(
    qwen3_folder: Path, tmp_path: Path
) -> None:  # fmt: skip
    config = config_of(tmp_path, qwen3_folder)
    copies: Counter[int] = Counter()
    seen: list[float] = []

    class Watched(RayExecutor):
        def run_units(self, job: Any, work: Any) -> Iterator[Any]:
            for records in super().run_units(job, work):
                copies.update(record.copy for record in records)
                seen.extend(record.engine_seconds for record in records)
                yield records

    executor = Watched(config, one_is_slow_engine)
    summary = run_on(executor, config, open_storage(config.output, layout.SCRATCH), lambda progress: None)
    check_whole(config, summary)
    assert copies[1] >= 1, "at the end the quick actor did units of the slow one"
    assert copies.total() == ROWS // 4
