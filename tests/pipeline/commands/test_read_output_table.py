"""Reading an output: as Arrow, pandas, rows or a Ray dataset, which alone needs a session; nothing starts one."""

from __future__ import annotations

import os
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import pipeline
from pipeline import RunResult
from pipeline.commands.read import OutputTable
from pipeline.errors import ResourceError
from testing.pipeline.exactly_once import SmallJob
from testing.repository import ROOT

PROGRAM = """
import sys, pipeline
from pipeline import RunResult
from pipeline.types import Totals
summary = pipeline.RunSummary(output=sys.argv[1], total=Totals(), session=Totals(), seconds=0, generating_seconds=0,
                              publications=())
result = RunResult(summary=summary)
rows = list(result)
assert result.to_arrow().to_pylist() == rows == pipeline.read(sys.argv[1]).to_arrow().to_pylist()
assert result.to_pandas()["row_id"].tolist() == [row["row_id"] for row in rows]
print(len(rows), [name for name in ("ray", "torch") if name in sys.modules])
try:
    result.dataset
except pipeline.ResourceError as error:
    print(error)
print([name for name in ("ray", "torch") if name in sys.modules])
"""


@pytest.fixture
def result(tmp_path: Path, qwen3_folder: Path) -> RunResult:
    return RunResult(summary=SmallJob(tmp_path / "job", qwen3_folder).run())


def test_a_result_is_read_without_ray_and_its_dataset_says_what_to_call_instead(result: RunResult) -> None:
    environment = {k: v for k, v in os.environ.items() if k != "RAY_ADDRESS"} | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, result.summary.output], env=environment, capture_output=True, text=True,
        timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    first, said, last = done.stdout.splitlines()
    assert first == f"{result.to_arrow().num_rows} []"
    assert "to_pandas()" in said
    assert "none runs here" in said
    assert last == "[]", "and none was imported to find out"


def test_a_dataset_is_refused_where_no_session_runs(result: RunResult, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.commands.read.is_private", lambda: True)
    for use in (lambda: result.dataset, lambda: pipeline.read(result.summary.output, format="ray")):
        with pytest.raises(ResourceError, match=r"to_pandas\(\)"):
            use()


def test_the_rows_are_the_same_in_every_form(result: RunResult) -> None:
    rows = list(result)
    assert rows == result.to_arrow().to_pylist() == list(pipeline.read(result.summary.output))
    assert list(result) == rows, "again"
    frame = result.to_pandas()
    assert frame["row_id"].tolist() == [row["row_id"] for row in rows]


def test_iterating_holds_few_rows_however_many_there_are() -> None:
    schema = pa.schema([("text", pa.string())])
    batch = pa.table({"text": ["x" * 1000] * 8192})

    def tables() -> Iterator[pa.Table]:
        return (batch for _ in range(20))

    count = 0
    tracemalloc.start()
    for row in OutputTable(schema=schema, tables=tables):
        count += len(row)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert count == 20 * 8192
    assert most < 8 * 2**20, "the whole table has 160 MB, one batch 8 MB"
