"""Values of the data never become a path: nothing is written outside of the output, nor under a name of the data."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline import layout
from pipeline.commands.read import read
from pipeline.commands.run import run_on
from pipeline.config import RunConfig
from pipeline.storage.open import open_storage
from testing.pipeline.fakes import InlineExecutor

ESCAPES = ("../../escaped", "/{root}/escaped", "..\\escaped", "a/../../../escaped", "escaped\0x", "~/escaped", "file:///{root}/e",
           "s3://escaped/x", "..", ".", "con", "$(touch escaped)", "{{{{ 1 }}}}")  # fmt: skip
NAMES = re.compile(r"[\w.-]+(/[\w.-]+)*")


def tree(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*")}


@pytest.mark.parametrize("output_format", ["parquet", "jsonl"])
def test_rows_ids_columns_and_partitions_that_look_like_paths_stay_inside_the_output(
    tmp_path: Path, qwen3_folder: Path, monkeypatch: pytest.MonkeyPatch, output_format: str
) -> None:
    root = tmp_path / "a" / "b" / "c"
    escapes = [escape.format(root=tmp_path) for escape in ESCAPES]
    for number, escape in enumerate(escapes):
        folder = root / "in" / f"dt={quote(escape, safe='')}"
        folder.mkdir(parents=True)
        table = pa.table({
            "prompt": [escape if number % 3 else None], "../../escaped": [escape], "id": [f"{escape}#{number}"],
        })  # fmt: skip
        pq.write_table(table, folder / "x.parquet")
    (root / "elsewhere").mkdir()
    monkeypatch.chdir(root / "elsewhere")
    monkeypatch.setenv("HOME", str(root / "elsewhere"))
    before = tree(tmp_path)
    config = RunConfig(
        input=str(root / "in"), output=str(root / "out"), model=str(qwen3_folder), id_column="id", unit_rows=1,
        output_format=output_format,
    )  # fmt: skip
    storage = open_storage(config.output, layout.SCRATCH)
    summary = run_on(InlineExecutor(), config, storage, lambda progress: None)
    assert summary.total.failed_rows == 5
    table = read(config.output, format="arrow")
    assert set(table["dt"].to_pylist()) == set(escapes), "folders' names are decoded to a possible path"
    assert {row.rpartition("#")[0] for row in table["row_id"].to_pylist()} == set(escapes)
    assert table["../../escaped"].to_pylist() == table["dt"].to_pylist()

    new = tree(tmp_path) - before
    assert new
    outside = {path for path in new if not path.startswith("a/b/c/out/") and path != "a/b/c/out"}
    assert not outside
    assert all(NAMES.fullmatch(path) and "escaped" not in path for path in new), new
