"""Makes an Arrow table from rows that are mappings. No value changes on the way.

The one rule, :func:`comes_back`: a column has an Arrow type only if its values come back from it as they were written.
Else it is text: text as it is, and any other value as its JSON. A later value that does not come back fails its row.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.codec import param_fault
from pipeline.sources.json_text import MinusZero, Misfit, Row, Written, has_half_pair, is_null, write_json
from pipeline.sources.limits import DEPTH_RULE, check_column_count, is_too_deep
from pipeline.sources.source import BAD, RAW
from pipeline.sources.types import (
    ALL_COLUMNS,
    ANY_VALUES,
    WHOLE_NUMBERS,
    Wanted,
    has_whole_numbers,
    holds_any_values,
    number_type,
)

ColumnTypes = Mapping[str, pa.DataType | None]
"""Name of a column -> its type, in order; None: its values have no common type, so that it is text."""
_NO_ARRAY = (pa.ArrowException, OverflowError, ValueError, TypeError)
"""Errors of a conversion to Arrow; half a surrogate pair is a ValueError."""

_KINDS = ({int, float, MinusZero}, {str}, {bool})

_MOST_SHOWN = 1000
"""Characters of a list of names that a message shows."""


@dataclass(frozen=True, kw_only=True)
class Inferred:
    """The columns of some rows.

    Attributes:
        types: of the columns.
        whole: columns of numbers with a whole one written as 1.
        fractions: columns of numbers with a whole one written as 1.0.
    """

    types: ColumnTypes
    whole: frozenset[str]
    fractions: frozenset[str]


def comes_back(values: Sequence[Any], kind: pa.DataType | None = None) -> pa.Array | None:
    """The values as an array, if all of them come back from it as they are; else None.

    A whole number may come back as the equal fraction (see :func:`_spellings`), but not inside an object. An object
    comes back with the same fields in the same order, without nulls: Arrow does not tell a null from a missing field.

    ``kind``: of the array; None: the type that Arrow infers.
    """
    try:
        array = pa.array(values) if _have_same_fields(values) else None
        if array is not None and kind in (None, array.type) and _is_plain(array.type) and _are_of_one_kind(values):
            return array  # Arrow infers these only from values that they hold
    except _NO_ARRAY:
        array = None
    if array is None and kind is None:
        return None
    try:
        array = pa.array(values, kind)
        back = array.to_pylist()
    except _NO_ARRAY:
        return None
    return array if all(map(_is_same, values, back, itertools.repeat(False))) else None


def _have_same_fields(values: Iterable[Any]) -> bool:
    """Whether all objects in the same place have the same fields, without which they do not come back.

    Arrow would make a column of each field of any of them, at the cost of their product.
    """
    some = [value for value in values if isinstance(value, (dict, list))]
    objects = [value for value in some if isinstance(value, dict)]
    if any(value.keys() != objects[0].keys() for value in objects):
        return False
    items = itertools.chain.from_iterable(value for value in some if isinstance(value, list))
    places = [[value[name] for value in objects] for name in (objects[0] if objects else ())]
    return all(map(_have_same_fields, places)) and (len(objects) == len(some) or _have_same_fields(items))


def _are_of_one_kind(values: Iterable[Any]) -> bool:
    """Whether all values, those in lists too, are Python's numbers, texts or flags: Arrow mixes 1.5 and True."""
    kinds = set(map(type, values)) - {type(None)}
    if list in kinds:
        items = list(itertools.chain.from_iterable(value for value in values if type(value) is list))
        return kinds == {list} and _are_of_one_kind(items)
    return any(kinds <= one for one in _KINDS)


def _is_plain(kind: pa.DataType) -> bool:
    if pa.types.is_list(kind):
        return _is_plain(kind.value_type)
    is_number = pa.types.is_integer(kind) or pa.types.is_floating(kind)
    return is_number or pa.types.is_string(kind) or pa.types.is_boolean(kind) or pa.types.is_null(kind)


def _is_same(value: Any, back: Any, exact: bool) -> bool:
    """Whether a value came back; ``exact``: 1 is not 1.0, and null is no value."""
    if hasattr(value, "tolist"):  # arrays and scalars of NumPy
        value = value.tolist()
    if back is None or value is None:
        return value is back and not exact
    if isinstance(back, dict):
        names = isinstance(value, Mapping) and list(value) == list(back)
        return names and all(_is_same(value[name], item, True) for name, item in back.items())
    if isinstance(back, list):
        items = value.items() if isinstance(value, Mapping) else value  # a map comes back as pairs
        if not isinstance(items, Iterable) or isinstance(items, (str, bytes)):
            return False
        items = list(items)
        return len(items) == len(back) and all(map(_is_same, items, back, itertools.repeat(exact)))
    if isinstance(back, tuple):
        return isinstance(value, tuple) and all(map(_is_same, value, back, itertools.repeat(exact)))
    kinds = (bool, float) if exact else (bool,)
    if any(isinstance(value, kind) != isinstance(back, kind) for kind in kinds):
        return False
    if isinstance(value, float) and isinstance(back, int) and math.copysign(1, value) < 0 and not value:
        return False  # integers have no -0
    return bool(value == back) or (value != value and back != back)  # NaN


def _has_only_whole_numbers(values: Sequence[Any], array: pa.Array) -> bool:
    """Whether all numbers of a column of fractions were written without a point: it is one only for a ``-0``."""
    number = number_type(array.type)
    if number is None or not pa.types.is_floating(number):
        return False
    while pa.types.is_list(array.type):
        values = list(itertools.chain.from_iterable(value for value in values if value is not None))
        array = array.flatten()
    return all(issubclass(kind, (Integral, MinusZero)) for kind in set(map(type, values)) - {type(None)})


def _spellings(values: Sequence[Any], array: pa.Array) -> tuple[bool, bool]:
    """Whether a column of numbers, or of lists of them, has a whole number that was written as 1, and one as 1.0."""
    number = number_type(array.type)
    while pa.types.is_list(array.type):
        values = list(itertools.chain.from_iterable(value for value in values if value is not None))
        array = array.flatten()
    if number is None or (pa.types.is_floating(number) and not pc.any(pc.equal(pc.floor(array), array)).as_py()):
        return False, False
    kinds = set(map(type, values)) - {type(None)}  # a scan of types is fast
    spelled = (Integral, MinusZero) if pa.types.is_floating(number) else (Integral,)  # integers have no -0
    whole = {kind for kind in kinds if issubclass(kind, spelled)}
    if not whole or whole == kinds:
        return bool(whole), not whole
    return True, any(type(value) not in whole and value == value // 1 for value in values if value is not None)


def infer_types(rows: Sequence[Any]) -> Inferred:
    """The types of the columns of ``rows``, in order of first appearance; of nulls and empty lists, types of nulls.

    Rows that are no mappings are passed over, as are cells that no column holds.

    Raises:
        SourceError: there are too many columns.
    """
    rows = [row for row in rows if isinstance(row, Mapping)]
    names = dict.fromkeys(name for row in rows for name in row if _is_text(name))
    check_column_count(names, "the first rows")
    types: dict[str, pa.DataType | None] = {}
    whole, fractions = set(), set()
    for name in names:
        values = _sound([row.get(name) for row in rows])
        array = comes_back(values)
        array = None if array is not None and _has_only_whole_numbers(values, array) else array
        types[name] = _type(values, array)
        number = None if array is None else number_type(array.type)
        is_integer = number is not None and pa.types.is_integer(number)  # then no value was a fraction
        has_whole, has_fractions = (is_integer, False) if number is None or is_integer else _spellings(values, array)
        whole |= {name} if has_whole else set()
        fractions |= {name} if has_fractions else set()
    return Inferred(types=types, whole=frozenset(whole), fractions=frozenset(fractions))


def _is_text(name: Any) -> bool:
    """Whether a name can be a column's: JSON can write halves of surrogate pairs, which no encoding can."""
    return isinstance(name, str) and not has_half_pair(name)


def _type(values: list[Any], array: pa.Array | None) -> pa.DataType | None:
    if array is not None:
        return None if _has_part(array.type, _is_empty_object) else array.type
    kinds = {type(value) for value in values if value is not None}
    return pa.string() if kinds == {str} else None  # some text has no encoding


def _sound(values: Iterable[Any]) -> list[Any]:
    """The values, without those that no column holds."""
    return [None if isinstance(value, Misfit) or is_null(value) or is_too_deep(value) else value for value in values]


def _has_part(kind: pa.DataType, test: Any) -> bool:
    """Whether a type, or one inside it, is such."""
    return test(kind) or any(_has_part(kind.field(i).type, test) for i in range(kind.num_fields))


def _is_empty_object(kind: pa.DataType) -> bool:
    """Whether a type is that of ``{}``, which files do not hold."""
    return pa.types.is_struct(kind) and not kind.num_fields


def common_types(found: Sequence[Inferred]) -> Inferred:
    """One type for each column of several files; None where they have none. See :func:`misfits`.

    Raises:
        SourceError: there are too many columns.
    """
    names = dict.fromkeys(name for own in found for name in own.types)
    check_column_count(names, "the input's files")
    types = {name: _common(name, [own.types[name] for own in found if name in own.types]) for name in names}
    whole, fractions = (frozenset().union(*sets) for sets in zip(*((f.whole, f.fractions) for f in found), strict=True))
    return Inferred(types=types, whole=whole, fractions=fractions)


def _common(name: str, kinds: Sequence[pa.DataType | None]) -> pa.DataType | None:
    schemas = [pa.schema([(name, kind)]) for kind in dict.fromkeys(kinds) if kind is not None]
    try:
        whole = pa.unify_schemas(schemas, promote_options="permissive")
    except pa.ArrowException:
        return None
    return None if None in kinds else whole.field(name).type


def misfits(rows: Sequence[Any], own: ColumnTypes, common: ColumnTypes) -> set[str]:
    """Names of columns whose values in a file do not come back from the type that all files have in common."""
    differing = [name for name, kind in own.items() if kind not in (None, common[name]) and common[name] is not None]
    rows = [row for row in rows if isinstance(row, Mapping)]
    return {name for name in differing if comes_back(_sound([row.get(name) for row in rows]), common[name]) is None}


def columns_of(inferred: Inferred) -> pa.Schema:
    """The columns of these types.

    Text of any values are those without a type, with a part that is always null, or with whole numbers of both
    spellings.
    """
    fields = []
    for name, kind in inferred.types.items():
        number = None if kind is None else number_type(kind)
        is_whole = number is not None and pa.types.is_floating(number) and name in inferred.whole
        spelling = WHOLE_NUMBERS if is_whole else {}
        if kind is None or _has_part(kind, pa.types.is_null) or (is_whole and name in inferred.fractions):
            fields.append(pa.field(name, pa.string(), metadata={**ANY_VALUES, **spelling}))
        else:
            fields.append(pa.field(name, kind, metadata=spelling or None))
    return pa.schema(fields)


def infer_columns(rows: Sequence[Any]) -> pa.Schema:
    """The columns of ``rows``: see :func:`infer_types`."""
    return columns_of(infer_types(rows))


def tabulate(rows: Sequence[Any], columns: pa.Schema, wanted: Wanted = ALL_COLUMNS) -> pa.Table:
    """A table of ``columns`` plus the hidden columns with the rows that did not fit, and the reasons.

    Args:
        rows: mappings; anything else, and cells that do not come back from their column, make a bad row. A
            ``ValueError`` in place of a row is the reason why there is none; its ``args[1]`` is its text.
        columns: columns to fill; fields of a row beyond them make it bad too, so that nothing is dropped silently.
        wanted: columns that somebody asked for; in others, a cell that does not fit is null, and no fault.
    """
    names = frozenset(columns.names)
    bad: list[str | None] = [_shape_fault(row, columns, names, wanted) for row in rows]
    cells: list[Mapping[str, Any]] = [row if isinstance(row, Mapping) else {} for row in rows]
    arrays = []
    for field in columns:
        as_json = holds_any_values(field) and field.name != wanted.text
        values = [row.get(field.name) for row in cells]
        faults = bad
        if not wanted.has(field.name):
            values, faults = _sound(values), [None] * len(bad)
        elif any(bad):
            values = [value if fault is None else _sound([value])[0] for value, fault in zip(values, bad, strict=True)]
        params = wanted.params_in(field.name) if as_json else ()
        values = [_param_cell(value, params) for value in values]
        values = [_cell(value, as_json) for value in values]
        array = _array(field, values, wanted)
        arrays.append(_cell_by_cell(field, values, faults, wanted) if array is None else array)
    texts = [None if fault is None else _text(row) for row, fault in zip(rows, bad, strict=True)]
    hidden = [pa.field(BAD, pa.string()), pa.field(RAW, pa.string())]
    arrays += [pa.array(bad, pa.string()), pa.array(texts, pa.string())]
    return pa.table(arrays, schema=pa.schema([*columns, *hidden]))


def _shape_fault(row: Any, columns: pa.Schema, names: frozenset[str], wanted: Wanted) -> str | None:
    if isinstance(row, ValueError):
        return str(row.args[0])
    if not isinstance(row, Mapping):
        return f"a row is a mapping of columns, got {type(row).__name__}"
    extra = [name for name in row if name not in names and wanted.has(name)]
    if not all(isinstance(name, str) for name in extra):
        return f"fields {_start(extra)}: names of columns are text"
    if not extra and any(is_too_deep(cell) for name, cell in row.items() if wanted.has(name)):
        return DEPTH_RULE
    return f"fields {_start(extra)} are not among the input's columns {_start(columns.names)}" if extra else None


def _start(names: Sequence[str]) -> str:
    shown = str(names)
    return shown if len(shown) < _MOST_SHOWN else f"{shown[:_MOST_SHOWN]}..."


def _cell(value: Any, as_json: bool) -> Any:
    """A cell as it is, or in JSON; a :class:`Misfit` if it has none."""
    if is_null(value) or isinstance(value, (str, Misfit)) or not as_json:
        return None if is_null(value) else value
    try:
        return write_json(value)
    except (TypeError, ValueError) as error:
        return Misfit(str(error), repr(value))


def _param_cell(value: Any, params: Sequence[str]) -> Any:
    """A cell as it is; a :class:`Misfit` if its text would be another value of a sampling parameter."""
    if is_null(value) or isinstance(value, (Misfit, Written)):
        return value
    fault = next(filter(None, (param_fault(name, value) for name in params)), None)
    return value if fault is None else Misfit(fault, _text(value))


def _array(field: pa.Field, values: list[Any], wanted: Wanted) -> pa.Array | None:
    """The values of a column, if they come back; in a column that is written into prompts with their spelling."""
    array = comes_back(values, field.type)
    if array is None or not wanted.writes(field.name):
        return array
    has_whole, has_fractions = _spellings(values, array)
    number = number_type(field.type)
    takes_whole = has_whole_numbers(field) or (number is not None and pa.types.is_integer(number))
    return None if (has_fractions if takes_whole else has_whole) else array


def _cell_by_cell(field: pa.Field, values: list[Any], bad: list[str | None], wanted: Wanted) -> pa.Array:
    cells = [None if _array(field, [value], wanted) is None else value for value in values]
    for i, (value, cell) in enumerate(zip(values, cells, strict=True)):
        if value is not cell:
            bad[i] = bad[i] or _fault(field, value)
    return pa.array(cells, field.type)


def _fault(field: pa.Field, value: Any) -> str:
    if isinstance(value, Misfit):
        return f"column {field.name!r}: {value.reason}"
    if has_half_pair(value):
        return (
            f"column {field.name!r}: half of a surrogate pair stands alone, which no text holds, in {_text(value)[:80]}"
        )
    kind = "number" if isinstance(value, Written) else type(value).__name__
    return f"column {field.name!r} is {field.type}, got {kind} {_text(value)[:80]}"


def _text(row: Any) -> str:
    if isinstance(row, ValueError):
        return str(row.args[1])
    if isinstance(row, Row):
        return row.raw
    if isinstance(row, Misfit):
        return row.text
    try:
        return _json_or_repr(row)
    except RecursionError:
        return f"({type(row).__name__}, too deep to be written)"


def _json_or_repr(row: Any) -> str:
    try:
        return write_json(row)
    except (TypeError, ValueError):
        return repr(row)
