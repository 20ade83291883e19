"""Sources: every row once, in order, whatever the files look like and however they are sliced."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import datasets
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.plan.units import plan_units, read_tasks, read_units
from pipeline.sources import BAD, HIDDEN, RAW
from testing.pipeline.source_rows import all_rows, opened


@given(
    sizes=st.lists(st.integers(0, 40), min_size=1, max_size=4),
    group=st.integers(1, 17),
    unit=st.integers(1, 23),
    skip=st.sets(st.integers(0, 60)),
)
@settings(max_examples=40, deadline=None)
def test_parquet_units_hold_every_row_once_in_order_for_any_row_groups(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], group: int, unit: int, skip: set[int]
) -> None:
    folder = tmp_path_factory.mktemp("in")
    expected = []
    for i, size in enumerate(sizes):
        values = [f"{i}.{j}" for j in range(size)]
        expected += values
        pq.write_table(
            pa.table({"prompt": pa.array(values, pa.string())}), folder / f"{i}.parquet", row_group_size=group
        )
    source = opened(folder, folder.parent)
    units = list(plan_units(source, unit, "f"))
    got = {}
    for task in read_tasks(u for u in units if u.index not in skip):
        for u, table in zip(task.units, read_units(source, task.units), strict=True):
            got[u.index] = table["prompt"].to_pylist()
    assert sorted(got) == [u.index for u in units if u.index not in skip]
    starts = [sum(u.rows.num_rows for u in units[:i]) for i in range(len(units))]
    for index, values in got.items():
        assert values == expected[starts[index] : starts[index] + len(values)]
    assert sum(u.rows.num_rows for u in units) == len(expected)


@given(rows=st.lists(st.text(max_size=12), max_size=50), unit=st.integers(1, 9), blank=st.booleans())
@settings(max_examples=40, deadline=None)
def test_jsonl_units_hold_every_line_once_in_order(
    tmp_path_factory: pytest.TempPathFactory, rows: list[str], unit: int, blank: bool
) -> None:
    path = tmp_path_factory.mktemp("in") / "x.jsonl"
    lines = [json.dumps({"prompt": "first"}), *(json.dumps({"prompt": row}, ensure_ascii=False) for row in rows)]
    path.write_bytes(("\n\n" if blank else "\n").join(lines).encode("utf-8", "surrogatepass"))
    table = all_rows(opened(path, path.parent), unit)
    good = [v for v, bad in zip(table["prompt"].to_pylist(), table[BAD].to_pylist(), strict=True) if bad is None]
    assert table.num_rows == len(lines)
    assert good == ["first", *rows]


def test_a_line_that_is_not_json_and_a_misfit_are_bad_rows_with_their_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.sources.formats.jsonl._INFER_ROWS", 2)
    path = tmp_path / "x.jsonl"
    path.write_bytes(
        b'{"prompt": "a", "k": 1}\n{broken\n{"prompt": "b", "k": "one"}\n[1]\n\xff\n{"prompt": "c", "k": 2}\n'
    )
    table = all_rows(opened(path, tmp_path), 4)
    assert table["k"].to_pylist() == [1, None, None, None, None, 2]
    reasons = table[BAD].to_pylist()
    assert reasons[0] is None
    assert "JSON" in reasons[1]
    assert "'k' is int64" in reasons[2]
    assert "mapping" in reasons[3]
    assert "UTF-8" in reasons[4]
    assert table[RAW].to_pylist()[1] == "{broken"
    assert json.loads(table[RAW].to_pylist()[2]) == {"prompt": "b", "k": "one"}


@pytest.mark.parametrize("kind", ["list", "arrow", "pandas", "datasets", "jsonl", "parquet", "glob"])
def test_every_kind_of_source_gives_the_same_rows(tmp_path: Path, kind: str) -> None:
    rows = [{"prompt": f"p{i}", "n": i, "tags": ["x"] * (i % 3)} for i in range(25)]
    table = pa.Table.from_pylist(rows)
    (tmp_path / "in").mkdir()
    if kind == "jsonl":
        (tmp_path / "in/x.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    pq.write_table(table.slice(0, 10), tmp_path / "in/a.parquet") if kind == "glob" else None
    pq.write_table(table.slice(10), tmp_path / "in/b.parquet") if kind == "glob" else None
    pq.write_table(table, tmp_path / "in/x.pq") if kind == "parquet" else None
    data: Any = {
        "list": rows,
        "arrow": table,
        "pandas": pd.DataFrame(rows),
        "datasets": datasets.Dataset.from_list(rows),
        "jsonl": str(tmp_path / "in/x.jsonl"),
        "parquet": tmp_path / "in",
        "glob": str(tmp_path / "in/*.parquet"),
    }[kind]
    got = all_rows(opened(data, tmp_path), 4)
    assert got.select([n for n in got.column_names if n not in HIDDEN]).to_pylist() == rows
