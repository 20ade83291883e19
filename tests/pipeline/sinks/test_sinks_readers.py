"""A finished output is plain files: readers that know nothing of us see the published rows and nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import datasets
import pandas as pd
import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import pytest

from pipeline import layout
from pipeline.codec import SamplingParams, redact
from pipeline.commands.read import read
from pipeline.commands.run import run_on
from pipeline.commands.summary import RunSummary
from pipeline.config import RunConfig
from pipeline.sinks import FORMATS
from pipeline.storage.open import open_storage
from pipeline.types import Totals
from testing.pipeline.fakes import InlineExecutor

ROWS = pa.table(
    {
        "prompt": [f"Count from {i}." if i % 5 else "" for i in range(23)],
        "when": pa.array(range(23), pa.timestamp("us", "UTC")),
        "tags": [["a"] * (i % 3) for i in range(23)],
        "deep": [{"x": i, "y": None if i % 2 else str(i)} for i in range(23)],
    }
)


def run_to(output: str, model: Path, **fields: Any) -> pa.Table:
    config = RunConfig(
        input=ROWS, output=output, model=str(model), unit_rows=3, target_part_bytes=12_000,
        sampling=SamplingParams(max_tokens=4, n=2), **fields,
    )  # fmt: skip
    storage = open_storage(config.output, layout.SCRATCH, config.output_options)
    summary = run_on(InlineExecutor(), config, storage, lambda progress: None)
    assert f"\nFiles: {redact(summary.glob)} (a glob for Polars, DuckDB, Spark, datasets)\n" in summary.describe()
    return read(output, format="arrow", storage_options=config.output_options)


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory, qwen3_folder: Path) -> Path:
    folder = tmp_path_factory.mktemp("plain")
    run_to(str(folder), qwen3_folder)
    assert len(list(folder.glob("data-*/*.parquet"))) > 1
    return folder


@pytest.fixture(scope="module")
def expected(output: Path) -> list[dict[str, Any]]:
    rows = read(output, format="arrow").to_pylist()
    assert len(rows) == 23 * 2 - 5, "two samples of each good row, one row for each failed one"
    return rows


def pattern(output: Path) -> str:
    """The glob that the end of a run prints."""
    nothing = Totals()
    return RunSummary(
        output=str(output), total=nothing, session=nothing, seconds=0, generating_seconds=0, publications=()
    ).glob


def keys(rows: list[dict[str, Any]]) -> list[Any]:
    return [(r["row_id"], r["sample_index"], r["text"], r["finish_reason"], r["deep"]["x"]) for r in rows]


def test_pyarrow(output: Path, expected: list[dict[str, Any]]) -> None:
    assert pq.read_table(output).to_pylist() == expected
    assert pads.dataset(output).to_table().to_pylist() == expected


def test_pandas(output: Path, expected: list[dict[str, Any]]) -> None:
    frame = pd.read_parquet(output)
    assert frame["row_id"].tolist() == [row["row_id"] for row in expected]
    assert frame["when"].tolist() == [row["when"] for row in expected]


def test_duckdb(output: Path, expected: list[dict[str, Any]]) -> None:
    duckdb = pytest.importorskip("duckdb", reason="duckdb is not installed")
    query = f"""select row_id, sample_index, text, finish_reason, deep.x, stats.decode_forwards
        from read_parquet('{pattern(output)}', file_row_number = true) order by filename, file_row_number"""
    assert [row[:5] for row in duckdb.sql(query).fetchall()] == keys(expected)


def test_polars(output: Path, expected: list[dict[str, Any]]) -> None:
    polars = pytest.importorskip("polars", reason="polars is not installed")
    frame = polars.read_parquet(pattern(output))
    assert keys(frame.to_dicts()) == keys(expected)
    assert frame["tags"].to_list() == [row["tags"] for row in expected]


def test_datasets(output: Path, expected: list[dict[str, Any]], tmp_path: Path) -> None:
    files = load(tmp_path, "parquet", data_files=pattern(output))
    assert keys(list(files)) == keys(expected)
    folder = load(tmp_path, str(output))
    assert keys(list(folder)) == keys(expected)


def load(cache: Path, *names: str, **options: Any) -> datasets.Dataset:
    return datasets.load_dataset(*names, split="train", cache_dir=str(cache / "cache"), **options)


def test_arrow_parts_are_feather(tmp_path: Path, qwen3_folder: Path, expected: list[dict[str, Any]]) -> None:
    polars = pytest.importorskip("polars", reason="polars is not installed")
    got = run_to(str(tmp_path / "out"), qwen3_folder, output_format="ipc")
    assert keys(got.to_pylist()) == keys(expected)
    parts = sorted((tmp_path / "out").glob("data-*/*"))
    assert len(parts) > 1
    assert {part.suffix for part in parts} == {FORMATS["ipc"].suffix}
    tables = [pa.ipc.open_file(part).read_all() for part in parts]
    assert keys(pa.concat_tables(tables).to_pylist()) == keys(expected)
    assert [n for part in parts for n in pd.read_feather(part)["row_id"]] == [row["row_id"] for row in expected]
    assert [n for part in parts for n in polars.read_ipc(part)["row_id"]] == [row["row_id"] for row in expected]


def test_json_lines_parts_are_json_lines(tmp_path: Path, qwen3_folder: Path, expected: list[dict[str, Any]]) -> None:
    duckdb = pytest.importorskip("duckdb", reason="duckdb is not installed")
    got = run_to(str(tmp_path / "out"), qwen3_folder, output_format="jsonl")
    assert keys(got.to_pylist()) == keys(expected)
    parts = sorted((tmp_path / "out").glob("data-*/*.jsonl"))
    assert len(parts) > 1
    rows = [json.loads(line) for part in parts for line in part.read_text(encoding="utf-8").splitlines()]
    assert keys(rows) == keys(expected)
    assert pd.Timestamp(rows[7]["when"]) == expected[7]["when"]
    query = f"select row_id, deep.x from read_json('{tmp_path}/out/data-*/*.jsonl')"
    assert sorted(duckdb.sql(query).fetchall()) == sorted((r["row_id"], r["deep"]["x"]) for r in expected)
    loaded = load(tmp_path, "json", data_files=f"{tmp_path}/out/data-*/*.jsonl")
    assert [row["row_id"] for row in loaded] == [row["row_id"] for row in expected]


def test_dictionaries_that_differ_between_units_become_one_in_an_arrow_part(tmp_path: Path, qwen3_folder: Path) -> None:
    words = pa.array([f"w{i % 7}" for i in range(20)]).dictionary_encode()
    nested = pa.StructArray.from_arrays([words], ["w"])
    table = pa.table({"prompt": [f"p{i}" for i in range(20)], "word": words, "nested": nested})
    config = RunConfig(
        input=table.select(["prompt", "word"]), output=str(tmp_path / "out"), model=str(qwen3_folder), unit_rows=3,
        output_format="ipc",
    )  # fmt: skip
    run_on(InlineExecutor(), config, open_storage(config.output, layout.SCRATCH), lambda progress: None)
    got = read(config.output, format="arrow")
    assert got.schema.field("word").type == words.type
    assert got["word"].to_pylist() == words.to_pylist()
    with (tmp_path / "x.arrow").open("wb") as file:
        part = FORMATS["ipc"].open(file, table.schema)
        for i in range(0, 20, 3):
            piece = table.slice(i, 3)
            fresh = pa.array(piece["word"].to_pylist()).dictionary_encode()
            part.write(pa.table({"prompt": piece["prompt"], "word": fresh,
                                 "nested": pa.StructArray.from_arrays([fresh], ["w"])}))  # fmt: skip
        part.close()
    assert pa.ipc.open_file(tmp_path / "x.arrow").read_all().to_pylist() == table.to_pylist()
