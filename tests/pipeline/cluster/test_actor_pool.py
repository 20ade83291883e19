"""Real actors of a range and of several pools: the same bytes, and as many as fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pipeline
from pipeline import layout
from pipeline.cluster.executor import RayExecutor
from pipeline.codec import SamplingParams
from pipeline.commands.run import run_on
from pipeline.commands.summary import RunSummary
from pipeline.config import RunConfig
from pipeline.schema import DATA_COLUMNS
from pipeline.sinks.staged import data_checksum
from pipeline.storage.open import open_storage
from testing.pipeline.noted_engines import noted_engine, noted_pair_engine, notes_of

ROWS = 96


def config_of(folder: Path, name: str, model: Path, **fields: Any) -> RunConfig:
    path = folder / "in.parquet"
    if not path.exists():
        pq.write_table(pa.table({"prompt_token_ids": [[10 + i % 50, 300 - i] for i in range(ROWS)]}), path)
    return RunConfig(
        input=str(path), output=str(folder / name), model=str(model), unit_rows=2, num_threads=1,
        sampling=SamplingParams(max_tokens=6, temperature=0.7, ignore_eos=True, window_size=4), **fields,
    )  # fmt: skip


def go(config: RunConfig, load: object) -> RunSummary:
    executor = RayExecutor(config, load)  # type: ignore[arg-type]
    return run_on(executor, config, open_storage(config.output, layout.SCRATCH), lambda progress: None)


@pytest.mark.slow(reason="three runs on a cluster: 40 s")
@pytest.mark.usefixtures("cluster")
def test_a_fixed_number_a_range_and_two_pools_give_the_same_bytes(qwen3_folder: Path, tmp_path: Path) -> None:
    ways: dict[str, dict[str, Any]] = {
        "one": {"actors": 1},
        "range": {"actors": {"min": 0, "max": 3}, "units_in_flight": 2},
        "pools": {"pools": {"wide": {"engine": {"max_num_seqs": 16}, "cpus_per_actor": 0.5},
                            "slim": {"engine": {"max_num_seqs": 2, "page_size": 16}, "cpus_per_actor": 0.5}},
                  "units_in_flight": 2},
    }  # fmt: skip
    sums, slots = {}, {}
    for name, fields in ways.items():
        config = config_of(tmp_path, name, qwen3_folder, **fields)
        summary = go(config, noted_engine)
        assert (summary.total.rows, summary.total.failed_rows) == (ROWS, 0)
        assert summary.start_up.actors >= 1
        assert {summary.start_up.median[phase] > 0 for phase in ("scheduling", "load", "compile")} == {True}
        assert f"Start of {summary.start_up.actors} actor" in summary.describe()
        columns = ["prompt_token_ids", *DATA_COLUMNS]
        sums[name] = data_checksum(pipeline.read(config.output, format="arrow"), columns)
        slots[name] = sorted(note["slots"] for note in notes_of(config.output))
    assert len(set(sums.values())) == 1, sums
    assert slots["one"] == [64]
    assert slots["range"] in ([64], [64, 64]), "two CPUs have room for two of three"
    assert slots["pools"] == [2, 16]


@pytest.mark.usefixtures("cluster")
def test_a_range_on_a_fixed_cluster_takes_as_many_as_fit(qwen3_folder: Path, tmp_path: Path) -> None:
    config = config_of(tmp_path, "fit", qwen3_folder, actors={"min": 1, "max": 64}, units_in_flight=2)
    assert go(config, noted_pair_engine).total.rows == ROWS
    assert len(notes_of(config.output)) == 2
