"""Makes an Arrow table from rows that are mappings; a row that does not fit the schema becomes a bad row, as text."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from pipeline.sources.base import BAD, RAW
from pipeline.sources.limits import DEPTH_RULE, is_too_deep

__all__ = ["Columns", "infer_columns", "tabulate"]


@dataclass(frozen=True, kw_only=True)
class Columns:
    """The columns of rows that are mappings.

    Attributes:
        schema: names and types.
        as_json: names of columns whose cells are lists and mappings without a common type: text, in JSON.
    """

    schema: pa.Schema
    as_json: frozenset[str] = frozenset()


def infer_columns(rows: Sequence[Any]) -> Columns:
    """Columns of ``rows`` (non-mappings are passed over) in order of first appearance.

    Where the values of a column have no common Arrow type, the most frequent Python type decides; lists and mappings
    without one become JSON text (messages, for one, of which some have text and others a list of parts). A column of
    nulls only is text. Rows that are nested too deeply are passed over: no format can hold such a column.
    """
    rows = [row for row in rows if isinstance(row, Mapping) and not any(map(is_too_deep, row.values()))]
    names = dict.fromkeys(str(name) for row in rows for name in row if _is_text(name))
    types = {name: _type([row.get(name) for row in rows]) for name in names}
    schema = pa.schema([(name, kind or pa.string()) for name, kind in types.items()])
    return Columns(schema=schema, as_json=frozenset(name for name, kind in types.items() if kind is None))


def _is_text(name: Any) -> bool:
    """Whether a name can be a column's: JSON can write halves of surrogate pairs, which no encoding can."""
    try:
        str(name).encode()
    except UnicodeEncodeError:
        return False
    return True


def _type(values: list[Any]) -> pa.DataType | None:
    """The type of a column; None if it is written as JSON."""
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
            return None if all(issubclass(kind, (list, tuple, Mapping)) for kind in kinds) else pa.string()
    return pa.string() if pa.types.is_null(found) else found


def _json(value: Any) -> Any:
    """A list or mapping as JSON text; anything else as it is."""
    if not isinstance(value, (list, tuple, Mapping)):
        return value
    return json.dumps(value, ensure_ascii=False, default=repr)


def tabulate(rows: Sequence[Any], columns: Columns) -> pa.Table:
    """A table of ``columns`` plus the hidden columns that say which rows did not fit, why, and what they were.

    Args:
        rows: mappings; anything else, and cells that do not fit their column, make a bad row. A
            ``ValueError`` in place of a row is the reason why there is none; its ``args[1]`` is its text.
        columns: what to fill; fields of a row beyond them make it bad too, so that nothing is dropped silently.
    """
    schema = columns.schema
    bad: list[str | None] = [_shape_fault(row, schema) for row in rows]
    good: list[Mapping[str, Any]] = [
        row if fault is None else {} for row, fault in zip(rows, bad, strict=True)
    ]  # fmt: skip
    arrays = []
    for field in schema:
        values = [row.get(field.name) for row in good]
        if field.name in columns.as_json:
            values = list(map(_json, values))
        try:
            arrays.append(pa.array(values, field.type, from_pandas=True))
        except (pa.ArrowException, OverflowError, ValueError, TypeError):
            arrays.append(_cell_by_cell(field, values, bad))
    texts = [None if fault is None else _text(row) for row, fault in zip(rows, bad, strict=True)]
    hidden = [pa.field(BAD, pa.string()), pa.field(RAW, pa.string())]
    arrays += [pa.array(bad, pa.string()), pa.array(texts, pa.string())]
    return pa.table(arrays, schema=pa.schema([*schema, *hidden]))


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
