"""Cards: ``datasets`` casts JSON Lines parts to the types in theirs; the YAML of a README is read back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pytest
import yaml
from datasets.exceptions import DatasetGenerationError

from pipeline import layout
from pipeline.codec import SamplingParams
from pipeline.commands.read import read
from pipeline.commands.run import run_on
from pipeline.config import RunConfig
from pipeline.sinks.dataset_card import (
    NAME,
    CardFacts,
    RowStatistics,
    card_of,
    card_text,
    is_card,
    json_schema,
    mark_of,
)
from pipeline.storage.open import open_storage
from testing.pipeline.fakes import InlineExecutor

LATE = 30
"""The first row with values, in a part of its own."""
ROWS = pa.table(
    {
        "prompt": [f"Count from {i}." if i < LATE else "" for i in range(36)],
        "note": pa.array([None] * LATE + ["text"] * 6, pa.string()),
        "scores": pa.array([[]] * LATE + [[1.5, 2.0]] * 6, pa.list_(pa.float64())),
        "source": pa.array(
            [{"url": None, "lines": []}] * LATE + [{"url": "u", "lines": [{"n": 1}]}] * 6,
            pa.struct([("url", pa.string()), ("lines", pa.list_(pa.struct([("n", pa.int32())])))]),
        ),
        "blob": pa.array([None] * LATE + [b"\xff\x00"] * 6, pa.binary()),
        "when": pa.array([None] * LATE + [1_700_000_000] * 6, pa.timestamp("s", "UTC")),
    }
)


def run(output: Path, model: Path, **fields: Any) -> None:
    config = RunConfig(
        input=ROWS, output=str(output), model=str(model), unit_rows=6, target_part_bytes=1,
        sampling=SamplingParams(max_tokens=4), **fields,
    )  # fmt: skip
    run_on(InlineExecutor(), config, open_storage(config.output, layout.SCRATCH), lambda progress: None)


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory, qwen3_folder: Path) -> Path:
    output = tmp_path_factory.mktemp("jsonl") / "out"
    run(output, qwen3_folder, output_format="jsonl")
    assert len(list(output.glob("data-*/*.jsonl"))) == 6
    return output


def load(cache: Path, *names: str, **options: Any) -> datasets.Dataset:
    return datasets.load_dataset(*names, split="train", cache_dir=str(cache / "cache"), **options)


def values(rows: Any) -> list[Any]:
    names = ("row_id", "error", "note", "scores", "source", "when")
    return [{name: row[name] for name in names} for row in rows]


def test_the_folder_loads_with_its_types(output: Path, tmp_path: Path) -> None:
    loaded = load(tmp_path, str(output))
    assert values(loaded) == values(read(output))
    assert loaded.features == read(output).features
    assert loaded[35]["blob"] == "/wA=", "base64, as JSON has no bytes"
    assert loaded[35]["error"]


def test_the_glob_loads_with_the_features_of_the_output(output: Path, tmp_path: Path) -> None:
    pattern = f"{output}/data-*/*.jsonl"
    loaded = load(tmp_path, "json", data_files=pattern, features=read(output).features)
    assert values(loaded) == values(read(output))
    with pytest.raises(DatasetGenerationError):  # without types it does not, which is why they are kept
        load(tmp_path, "json", data_files=pattern)


def test_the_file_names_every_type_as_datasets_does(tmp_path: Path) -> None:
    plain = [pa.bool_(), pa.int8(), pa.uint64(), pa.float16(), pa.float32(), pa.float64(), pa.string(), pa.null(),
             pa.date32(), pa.date64(), pa.time32("ms"), pa.time64("ns"), pa.timestamp("us"), pa.timestamp("ns", "UTC"),
             pa.duration("s"), pa.decimal128(5, 2)]  # fmt: skip
    nested = [
        pa.list_(pa.int32()), pa.list_(pa.list_(pa.float32())), pa.list_(pa.struct([("a", pa.list_(pa.string()))])),
        pa.list_(pa.list_(pa.struct([("a", pa.int8())]))), pa.struct([("x", pa.struct([("y", pa.date32())]))]),
        pa.map_(pa.string(), pa.int32()), pa.dictionary(pa.int8(), pa.string()), pa.list_(pa.int8(), 2),
        pa.large_list(pa.large_string()), pa.string_view(), pa.binary(4),
    ]  # fmt: skip
    schema = pa.schema([(f"c{i}", kind) for i, kind in enumerate([*plain, *nested])])
    (tmp_path / "data-000000").mkdir()
    (tmp_path / "data-000000" / "part-000000.jsonl").write_text("{}\n")
    (tmp_path / NAME).write_bytes(card_of(schema, "data-*/*.jsonl"))
    builder = datasets.load_dataset_builder(str(tmp_path), cache_dir=str(tmp_path / "cache"))
    assert builder.info.features == datasets.Features.from_arrow_schema(json_schema(schema))


def test_only_json_lines_have_the_file_and_a_discard_removes_it(tmp_path: Path, qwen3_folder: Path) -> None:
    run(tmp_path / "out", qwen3_folder, output_format="jsonl")
    assert is_card((tmp_path / "out" / NAME).read_bytes())
    run(tmp_path / "out", qwen3_folder, mode="new")
    assert not (tmp_path / "out" / NAME).exists()
    (tmp_path / "out" / NAME).write_bytes(b"configs: []\n")
    run(tmp_path / "out", qwen3_folder, output_format="jsonl", mode="new")
    assert (tmp_path / "out" / NAME).read_bytes() == b"configs: []\n", "a user's own stays"


FACTS = CardFacts(
    repo="me/rows", digest="abc123", license=None, model="tiny", settings={"temperature": 0.0}, format="parquet",
    schema=pa.schema([("text", pa.string())]), statistics=RowStatistics(rows=5, inputs=5), version="1",
)  # fmt: skip


def front(text: str) -> dict[str, object]:
    return yaml.safe_load(text.split("---\n")[1])  # type: ignore[no-any-return]


def test_names_that_would_end_a_cell_do_not() -> None:
    schema = pa.schema([("a|b", pa.int32()), ("c`d\ne", pa.struct([(f"f{i}", pa.int64()) for i in range(40)]))])
    text = card_text(replace(FACTS, schema=schema, settings={"stop": "x|y\n---"}))
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    assert rows[0] == r"| `a\|b` | `int32` |"
    assert rows[1].startswith("| `c'd e` | `struct<f0: int64")
    assert all(len(row) < 120 for row in rows)
    assert front(text)["tags"] == ["synthetic", "wedlm-batch"]


@pytest.mark.parametrize(("rows", "size"), [(0, "n<1K"), (999, "n<1K"), (1000, "1K<n<10K"), (10**9, "n>1B")])
def test_the_size_is_the_hubs_category(rows: int, size: str) -> None:
    text = card_text(replace(FACTS, statistics=RowStatistics(rows=rows)))
    assert front(text)["size_categories"] == [size]


def test_a_card_is_known_by_its_mark() -> None:
    assert mark_of(card_text(FACTS)) == "abc123"
    assert mark_of("# somebody's") is None


def test_what_was_not_generated_is_not_divided_by() -> None:
    text = card_text(replace(FACTS, statistics=RowStatistics(rows=2, failed=2, inputs=2, finish_reasons={"error": 2})))
    assert "| generations | 0 |" in text
    assert "per generation" not in text
    assert "Failed rows have" in text
