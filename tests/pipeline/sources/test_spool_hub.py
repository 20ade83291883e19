"""Datasets by name and saved to disk, frames, tables and Ray datasets: spooled once, wherever the output is."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets
import pandas as pd
import pyarrow as pa
import pytest

from pipeline import layout
from pipeline.errors import SourceError
from pipeline.plan.units import plan_units, read_tasks, read_units
from pipeline.sources import HIDDEN, Source, open_source
from pipeline.storage.local import LocalStorage
from pipeline.storage.object_store import ObjectStorage
from testing.pipeline.s3 import S3Server

ROWS = [{"prompt": f"p{i}", "n": i} for i in range(9)]


def rows_of(source: Source, rows: int = 4) -> list[dict[str, Any]]:
    tables = [
        table.select([name for name in table.column_names if name not in HIDDEN])
        for task in read_tasks(plan_units(source, rows, "f"))
        for table in read_units(source, task.units)
    ]
    return pa.concat_tables(tables).to_pylist()


@pytest.fixture(autouse=True)
def hub_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def storage(tmp_path: Path) -> LocalStorage:
    return LocalStorage(tmp_path / "out", layout.SCRATCH)


def test_a_builder_by_name_with_its_options(tmp_path: Path, storage: LocalStorage) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in ROWS))
    for options in ({"data_files": str(path), "split": "train"}, {"data_files": str(path)}):
        assert rows_of(open_source("json", storage, dataset_options=options)) == ROWS
    streamed = {"data_files": str(path), "split": "train", "streaming": True}
    assert rows_of(open_source("json", storage, dataset_options=streamed)) == ROWS
    both = {"data_files": {"a": str(path), "b": str(path)}}
    with pytest.raises(SourceError, match=r"splits \['a', 'b'\].*dataset_options"):
        open_source("json", storage, dataset_options=both)
    assert rows_of(open_source("json", storage, dataset_options={**both, "split": "b[:3]"})) == ROWS[:3]


def test_a_hub_id_that_cannot_be_loaded_says_what_was_tried(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    with pytest.raises(SourceError, match=r"'someone/questions': neither a file or folder here, nor loadable"):
        open_source("someone/questions", storage)


def test_folders_saved_to_disk(tmp_path: Path, storage: LocalStorage, s3: S3Server) -> None:
    dataset = datasets.Dataset.from_list(ROWS)
    dataset.save_to_disk(tmp_path / "one", num_shards=2)
    assert rows_of(open_source(tmp_path / "one", storage)) == ROWS
    shuffled = dataset.select([8, 0, 3])
    shuffled.save_to_disk(tmp_path / "some")
    assert rows_of(open_source(str(tmp_path / "some"), storage)) == [ROWS[8], ROWS[0], ROWS[3]]
    splits = datasets.DatasetDict({"train": dataset, "test": dataset.select([1])})
    splits.save_to_disk(tmp_path / "splits")
    with pytest.raises(SourceError, match="dataset_options"):
        open_source(tmp_path / "splits", storage)
    assert rows_of(open_source(tmp_path / "splits", storage, dataset_options={"split": "test"})) == [ROWS[1]]
    with pytest.raises(SourceError, match="'nope'"):
        open_source(tmp_path / "splits", storage, dataset_options={"split": "nope"})
    url = f"{s3.bucket(f'b{uuid.uuid4().hex[:12]}')}/saved"
    dataset.save_to_disk(url, storage_options=s3.options)
    assert rows_of(open_source(url, storage, options=s3.options)) == ROWS


def test_what_is_in_memory_is_spooled_once_beside_an_output_in_a_store(s3: S3Server) -> None:
    storage = ObjectStorage(f"{s3.bucket(f'b{uuid.uuid4().hex[:12]}')}/out", layout.SCRATCH, s3.options)
    for data in (ROWS, pa.Table.from_pylist(ROWS), pd.DataFrame(ROWS), datasets.Dataset.from_list(ROWS)):
        first = open_source(data, storage, storage_options=s3.options)
        assert rows_of(first) == ROWS
        assert first.files[0].path.startswith("s3://")
        again = open_source(data, storage, storage_options=s3.options)
        assert again.files == first.files
    keys = storage.keys(layout.INPUT)
    assert len(keys) == len({key.split("/")[2] for key in keys}), "one file for each content, none left aside"
    assert all(key.split("/")[2].startswith("rows-") for key in keys)


def test_a_lazily_read_source_is_written_in_pieces(storage: LocalStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[int] = []

    def rows() -> Any:
        for i in range(40_000):
            yield {"prompt": f"p{i}"}

    dataset = datasets.IterableDataset.from_generator(rows)
    real = pa.Table.cast

    monkeypatch.setattr(
        "pipeline.sources.spool.cast_table", lambda table, schema: held.append(table.num_rows) or real(table, schema)
    )
    source = open_source(dataset, storage)
    assert sum(held) == 40_000
    assert max(held) <= 4096
    assert [row["prompt"] for row in rows_of(source, 512)] == [f"p{i}" for i in range(40_000)]


def test_a_column_of_a_frame_with_values_of_several_kinds_is_text(storage: LocalStorage) -> None:
    frame = pd.DataFrame({"prompt": ["a", "b", "c"], "n": [1, 2, 3], "k": [1, {"x": 2}, None]}, index=["u", "v", "w"])
    (unit,) = plan_units(source := open_source(frame, storage), 10, "f")
    table = next(source.read([unit.rows]))
    assert table["k"].to_pylist() == ["1", '{"x": 2}', None]
    assert table["n"].to_pylist() == [1, 2, 3]
    assert table.column_names == ["prompt", "n", "k", "__index_level_0__"]


def test_rows_that_a_transform_makes_are_those_of_the_transform(storage: LocalStorage) -> None:
    data = datasets.Dataset.from_list(ROWS).with_transform(
        lambda batch: {"prompt": [p.upper() for p in batch["prompt"]]}
    )
    assert rows_of(open_source(data, storage)) == [{"prompt": row["prompt"].upper()} for row in ROWS]


def test_an_input_whose_code_fails_is_refused_in_one_line_and_leaves_nothing(storage: LocalStorage) -> None:
    def broken() -> Iterator[dict[str, str]]:
        for number in range(5000):
            if number == 4500:
                raise ValueError("no more\nof these")
            yield {"prompt": str(number)}

    for data in (datasets.IterableDataset.from_generator(broken),
                 datasets.Dataset.from_list(ROWS).with_transform(lambda batch: 1 / 0)):  # fmt: skip
        with pytest.raises(SourceError, match=r"^the input fails after \d+ rows \(\w+Error: [a-z ]+\)\. Correct"):
            open_source(data, storage)
        assert not list(storage.keys(layout.INPUT))


def test_a_file_of_the_first_feather_is_named_as_that(tmp_path: Path, storage: LocalStorage) -> None:
    (tmp_path / "a.feather").write_bytes(b"FEA1" + bytes(60) + b"FEA1")
    with pytest.raises(SourceError, match="it is Feather of version 1"):
        open_source(str(tmp_path / "a.feather"), storage)
