"""Each row has a digest, also where Python has no value for a cell."""

from __future__ import annotations

import pyarrow as pa
import pytest

from pipeline.sinks.staged import row_digests

_MOST = 2**62


@pytest.mark.parametrize(
    "cells",
    [
        pa.array([_MOST, _MOST + 1], pa.duration("s")), pa.array([_MOST, _MOST + 1], pa.timestamp("s", "UTC")),
        pa.array([2**30, 2**30 + 1], pa.date32()), pa.array([_MOST, 0], pa.date64()),
        pa.array([[_MOST], [0]], pa.list_(pa.timestamp("s"))),
        pa.array([{"a": _MOST}, {"a": 0}], pa.struct([("a", pa.duration("s"))])),
        pa.array([b"\xff", b"\xfe"]).view(pa.string()),
    ],
    ids=lambda cells: str(cells.type),
)  # fmt: skip
def test_cells_that_python_lacks_have_digests_that_differ_with_them(cells: pa.Array) -> None:
    digests = row_digests(pa.table({"c": cells}), ["c"])
    assert digests[:16] != digests[16:]
    alone = [row_digests(pa.table({"c": cells.slice(row, 1)}), ["c"]) for row in range(2)]
    assert b"".join(alone) == digests, "the rows beside a row do not count"
