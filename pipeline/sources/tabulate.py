"""Makes an Arrow table from rows that are mappings; a row that does not fit the schema becomes a bad row, as text."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from pipeline.sources.base import BAD, RAW
from pipeline.sources.limits import DEPTH_RULE, is_too_deep

__all__ = ["infer_schema", "tabulate"]


def infer_schema(rows: Sequence[Any]) -> pa.Schema:
    """Columns of ``rows`` (non-mappings are passed over) in order of first appearance.

    Where the values of a column have no common Arrow type, the most frequent Python type decides. A column
    of nulls only is text. Rows that are nested too deeply are passed over: no format can hold such a column.
    """
    rows = [row for row in rows if isinstance(row, Mapping) and not any(map(is_too_deep, row.values()))]
    names = dict.fromkeys(str(name) for row in rows for name in row if _is_text(name))
    return pa.schema([(name, _type([row.get(name) for row in rows])) for name in names])


def _is_text(name: Any) -> bool:
    """Whether a name can be a column's: JSON can write halves of surrogate pairs, which no encoding can."""
    try:
        str(name).encode()
    except UnicodeEncodeError:
        return False
    return True


def _type(values: list[Any]) -> pa.DataType:
    try:
        found = pa.array(values, from_pandas=True).type
    except (pa.ArrowException, OverflowError, ValueError, TypeError):  # half a surrogate pair is a ValueError
        kinds = Counter(type(v) for v in values if v is not None)
        for kind, _ in kinds.most_common():
            if kind is str:
                return pa.string()
            try:
                found = pa.array([v for v in values if type(v) is kind]).type
                break
            except (pa.ArrowException, OverflowError, ValueError, TypeError):
                continue
        else:
            return pa.string()
    return pa.string() if pa.types.is_null(found) else found


def tabulate(rows: Sequence[Any], schema: pa.Schema) -> pa.Table:
    """A table of ``schema`` plus the hidden columns that say which rows did not fit, why, and what they were.

    Args:
        rows: mappings; anything else, and cells that do not fit their column, make a bad row. A
            ``ValueError`` in place of a row is the reason why there is none; its ``args[1]`` is its text.
        schema: columns to fill; fields of a row beyond them make it bad too, so that nothing is dropped silently.
    """
    bad: list[str | None] = [_shape_fault(row, schema) for row in rows]
    good: list[Mapping[str, Any]] = [
        row if fault is None else {} for row, fault in zip(rows, bad, strict=True)
    ]  # fmt: skip
    arrays = []
    for field in schema:
        values = [row.get(field.name) for row in good]
        try:
            arrays.append(pa.array(values, field.type, from_pandas=True))
        except (pa.ArrowException, OverflowError, ValueError, TypeError):
            arrays.append(_cell_by_cell(field, values, bad))
    texts = [None if fault is None else _text(row) for row, fault in zip(rows, bad, strict=True)]
    hidden = [pa.field(BAD, pa.string()), pa.field(RAW, pa.string())]
    columns = [*arrays, pa.array(bad, pa.string()), pa.array(texts, pa.string())]
    return pa.table(columns, schema=pa.schema([*schema, *hidden]))


def _shape_fault(row: Any, schema: pa.Schema) -> str | None:
    if isinstance(row, ValueError):
        return str(row.args[0])
    if not isinstance(row, Mapping):
        return f"a row is a mapping of columns, got {type(row).__name__}"
    extra = [str(name) for name in row if name not in schema.names]
    if not extra and any(map(is_too_deep, row.values())):
        return DEPTH_RULE
    return f"fields {extra} are not among the input's columns {schema.names}" if extra else None


def _cell_by_cell(field: pa.Field, values: list[Any], bad: list[str | None]) -> pa.Array:
    cells: list[Any] = []
    for i, value in enumerate(values):
        try:
            pa.array([value], field.type)
            cells.append(value)
        except (pa.ArrowException, OverflowError, ValueError, TypeError):
            cells.append(None)
            bad[i] = bad[i] or f"column {field.name!r} is {field.type}, got {type(value).__name__} {_text(value)[:80]}"
    return pa.array(cells, field.type)


def _text(row: Any) -> str:
    if isinstance(row, ValueError):
        return str(row.args[1])
    try:
        return json.dumps(row, ensure_ascii=True, default=repr)
    except (TypeError, ValueError):
        return repr(row)
    except RecursionError:
        return f"({type(row).__name__}, too deep to be written)"
