"""The lazy stage: between transforms of Ray Data, the same texts as a run, whatever the batches and their order."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import ray

import pipeline
from pipeline.cluster.batch_stage import GenerateBatches, content_ids, stage_resources
from pipeline.codec import EngineConfig
from pipeline.commands import run
from pipeline.config import RunConfig
from pipeline.errors import ConfigError, ResourceError, SourceError
from pipeline.prompts.tokenize import CONTINUATIONS, FAILURE, PARAMS, PROMPT_IDS
from testing.pipeline.fakes import RealExecutor

SAMPLING = {"max_tokens": 8, "temperature": 0.8, "window_size": 4}
ROWS = [{"key": f"k{i}", "number": i} for i in range(24)]
BAD = 7


def with_prompt(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "prompt": "" if row["number"] == BAD else f"Count from {row['number']} to {row['number'] + 4}."}


def with_length(row: dict[str, Any]) -> dict[str, Any]:
    return {"key": row["key"], "text": row["text"], "error": row["error"], "length": len(row["text"] or "")}


def staged(model: Path, **fields: Any) -> pipeline.Stage:
    settings = {"sampling": SAMPLING, "seed": 7, "id_column": "key", "cpus_per_actor": 0.5, "num_threads": 1}
    return pipeline.stage(model=str(model), **{**settings, **fields})


@pytest.fixture(scope="module")
def of_a_run(qwen3_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str | None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "RayExecutor", lambda config, stop: RealExecutor())
        result = pipeline.run(
            [with_prompt(row) for row in ROWS], model=str(qwen3_folder), output=tmp_path_factory.mktemp("run"),
            sampling=pipeline.SamplingParams(**SAMPLING), seed=7, id_column="key",
        )  # fmt: skip
    return {row["key"]: row["text"] for row in result}


def test_between_transforms_it_gives_the_texts_of_a_run_and_nothing_runs_before_it_is_consumed(
    of_a_run: dict[str, str | None], cluster: None, qwen3_folder: Path, tmp_path: Path
) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()

    def marked(row: dict[str, Any]) -> dict[str, Any]:
        (marks / row["key"]).touch()
        return with_prompt(row)

    # Blocks of other sizes than batches, and in another order than the rows of the run.
    source = ray.data.from_items(ROWS[::-1], override_num_blocks=5).map(marked)
    whole = staged(qwen3_folder, batch_rows=4, batches_in_flight=3)(source).map(with_length)
    whole = whole.filter(lambda row: row["key"] != "k3")
    assert not list(marks.iterdir()), "building the pipeline reads nothing"
    rows = whole.take_all()
    assert len(list(marks.iterdir())) == len(ROWS)
    assert {row["key"]: row["text"] for row in rows} == {k: text for k, text in of_a_run.items() if k != "k3"}
    assert [row["key"] for row in rows if row["error"] is not None] == [f"k{BAD}"], "a bad row stays, with its error"
    assert all(row["length"] == len(row["text"] or "") for row in rows)


def test_without_ids_the_noise_follows_from_the_prompt_not_from_batch_or_place(qwen3_folder: Path) -> None:
    config = staged(qwen3_folder, id_column=None, sampling={**SAMPLING, "n": 2}).config
    generate = GenerateBatches(config, 1)
    rows = [{"prompt": f"Count from {i} to {i + 9}."} for i in range(5)]
    batches = [rows, rows[::-1][:3], rows[1:2], []]
    schema = pa.schema([("prompt", pa.string())])
    with ThreadPoolExecutor(len(batches)) as threads:  # as Ray Data calls it
        tables = list(threads.map(generate, (pa.Table.from_pylist(batch, schema) for batch in batches)))
    assert [table.num_rows for table in tables] == [10, 6, 2, 0]
    assert tables[3].column_names == tables[0].column_names
    found = [row for table in tables for row in table.to_pylist()]
    texts = {(row["prompt"], row["sample_index"], row["text"]) for row in found}
    assert len(texts) == 10, "a prompt has one text for each sample, wherever it stands"
    assert len({text for *_, text in texts}) > 5, "samples of one prompt differ"


def test_ids_follow_from_tokens_and_parameters_and_rows_without_a_prompt_have_one() -> None:
    table = pa.table(
        {PROMPT_IDS: [[1, 2], [1, 2], [1], None], PARAMS: [None, '{"n": 2}', None, None],
         FAILURE: [None, None, None, "empty"], CONTINUATIONS: [None, None, None, None]}
    )  # fmt: skip
    ids = content_ids(table)
    assert len(set(ids)) == 4
    scored = table.set_column(3, CONTINUATIONS, pa.array([[[5]], [[5], [6]], None, None]))
    assert [own == other for own, other in zip(content_ids(scored), ids, strict=True)] == [False, False, True, True]
    assert content_ids(table.take([3, 0])) == [ids[3], ids[0]]


def test_what_means_nothing_without_an_output_is_refused_by_name(qwen3_folder: Path) -> None:
    for field, value in (("output", "x"), ("limit", 3), ("unit_rows", 4), ("retry_failed", True)):
        with pytest.raises(ConfigError, match=field):
            pipeline.stage(model=str(qwen3_folder), **{field: value})
    with pytest.raises(ConfigError, match="batch_rows"):
        pipeline.stage(model=str(qwen3_folder), batch_rows=0)
    with pytest.raises(ConfigError, match="max_token"):
        pipeline.stage(model=str(qwen3_folder), sampling={"max_token": 3})


def test_columns_that_are_known_are_checked_before_anything_runs(cluster: None, qwen3_folder: Path) -> None:
    with pytest.raises(SourceError, match="key"):
        staged(qwen3_folder)(ray.data.from_arrow(pa.table({"prompt": ["a"]})))
    with pytest.raises(ConfigError, match="column_prefix"):
        staged(qwen3_folder)(ray.data.from_arrow(pa.table({"prompt": ["a"], "key": ["k"], "text": ["t"]})))


def test_the_actors_leave_a_cpu_to_the_other_steps() -> None:
    def cpus(count: float, actors: int = 1, **fields: Any) -> float:
        config = RunConfig(input=None, output=".", actors=actors, engine=EngineConfig(), **fields)
        return stage_resources(config, [{"CPU": count}]).cpus

    assert cpus(2) == 1.0
    assert cpus(2, actors=2) == 0.5
    assert cpus(8, actors=2) == 1.0
    assert cpus(1, cpus_per_actor=0.25) == 0.25
    with pytest.raises(ResourceError, match="cpus_per_actor"):
        cpus(1)
