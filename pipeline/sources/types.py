"""Rule for files that are read as one table: the Arrow type that holds the values of others."""

from __future__ import annotations

import urllib.parse
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum

import pyarrow as pa

from pipeline.codec import TEXT_PARAMS
from pipeline.config import RunConfig
from pipeline.settings.template import PromptTemplate
from pipeline.types import SourceFile

ANY_VALUES = {b"wedlm.any_values": b"1"}
"""Metadata of a text column whose values were of several kinds, or of none that Arrow has, where types are inferred."""
WHOLE_NUMBERS = {b"wedlm.whole_numbers": b"1"}
"""Metadata of a column of fractions whose whole numbers were written as 1, and none as 1.0."""

_FLOAT_BITS = {pa.float16(): 11, pa.float32(): 24, pa.float64(): 53}
"""Whole numbers of so many bits are exact."""
_TEMPORAL = (pa.types.is_timestamp, pa.types.is_duration, pa.types.is_time, pa.types.is_date)


class Held(IntEnum):
    """Whether a type holds the values of another without a change: never, if a cast finds no fault, or always."""

    NEVER = 0
    BY_VALUE = 1
    ALWAYS = 2


def fits(own: pa.DataType, table: pa.DataType) -> bool:
    """Whether values of type ``own`` can be held as ``table`` without loss; a single value that cannot is an error."""
    return held(own, table) is not Held.NEVER


def held(own: pa.DataType, table: pa.DataType) -> Held:
    """How ``table`` holds values of type ``own``."""
    if own == table or pa.types.is_null(own):
        return Held.ALWAYS
    if pa.types.is_dictionary(own):
        return held(own.value_type, table)
    if pa.types.is_dictionary(table):
        return held(own, table.value_type)
    if pa.types.is_nested(own) and pa.types.is_nested(table):
        return _held_nested(own, table)
    if pa.types.is_integer(own):
        return _held_integer(own, table)
    if own in _FLOAT_BITS:
        return Held.ALWAYS if _FLOAT_BITS[own] <= _FLOAT_BITS.get(table, 0) else Held.NEVER
    if pa.types.is_decimal(own) and pa.types.is_decimal(table):
        return Held.BY_VALUE
    if any(is_kind(own) and is_kind(table) for is_kind in _TEMPORAL):
        return Held.BY_VALUE if getattr(own, "tz", None) == getattr(table, "tz", None) else Held.NEVER
    return Held.ALWAYS if _is_text(own, table) or _is_binary(own, table) else Held.NEVER


def _held_nested(own: pa.DataType, table: pa.DataType) -> Held:
    if pa.types.is_struct(own) and pa.types.is_struct(table):
        there = {field.name: field.type for field in table}
        return min((held(field.type, there[field.name]) if field.name in there else Held.NEVER for field in own),
                   default=Held.ALWAYS)  # fmt: skip
    if pa.types.is_map(own) and pa.types.is_map(table):
        return min(held(own.key_type, table.key_type), held(own.item_type, table.item_type))
    if _is_list(own) and _is_list(table) and not pa.types.is_fixed_size_list(table):
        return held(own.value_type, table.value_type)
    return Held.NEVER


def _held_integer(own: pa.DataType, table: pa.DataType) -> Held:
    signed = pa.types.is_signed_integer(own)
    if pa.types.is_integer(table):
        spare = table.bit_width - own.bit_width - (not signed and pa.types.is_signed_integer(table))
        if signed and not pa.types.is_signed_integer(table):
            return Held.NEVER
        return Held.ALWAYS if spare >= 0 else Held.BY_VALUE if spare == -1 else Held.NEVER
    if own.bit_width - signed <= _FLOAT_BITS.get(table, 0):
        return Held.ALWAYS
    return Held.BY_VALUE if pa.types.is_float64(table) or pa.types.is_decimal(table) else Held.NEVER


def _is_list(kind: pa.DataType) -> bool:
    return pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)


def _is_text(*kinds: pa.DataType) -> bool:
    return all(pa.types.is_string(k) or pa.types.is_large_string(k) or pa.types.is_string_view(k) for k in kinds)


def _is_binary(own: pa.DataType, table: pa.DataType) -> bool:
    is_any = pa.types.is_binary(table) or pa.types.is_large_binary(table)
    return is_any and (pa.types.is_binary(own) or pa.types.is_large_binary(own) or pa.types.is_fixed_size_binary(own))


def number_type(kind: pa.DataType) -> pa.DataType | None:
    """The type of the numbers that a column, or lists in it, consist of; None if it is no column of numbers."""
    while pa.types.is_list(kind):
        kind = kind.value_type
    return kind if pa.types.is_integer(kind) or pa.types.is_floating(kind) else None


def has_whole_numbers(field: pa.Field) -> bool:
    """Whether a column of fractions has whole numbers that were written as 1, not as 1.0."""
    return (field.metadata or {}).keys() >= WHOLE_NUMBERS.keys()


def holds_any_values(field: pa.Field) -> bool:
    """Whether a text column's cells stand for values of any kind: as JSON unless they are text."""
    return (field.metadata or {}).keys() >= ANY_VALUES.keys()


def spelled_as(field: pa.Field, own: pa.Field) -> pa.Field:
    """A column of a table, with the spelling of numbers that ``own`` has, whose values it is to hold."""
    number, there = number_type(own.type), number_type(field.type)
    if number is None or there is None or not pa.types.is_floating(there):
        return field
    whole = pa.types.is_integer(number) or has_whole_numbers(own)
    return field.with_metadata(WHOLE_NUMBERS if whole else None)


def plain_type(kind: pa.DataType, *, dictionaries: bool = True) -> pa.DataType:
    """The same values in a type that every function of Arrow takes: no views, no runs, no dictionaries of lists.

    ``dictionaries``: whether dictionaries stay.
    """

    def plain(inner: pa.DataType) -> pa.DataType:
        return plain_type(inner, dictionaries=dictionaries)

    if pa.types.is_string_view(kind) or pa.types.is_binary_view(kind):
        return pa.string() if pa.types.is_string_view(kind) else pa.binary()
    if pa.types.is_run_end_encoded(kind):
        return plain(kind.value_type)
    if pa.types.is_dictionary(kind):
        values = plain(kind.value_type)
        keeps = dictionaries and not pa.types.is_nested(values)
        return pa.dictionary(kind.index_type, values, kind.ordered) if keeps else values
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(plain(field.type)) for field in kind])
    if pa.types.is_map(kind):
        # Keys are never null, so maps from null are empty; Arrow reads their type, and does not make it.
        key = pa.string() if pa.types.is_null(kind.key_type) else plain(kind.key_type)
        return pa.map_(key, kind.item_field.with_type(plain(kind.item_type)), kind.keys_sorted)
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(kind.value_field.with_type(plain(kind.value_type)), kind.list_size)
    if pa.types.is_list(kind) or pa.types.is_list_view(kind):
        return pa.list_(kind.value_field.with_type(plain(kind.value_type)))
    if pa.types.is_large_list(kind) or pa.types.is_large_list_view(kind):
        return pa.large_list(kind.value_field.with_type(plain(kind.value_type)))
    return kind


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """The same columns with a :func:`plain_type` each."""
    return pa.schema([field.with_type(plain_type(field.type)) for field in schema], metadata=schema.metadata)


def widened(kinds: Sequence[pa.DataType]) -> pa.DataType | None:
    """The type that holds the values of all of these; None if there is none."""
    for dictionaries in (True, False):
        own = [plain_type(kind, dictionaries=dictionaries) for kind in kinds]
        try:
            schemas = [pa.schema([("column", kind)]) for kind in own]
            found = pa.unify_schemas(schemas, promote_options="permissive").field(0).type
        except pa.ArrowException:
            continue
        return found if all(held(kind, found) is not Held.NEVER for kind in own) else None
    return None


def text_field(name: str) -> pa.Field:
    """A column of texts that may stand for values of any kind, as all cells of CSV and names of folders do."""
    return pa.field(name, pa.string(), metadata=ANY_VALUES)


_NULL = "__HIVE_DEFAULT_PARTITION__"


def partitions_in(folders: str) -> tuple[tuple[str, str | None], ...]:
    """The names and values in a ``/``-separated path of folders; of a name that occurs twice, the last value."""
    pairs = (folder.split("=", 1) for folder in folders.split("/") if folder.find("=") > 0)
    return tuple({name: _value(text) for name, text in pairs}.items())


def _value(text: str) -> str | None:
    with suppress(UnicodeDecodeError):  # no text was encoded like this
        text = urllib.parse.unquote(text, errors="strict")
    return None if text == _NULL else text


@dataclass(frozen=True, kw_only=True)
class Partitions:
    """The columns that folders add to the files in them.

    Attributes:
        fields: the columns.
        values: for each file, the value of each column.
    """

    fields: tuple[pa.Field, ...] = ()
    values: tuple[tuple[pa.Scalar, ...], ...] = ()

    @classmethod
    def of(cls, files: Sequence[SourceFile], columns: Sequence[str]) -> Partitions:
        """Those of ``files``, but for names that are among the files' own ``columns``."""
        rows = [dict(file.partitions) for file in files]
        names = [name for name in dict.fromkeys(name for row in rows for name in row) if name not in columns]
        arrays = [_typed([row.get(name) for row in rows]) for name in names]
        fields = tuple(
            text_field(n) if pa.types.is_string(a.type) else pa.field(n, a.type)
            for n, a in zip(names, arrays, strict=True)
        )
        return cls(fields=fields, values=tuple(zip(*arrays, strict=True)) if arrays else ())

    def cast(self, types: Mapping[str, pa.DataType]) -> Partitions:
        """The same columns, those in ``types`` of these types."""
        fields = tuple(field.with_type(types.get(field.name, field.type)) for field in self.fields)
        values = tuple(
            tuple(value.cast(field.type) for value, field in zip(row, fields, strict=True)) for row in self.values
        )
        return Partitions(fields=fields, values=values)

    def add_to(self, table: pa.Table, file: int, hidden: Sequence[str]) -> pa.Table:
        """The rows of a file, with the columns in front of the ``hidden`` ones."""
        if not self.fields:
            return table
        place = sum(name not in hidden for name in table.column_names)
        for field, value in zip(reversed(self.fields), reversed(self.values[file]), strict=True):
            table = table.add_column(place, field, pa.repeat(value, table.num_rows))
        return table


def _typed(texts: list[str | None]) -> pa.Array:
    array = pa.array(texts, pa.string())
    if array.null_count == len(array):
        return array
    try:
        numbers = array.cast(pa.int32())
    except pa.ArrowInvalid:
        return array
    return numbers if numbers.cast(pa.string()).equals(array) else array  # 007 is text


PROMPT_COLUMNS = ("prompt", "messages", "prompt_token_ids", "conversations")
"""Columns of prompts where no setting names one."""
_PLACES = ("prompt_column", "messages_column", "token_ids_column", "turns_column")
_OTHERS = ("tools_column", "chat_template_kwargs_column", "id_column")
COLUMN_SETTINGS = (*_PLACES, *_OTHERS, "columns", "prompt_template", "sampling_columns")
"""Settings of a run that name columns: they decide which faults of cells fail a row."""


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """The columns that a job asks for.

    Attributes:
        columns: their names; None is all.
        text: the column of text prompts: a value of another kind in it is no prompt, not even as JSON.
        written: columns whose cells a template writes into prompts: 1 there is not 1.0. None is all.
        params: each sampling parameter that rows have of their own, and its column.
    """

    columns: frozenset[str] | None = None
    text: str | None = PROMPT_COLUMNS[0]
    written: frozenset[str] | None = frozenset()
    params: tuple[tuple[str, str], ...] = ()

    def params_in(self, name: str) -> tuple[str, ...]:
        """The sampling parameters that a column holds."""
        return tuple(param for param, column in self.params if column == name)

    @property
    def texts(self) -> frozenset[str]:
        """Columns of sampling parameters that are texts, or lists of them."""
        return frozenset(column for param, column in self.params if param in TEXT_PARAMS)

    def has(self, name: str) -> bool:
        """Whether a column is asked for."""
        return self.columns is None or name in self.columns

    def writes(self, name: str) -> bool:
        """Whether a template writes a column's cells into prompts."""
        return self.written is None or name in self.written


ALL_COLUMNS = Wanted()


def columns_named_by(config: RunConfig) -> list[tuple[str, str]]:
    """Every column that a configuration names, with the setting that names it."""
    own = [(setting, getattr(config, setting)) for setting in (*_PLACES, *_OTHERS)]
    named = [(setting, name) for setting, name in own if name is not None]
    named += [(f"sampling_columns.{k}", v) for k, v in config.sampling_columns.items()]
    if config.task is not None and config.task.column is not None:
        named.append(("task", config.task.column))
    return named + [("columns", name) for name in config.columns or ()]


def wanted_by(config: RunConfig) -> Wanted:
    """The columns that a configuration asks for."""
    template = None if config.prompt_template is None else PromptTemplate(config.prompt_template)
    is_named = template is not None or any(getattr(config, place) is not None for place in _PLACES)
    text = config.prompt_column if is_named else PROMPT_COLUMNS[0]
    params = tuple(config.sampling_columns.items())
    written = frozenset() if template is None else None if template.takes_whole_row else template.names
    if config.columns is None or written is None:
        return Wanted(text=text, written=written, params=params)
    names = {name for _, name in columns_named_by(config)}
    names |= set(PROMPT_COLUMNS) if template is None else set(template.names)
    return Wanted(columns=frozenset(names), text=text, written=written, params=params)
