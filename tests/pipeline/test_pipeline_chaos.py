"""Real Ray nodes, real engines, real signals at random moments: the rows of a bare engine come out, each once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pipeline
from pipeline import layout
from pipeline.codec import make_requests
from pipeline.commands.run import run_on
from pipeline.config import RunConfig
from pipeline.storage.open import open_storage
from testing.pipeline.chaos import Chaos, Outcome
from testing.pipeline.fakes import RealExecutor
from testing.pipeline.ray_nodes import serve_cluster
from testing.pipeline.s3 import serve_s3
from wedlm_core import LLM, SamplingParams

SAMPLING = {"max_tokens": 48, "temperature": 0.8, "window_size": 4, "ignore_eos": True}


def write_prompts(folder: Path, rows: int) -> Path:
    path = folder / "prompts.parquet"
    pq.write_table(pa.table({"prompt": [f"Count from {i} to {i + 5}." for i in range(rows)]}), path)
    return path


def config_of(source: Path, output: str, model: Path, **fields: Any) -> dict[str, Any]:
    return {"input": str(source), "output": output, "model": str(model), "sampling": SAMPLING, "unit_rows": 8,
            "units_in_flight": 4, "num_threads": 1, **fields}  # fmt: skip


def expected_of(source: Path, model: Path) -> list[tuple[str, list[int]]]:
    """Row ids and tokens of a bare engine."""
    llm, params = LLM(str(model)), SamplingParams(**SAMPLING)
    prompts = pq.read_table(source)["prompt"].to_pylist()
    done: dict[str, list[int]] = {}
    for i, prompt in enumerate(prompts):
        (request,) = make_requests(str(i), f"{source.name}:{i}", llm.tokenizer.encode_prompt(prompt), params, 0)
        llm.engine.add(request)
    while llm.engine.has_work():
        done.update((g.request_id.split("/")[0], list(g.token_ids)) for g in llm.engine.step())
    return [(f"{source.name}:{i}", done[str(i)]) for i in range(len(prompts))]


def published(config: dict[str, Any]) -> list[tuple[str, list[int]]]:
    table = pipeline.read(config["output"], format="arrow", storage_options=config.get("output_storage_options"))
    assert table["error"].null_count == table.num_rows
    return list(zip(table["row_id"].to_pylist(), table["token_ids"].to_pylist(), strict=True))


def check(outcome: Outcome, kills: list[str], config: dict[str, Any], source: Path, model: Path) -> None:
    assert sorted(outcome.kills.elements()) == sorted(kills)
    assert published(config) == expected_of(source, model)
    assert pipeline.status(config["output"], storage_options=config.get("output_storage_options"))["rows_failed"] == 0


def test_a_node_that_is_lost_in_the_middle_costs_no_row(qwen3_folder: Path, tmp_path: Path) -> None:
    source = write_prompts(tmp_path, 500)
    config = config_of(source, str(tmp_path / "out"), qwen3_folder)
    with serve_cluster() as cluster:
        cluster.add_node(2)
        # This seed's first moment falls into the generating.
        chaos = Chaos(cluster, tmp_path / "chaos", config, tokens=500 * 48, seed=5)
        outcome = chaos.run(["raylet"])
    check(outcome, ["raylet"], config, source, qwen3_folder)
    assert outcome.drivers == 1, "the driver lived through it"


@pytest.mark.slow  # about a minute: two kills, each followed by the start of processes
def test_conversations_come_out_whole_whatever_is_killed(qwen3_folder: Path, tmp_path: Path) -> None:
    source = tmp_path / "turns.parquet"
    rows = [{"turns": [f"Count from {i}.", "And then?", "Stop at 9."]} for i in range(250)]
    pq.write_table(pa.Table.from_pylist(rows), source)
    undisturbed, config = (
        config_of(source, str(tmp_path / name), qwen3_folder, turns_column="turns", report=False) for name in "ab"
    )
    plain = RunConfig.from_mapping(undisturbed)
    run_on(RealExecutor(), plain, open_storage(plain.output, layout.SCRATCH, {}), lambda progress: None)
    with serve_cluster() as cluster:
        cluster.add_node(2)
        outcome = Chaos(cluster, tmp_path / "chaos", config, tokens=250 * 3 * 48, seed=5).run(["actor", "driver"])
    assert sorted(outcome.kills.elements()) == ["actor", "driver"]
    names = ["row_id", "messages", "text", "token_ids", "seed", "error", "completion_tokens"]
    found, expected = (pipeline.read(one["output"]).to_arrow().select(names) for one in (config, undisturbed))
    assert found.equals(expected)
    assert found["error"].null_count == found.num_rows == len(rows)


@pytest.mark.slow  # about four minutes: ten kills, each followed by the start of processes
@pytest.mark.timeout(900)
def test_kills_of_every_kind_on_an_object_store_that_fails_at_random(qwen3_folder: Path, tmp_path: Path) -> None:
    source = write_prompts(tmp_path, 8000)
    kills = ["actor", "driver", "raylet", "sigterm", "actor", "driver", "raylet", "actor", "sigterm", "driver"]
    with serve_s3() as server, serve_cluster() as cluster:
        output = f"{server.bucket('chaos')}/out"
        config = config_of(source, output, qwen3_folder, actors=2, output_storage_options=server.references(tmp_path))
        for _ in range(2):
            cluster.add_node(2)
        outcome = Chaos(cluster, tmp_path / "chaos", config, tokens=8000 * 48, failures=0.02, seed=3).run(kills)
        check(outcome, kills, config, source, qwen3_folder)
