"""Arrow tables as pandas frames that keep every integer: pandas' own way makes floats of integers with nulls."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    import pandas

__all__ = ["exact_frame"]


def exact_frame(table: pa.Table) -> pandas.DataFrame:
    """Make a frame: columns of integers with nulls have nullable types, the others pandas' usual ones."""
    frame = table.to_pandas(integer_object_nulls=True)  # integers with nulls inside of lists stay integers
    for place, column in enumerate(table.columns):
        if pa.types.is_integer(column.type) and column.null_count:
            frame.isetitem(place, column.to_pandas(types_mapper=_nullable))
    return frame


def _nullable(arrow: pa.DataType) -> Any:
    import pandas

    return pandas.api.types.pandas_dtype(str(arrow).replace("uint", "UInt").replace("int", "Int"))
