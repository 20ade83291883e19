"""Input columns come out as they went in, with their Arrow types: source, staged unit, published part, read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline import layout
from pipeline.codec import SamplingParams
from pipeline.commands.read import read
from pipeline.commands.run import run_on
from pipeline.config import RunConfig
from pipeline.errors import ConfigError
from pipeline.sinks import FORMATS, check_format
from pipeline.sinks.staged import data_checksum
from pipeline.storage.local import LocalStorage
from testing.pipeline.arrow import tables
from testing.pipeline.fakes import InlineExecutor


def write(table: pa.Table, folder: Path, kind: str) -> Any:
    """The table as an input; Arrow's types of its columns."""
    if kind == "memory":
        return table, table
    path = folder / f"in.{kind}"
    if kind == "parquet":
        pq.write_table(table, path, row_group_size=3)
        return str(path), pq.read_table(path)
    make = pa.ipc.new_file if kind == "arrow" else pa.ipc.new_stream
    with make(path, table.schema, options=pa.ipc.IpcWriteOptions(unify_dictionaries=True)) as writer:
        writer.write_table(table, max_chunksize=4)
    return str(path), table


@given(
    table=tables().filter(lambda table: table.num_rows),  # an input of no rows is refused
    source=st.sampled_from(["parquet", "arrow", "arrows", "memory"]),
    sink=st.sampled_from(sorted(FORMATS)),
    unit_rows=st.integers(1, 5),
)
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
def test_columns_come_out_as_they_went_in(
    tmp_path_factory: pytest.TempPathFactory,
    qwen3_folder: Path,
    table: pa.Table,
    source: str,
    sink: str,
    unit_rows: int,
) -> None:
    folder = tmp_path_factory.mktemp("rt")
    data, expected = write(table, folder, source)
    config = RunConfig(
        input=data, output=str(folder / "out"), model=str(qwen3_folder), unit_rows=unit_rows, output_format=sink,
        sampling=SamplingParams(max_tokens=2), target_part_bytes=8000,
    )  # fmt: skip
    run_on(InlineExecutor(), config, LocalStorage(config.output, layout.SCRATCH), lambda progress: None)
    got = read(config.output, format="arrow").select(expected.column_names)
    got.validate(full=True)
    assert [f.type for f in got.schema] == [f.type for f in expected.schema]
    for name in expected.column_names:
        assert data_checksum(got, [name]) == data_checksum(expected, [name]), (got[name], expected[name])


def test_a_type_that_a_format_cannot_hold_is_refused_before_anything_is_generated() -> None:
    schema = pa.schema([("prompt", pa.string()), ("span", pa.month_day_nano_interval())])
    for name in ("parquet", "jsonl"):
        with pytest.raises(ConfigError, match=r"span: month_day_nano_interval.*output_format='ipc'"):
            check_format(name, schema)
    check_format("ipc", schema)
