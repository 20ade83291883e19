"""Arrow tables of any type, for property-based tests."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

Strategy = st.SearchStrategy[Any]

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)


def integers(bits: int, *, signed: bool = True) -> Strategy:
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else st.integers(0, 2**bits - 1)


def floats(width: Any) -> Strategy:
    """Of the many floats that are no number, the usual one: no file format promises more."""
    return st.floats(width=width).map(lambda v: math.nan if math.isnan(v) else v)


LEAVES: list[tuple[pa.DataType, Strategy]] = [
    (pa.int8(), integers(8)),
    (pa.int64(), integers(64)),
    (pa.uint16(), integers(16, signed=False)),
    (pa.uint64(), integers(64, signed=False)),
    (pa.float32(), floats(32)),
    (pa.float64(), floats(64)),
    (pa.bool_(), st.booleans()),
    (pa.string(), TEXT),
    (pa.large_string(), TEXT),
    (pa.binary(), st.binary(max_size=5)),
    (pa.large_binary(), st.binary(max_size=5)),
    (pa.binary(3), st.binary(min_size=3, max_size=3)),
    (pa.null(), st.none()),
    (pa.decimal128(9, 2), st.decimals(-(10**6), 10**6, places=2).map(Decimal)),
    (pa.decimal256(40, 0), st.integers(-(10**39), 10**39).map(Decimal)),
    (pa.date32(), st.dates()),
    (pa.time32("s"), st.integers(0, 86399)),
    (pa.time32("ms"), st.integers(0, 86399999)),
    (pa.time64("ns"), st.integers(0, 86399999999999)),
    (pa.duration("ns"), integers(64)),
    *(
        (pa.timestamp(unit, zone), st.integers(-(2**62), 2**62) if unit == "ns" else st.integers(-(10**13), 10**13))
        for unit in ("s", "ms", "us", "ns")
        for zone in (None, "UTC", "Europe/Berlin")
    ),
    (pa.dictionary(pa.int32(), pa.string()), TEXT),
    (pa.dictionary(pa.int8(), pa.string()), st.sampled_from(["a", "b", "", "\u00e9"])),
    (pa.dictionary(pa.int32(), pa.int64()), st.integers(0, 3)),
]


def _nested(inner: tuple[pa.DataType, Strategy]) -> list[tuple[pa.DataType, Strategy]]:
    kind, values = inner
    lists = st.lists(st.none() | values, max_size=3)
    return [
        (pa.list_(kind), lists),
        (pa.large_list(kind), lists),
        (pa.list_(kind, 2), st.lists(st.none() | values, min_size=2, max_size=2)),
        (
            pa.struct([("x", kind), ("y", pa.string())]),
            st.fixed_dictionaries({"x": st.none() | values, "y": st.none() | TEXT}),
        ),
        (pa.map_(pa.string(), kind), st.lists(st.tuples(TEXT, st.none() | values), max_size=2)),
    ]


def _inside(kind: pa.DataType) -> bool:
    """Whether lists and structs of it survive Parquet: dictionaries do at the top only."""
    return not pa.types.is_dictionary(kind) and not pa.types.is_null(kind)


NESTED = [wrapped for leaf in LEAVES if _inside(leaf[0]) for wrapped in _nested(leaf)]
DEEP = [wrapped for inner in NESTED[::7] for wrapped in _nested(inner)]


@st.composite
def tables(draw: st.DrawFn, *, max_rows: int = 9) -> pa.Table:
    """A table with a ``prompt`` column and one to four others, in one or two chunks, nulls everywhere."""
    rows = draw(st.integers(0, max_rows))
    columns = {"prompt": pa.array([f"p{i}" for i in range(rows)], pa.string())}
    kinds = draw(st.lists(st.sampled_from([*LEAVES, *NESTED, *DEEP]), min_size=1, max_size=4))
    for i, (kind, values) in enumerate(kinds):
        drawn = draw(st.lists(st.none() | values, min_size=rows, max_size=rows))
        columns[f"c{i}"] = _array(drawn, kind)
    table = pa.table(columns)
    cut = draw(st.integers(0, rows))
    return pa.concat_tables([table.slice(0, cut), table.slice(cut)]) if draw(st.booleans()) else table


def _array(values: list[Any], kind: pa.DataType) -> pa.Array:
    if pa.types.is_dictionary(kind):
        return pa.array(values, kind.value_type).dictionary_encode().cast(kind)
    return pa.array(values, kind)
