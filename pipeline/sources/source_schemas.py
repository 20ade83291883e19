"""Merges the schemas of many files into one, by the rule of :mod:`pipeline.sources.types`."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

import pyarrow as pa

from pipeline.errors import SourceError
from pipeline.sources.types import Held, held, plain_type, widened
from pipeline.types import SourceFile

_OURS = "__wedlm_"


def check_names(names: Sequence[str], where: str) -> None:
    """Refuse several columns of one name, and names that this package gives to columns of its own.

    Raises:
        SourceError: names the columns.
    """
    twice = sorted(name for name, count in Counter(names).items() if count > 1)
    if twice:
        raise SourceError(f"{where} has several columns named {twice}. Rename them.")
    ours = [name for name in names if name.casefold().startswith(_OURS)]
    if ours:
        raise SourceError(
            f"{where} has columns {ours}: names that begin with {_OURS} are reserved for this package. Rename them."
        )


ReadColumn = Callable[[SourceFile, str], Iterator[pa.Array]]
"""The values of a file's column, piece by piece."""


def common_schema(
    files: Sequence[SourceFile], schemas: Sequence[pa.Schema], read: ReadColumn
) -> tuple[pa.Schema, dict[str, SourceError]]:
    """The columns of all files with metadata of the first; and an error for each column that the files contradict in.

    Types differ where one can hold the values of the others. Where that depends on the values (whole numbers beyond
    2**53 in a column of floating point numbers), the column is read.

    Raises:
        SourceError: a file has several columns of one name, or one whose name is ours.
    """
    kinds: list[tuple[pa.Schema, SourceFile]] = []  # distinct ones, each with the first file that has it
    for file, schema in zip(files, schemas, strict=True):
        if not any(schema.equals(known) for known, _ in kinds):
            check_names(schema.names, f"{file.path}: the file")
            _check_known(schema, file)
            kinds.append((schema, file))
    names = dict.fromkeys(name for schema, _ in kinds for name in schema.names)
    common, faults = dict[str, pa.DataType](), dict[str, SourceError]()
    for name in names:
        try:
            common[name] = _common_type(name, kinds)
            _check_column(name, common[name], files, schemas, read, kinds)
        except SourceError as error:
            faults[name] = error
            common.pop(name, None)
    whole = pa.unify_schemas([_with_types(schema, common) for schema, _ in kinds])
    missing = {name for name in names if any(name not in schema.names for schema, _ in kinds)}
    fields = [field.with_nullable(True) if field.name in missing else field for field in whole]
    return pa.schema(fields, metadata=schemas[0].metadata), faults


def _check_known(schema: pa.Schema, file: SourceFile) -> None:
    """Refuse types that Arrow has and pyarrow does not, such as intervals of months.

    Raises:
        SourceError: there is one.
    """
    for number, name in enumerate(schema.names):
        try:
            pa.nulls(0, schema.field(number).type)
        except (KeyError, pa.ArrowException):
            raise SourceError(
                f"{file.path}: column {name!r} is of a type that pyarrow does not know. Cast it, or leave it out."
            ) from None


def _common_type(name: str, kinds: Sequence[tuple[pa.Schema, SourceFile]]) -> pa.DataType:
    """The type of a column.

    Raises:
        SourceError: names two files that disagree.
    """
    own: dict[pa.DataType, SourceFile] = {}
    for schema, file in kinds:
        if name in schema.names:
            own.setdefault(plain_type(schema.field(name).type), file)
    found = widened(list(own))
    if found is not None:
        return found
    pairs = itertools.combinations(own.items(), 2)
    (one, first), (other, second) = next(
        (pair for pair in pairs if widened([pair[0][0], pair[1][0]]) is None), list(own.items())[:2]
    )
    raise SourceError(
        f"the input's files disagree on column types: column {name!r} is {one} in {first.path!r} and {other} in "
        f"{second.path!r}. Cast them to one type, or give these files apart."
    )


def _check_column(
    name: str,
    common: pa.DataType,
    files: Sequence[SourceFile],
    schemas: Sequence[pa.Schema],
    read: ReadColumn,
    kinds: Sequence[tuple[pa.Schema, SourceFile]],
) -> None:
    """Check the values of a column in the files where its type does not hold every value of the common one.

    Raises:
        SourceError: a value would not stay as it is.
    """
    for file, schema in zip(files, schemas, strict=True):
        if name in schema.names:
            field = schema.field(name)
            kind = plain_type(field.type)
            if kind != common and held(kind, common) is Held.BY_VALUE:
                _check_values(file, field, common, read, kinds)


def _check_values(
    file: SourceFile,
    field: pa.Field,
    kind: pa.DataType,
    read: ReadColumn,
    kinds: Sequence[tuple[pa.Schema, SourceFile]],
) -> None:
    """Check that a file's values of a column stay as they are in the type that all files have in common.

    Raises:
        SourceError: one does not; names the file, and another of another type.
    """
    try:
        for piece in read(file, field.name):
            piece.cast(kind)
    except pa.ArrowInvalid as error:
        other, there = next(
            (schema.field(field.name).type, one) for schema, one in kinds
            if field.name in schema.names and schema.field(field.name).type != field.type
        )  # fmt: skip
        raise SourceError(
            f"the input's files disagree on column types: column {field.name!r} is {field.type} in {file.path!r} and "
            f"{other} in {there.path!r}, and as {kind} a value would not stay as it is ({error}). Cast them to one "
            "type, or give these files apart."
        ) from error


def _with_types(schema: pa.Schema, kinds: Mapping[str, pa.DataType]) -> pa.Schema:
    return pa.schema([field.with_type(kinds[field.name]) for field in schema if field.name in kinds])
