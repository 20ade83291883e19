"""Writes in-memory input to a Parquet file in the output's state folder, so that tasks can read it like any file.

The file is named by its content: a re-run with the same rows finds the same source, and one with other rows is noticed.
"""

from __future__ import annotations

import hashlib
import itertools
import re
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline import layout
from pipeline.errors import ConfigError, SourceError
from pipeline.sinks.formats import HashedFile, cast_table
from pipeline.sinks.staged import data_checksum
from pipeline.sinks.stored_rows import check_object
from pipeline.sources.formats.parquet import ParquetSource
from pipeline.sources.identity import stamp_now
from pipeline.sources.source import BAD, HIDDEN, NO_ROWS
from pipeline.sources.source_schemas import check_names
from pipeline.sources.tabulate import infer_columns, tabulate
from pipeline.sources.types import ALL_COLUMNS, Wanted, plain_schema
from pipeline.storage.damage import FoundDamageError
from pipeline.storage.protocol import Storage
from pipeline.storage.urls import is_url, join, with_secrets
from pipeline.types import SourceFile

MEMORY_KEY = "rows"
"""File key of in-memory input; its row ids begin with it."""
_FILE = "rows.parquet"
_WHERE = "the input"
_HASH_ROWS = 4096
_ROW_GROUP_ROWS = 16384


def tables_of(data: Any, wanted: Wanted = ALL_COLUMNS) -> Iterator[pa.Table]:
    """Tables of one schema from any in-memory (or lazily loaded) source.

    Raises:
        SourceError: an unknown kind of input; or later tables have other columns or types than the first.
    """
    if isinstance(data, pa.RecordBatch):
        data = pa.Table.from_batches([data])
    if isinstance(data, pa.Table):
        yield data
    elif _is(data, "datasets", "Dataset") and data.format["type"] == "custom":  # rows are made by a function
        yield from _of_rows(_given(data), wanted)
    elif _is(data, "datasets", "Dataset"):
        arrow = data.with_format("arrow")
        yield from (arrow[i : i + _HASH_ROWS] for i in range(0, max(1, len(arrow)), _HASH_ROWS))
    elif _is(data, "datasets", "IterableDataset"):
        if data.features is None:
            yield from _of_rows(_given(data), wanted)
        else:
            yield from _alike(_given(data.with_format("arrow").iter(batch_size=_HASH_ROWS)))
    elif _is(data, "ray.data", "Dataset"):
        yield from _alike(_given(data.iter_batches(batch_size=_HASH_ROWS, batch_format="pyarrow")))
    elif _is(data, "pandas", "DataFrame"):
        yield _of_frame(data, wanted)
    elif isinstance(data, Sequence) and not isinstance(data, (str, bytes)):
        rows = [{"prompt": row} if isinstance(row, str) else row for row in data]
        yield tabulate(rows, _columns_of(rows), wanted)
    else:
        raise SourceError(
            f"input of type {type(data).__module__}.{type(data).__qualname__}: not a known kind of source. Pass a "
            "path, a list of dicts, a pyarrow.Table, a pandas frame, a datasets.Dataset or a ray.data.Dataset."
        )


def _is(data: Any, package: str, name: str) -> bool:
    """Whether ``data`` is of a class of that name from that package, without importing the package."""
    return any(c.__name__ == name and f"{c.__module__}.".startswith(f"{package}.") for c in type(data).__mro__)


def _given(items: Iterable[Any]) -> Iterator[Any]:
    """The rows or tables of an input that is made while it is read.

    Raises:
        SourceError: the code that makes them fails.
    """
    count = 0
    try:
        for item in items:
            yield item
            count += getattr(item, "num_rows", 1)
    except Exception as error:  # of whoever wrote the input
        cause = (str(error).splitlines() or [""])[0]
        raise SourceError(
            f"the input fails after {count} rows ({type(error).__name__}: {cause}). Correct the code that makes them."
        ) from error


def _of_rows(rows: Iterator[Any], wanted: Wanted) -> Iterator[pa.Table]:
    """Tables of rows that are mappings; types are inferred from the first of them."""
    columns: pa.Schema | None = None
    while some := list(itertools.islice(rows, _HASH_ROWS)):
        columns = columns or _columns_of(some)
        yield tabulate(some, columns, wanted)


def _columns_of(rows: Sequence[Any]) -> pa.Schema:
    columns = infer_columns(rows)
    check_names(columns.names, _WHERE)
    return columns


def _alike(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """The tables, if all of them have the columns and types of the first one.

    Raises:
        SourceError: they differ; the message names the column.
    """
    schema: pa.Schema | None = None
    for table in tables:
        schema = schema or table.schema
        both = ({field.name: field.type for field in fields} for fields in (schema, table.schema))
        (name, first, later) = next(_differences(*both), (None, None, None))
        if name is not None:
            raise SourceError(
                f"column {name!r} is {first or 'missing'} in the first rows of the input, and {later or 'missing'} in "
                "later ones. Give all of the input one schema: cast the column."
            )
        yield table


def _differences(first: Mapping[str, Any], later: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    names = dict.fromkeys([*first, *later])
    return ((name, first.get(name), later.get(name)) for name in names if first.get(name) != later.get(name))


def _of_frame(frame: Any, wanted: Wanted) -> pa.Table:
    """The table of a pandas frame. Columns of Python objects are read as those of rows; NaN is null, as in pandas."""
    names = [str(name) for name in frame.columns]
    loose = [name for name, kind in frame.dtypes.items() if str(kind) == "object"]
    try:
        table = pa.Table.from_pandas(frame.drop(columns=loose), preserve_index=None)
    except (pa.ArrowException, TypeError, ValueError) as error:
        reason = ", ".join(map(str, error.args))
        raise SourceError(f"the frame has a column that Arrow does not take ({reason}). Cast or drop it.") from error
    if not loose:
        return table
    objects = frame[loose].rename(columns=str)
    rows = objects.where(objects.notna(), None).to_dict("records")
    found = tabulate(rows, infer_columns(rows), wanted)
    index = [name for name in table.column_names if name not in names]
    hidden = HIDDEN if found[BAD].null_count < len(found) else ()
    columns = [(found if name in found.column_names else table, name) for name in (*names, *index, *hidden)]
    schema = pa.schema([own.schema.field(name) for own, name in columns], metadata=table.schema.metadata)
    return pa.table([own[name] for own, name in columns], schema=schema)


def spool(
    data: Any, storage: Storage, options: Mapping[str, Any], wanted: Wanted = ALL_COLUMNS
) -> ParquetSource:  # fmt: skip
    """Write in-memory input into the output's state folder, unless it is there already; returns its source.

    ``options``: of the output's file system, for the tasks that read it.

    Raises:
        SourceError: unknown kind, or tables of different schemas.
    """
    check_names(_given_names(data), _WHERE)
    aside = f"{layout.INPUT}/{uuid.uuid4().hex}"
    tables = tables_of(data, wanted)
    first = next(tables, None)
    if first is None:
        raise SourceError(f"input of type {type(data).__name__}: {NO_ROWS}")
    schema = plain_schema(first.schema)
    if len(set(schema.names)) < len(schema.names):
        raise SourceError(f"the input has several columns of one name: {schema.names}. Rename them.")
    try:
        digest, sha256 = _write(storage, f"{aside}/{_FILE}", schema, itertools.chain([first], tables))
    except BaseException as error:
        storage.delete(aside)
        if not isinstance(error, (pa.ArrowException, ValueError)) or isinstance(error, SourceError):
            raise
        raise SourceError(f"the input cannot be written as Parquet ({error}). Cast or drop the column.") from error
    folder = f"{layout.INPUT}/{MEMORY_KEY}-{digest}"
    if _is_undamaged(storage, f"{folder}/{_FILE}", sha256):
        storage.delete(aside)
    else:
        storage.delete(folder)
        storage.promote(aside, folder)
    path = join(storage.url, f"{folder}/{_FILE}")
    file = SourceFile(key=MEMORY_KEY, path=path, digest=digest, stamp=stamp_now(path, options))
    return ParquetSource.over([file], options, schema)


def _given_names(data: Any) -> list[str]:
    """The names of the columns that a table or frame was given with; rows that are mappings have none yet."""
    names = getattr(data, "column_names", getattr(data, "columns", None))
    return [] if names is None or callable(names) else [str(name) for name in names]


def _is_undamaged(storage: Storage, key: str, sha256: str) -> bool:
    """Whether an earlier run left an undamaged file with these bytes."""
    try:
        check_object(storage, key, sha256)
    except FoundDamageError:
        return False
    return True


def _write(storage: Storage, key: str, schema: pa.Schema, tables: Iterator[pa.Table]) -> tuple[str, str]:
    """Write tables of one schema; returns the hash of their values and the SHA-256 of the file."""
    digest = hashlib.blake2b(schema.remove_metadata().to_string().encode(), digest_size=12)
    with storage.create(key) as file:
        hashed = HashedFile(file)
        with pq.ParquetWriter(hashed, schema, compression="zstd") as writer:
            for table in tables:
                plain = cast_table(table, schema)
                writer.write_table(plain, row_group_size=_ROW_GROUP_ROWS)
                _hash_rows(digest, plain)
    return digest.hexdigest(), hashed.sha256


def _hash_rows(digest: Any, table: pa.Table) -> None:
    """Hash the values, independently of how they are chunked."""
    for begin in range(0, table.num_rows, _HASH_ROWS):
        digest.update(data_checksum(table.slice(begin, _HASH_ROWS), table.column_names).encode())


_NAME = re.compile(r"[\w][\w.-]*/[\w][\w.-]*")


def is_dataset_name(name: str) -> bool:
    """Whether text has the form of a hub id, ``owner/name``."""
    return _NAME.fullmatch(name) is not None


def load_named(name: str, options: Mapping[str, Any]) -> Any:
    """``datasets.load_dataset(name, **options)``, one split of it.

    Raises:
        SourceError: it cannot be loaded, or it has several splits and none is chosen.
        ConfigError: there is no secret where a reference says.
    """
    import datasets

    try:
        loaded = datasets.load_dataset(name, **with_secrets(options, "dataset_options"))
    except ConfigError:
        raise
    except Exception as error:  # the library, its builders and the hub's client each have exceptions of their own
        raise SourceError(
            f"input={name!r}: neither a file or folder here, nor loadable as a dataset "
            f"({type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else 'no message'}). "
            "Check the name and dataset_options; offline, fill the hub's cache beforehand."
        ) from error
    return _one_split(name, loaded)


def load_saved(folder: str, options: Mapping[str, Any], storage_options: Mapping[str, Any]) -> Any:
    """``datasets.load_from_disk(folder)``; ``options`` may name the ``split``.

    Raises:
        SourceError: it cannot be loaded, or it has several splits and none is chosen.
        ConfigError: there is no secret where a reference says.
    """
    import datasets

    split = options.get("split")
    try:
        loaded = datasets.load_from_disk(
            folder, storage_options=with_secrets(storage_options) if is_url(folder) else None
        )
        return _one_split(folder, loaded if split is None else loaded[split])
    except (OSError, ValueError, KeyError) as error:
        if isinstance(error, (SourceError, ConfigError)):
            raise
        raise SourceError(
            f"input={folder!r}: not a readable dataset saved to disk, or without split {split!r} ({error!r}). "
            "Save it again, or name a split that it has."
        ) from error


def features_of(schema: pa.Schema) -> Any:
    """A schema as ``datasets.Features``."""
    import datasets

    return datasets.Features.from_arrow_schema(schema)


def _one_split(name: str, loaded: Any) -> Any:
    if not isinstance(loaded, Mapping):
        return loaded
    if len(loaded) == 1:
        return next(iter(loaded.values()))
    raise SourceError(f"input={name!r}: has splits {list(loaded)}. Choose one by dataset_options={{'split': ...}}.")
