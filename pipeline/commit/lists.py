"""Lists in the state of an output: a row for each unit or input file, as Arrow streams that are never held whole."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import TypeVar

import pyarrow as pa

from pipeline.commit.part_files import PartRecord
from pipeline.errors import DamagedError, SinkError
from pipeline.sinks.formats import HashedFile
from pipeline.sinks.stored_rows import check_object
from pipeline.storage.damage import FoundDamageError
from pipeline.storage.protocol import Storage
from pipeline.storage.retry import with_retries

_T = TypeVar("_T")
_BATCH = 4096


def write_list(storage: Storage, key: str, schema: pa.Schema, rows: Callable[[], Iterable[object]]) -> PartRecord:
    """Write a list, a batch in memory at a time.

    Each column of the schema is an attribute of the rows; ``rows`` is called again for every attempt at writing.

    Raises:
        SinkError: it failed repeatedly.
    """
    return with_retries(lambda: _write(storage, key, schema, rows()), f"writing {storage.url}/{key}")


def _write(storage: Storage, key: str, schema: pa.Schema, rows: Iterable[object]) -> PartRecord:
    source, count = iter(rows), 0
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with storage.create(key) as file:
        hashed = HashedFile(file)
        with pa.ipc.new_stream(hashed, schema, options=options) as writer:
            while batch := list(islice(source, _BATCH)):
                arrays = [pa.array([getattr(row, own.name) for row in batch], own.type) for own in schema]
                writer.write_batch(pa.record_batch(arrays, schema=schema))
                count += len(batch)
    return PartRecord.of(key, count, hashed)


def read_list(
    storage: Storage, key: str, part: PartRecord, row: Callable[..., _T], take: Callable[[Iterator[_T]], None],
    about: tuple[str, str],
) -> None:  # fmt: skip
    """Check a list, and give its rows to ``take``; after an error that may pass both are done again.

    ``about``: the name of the list, for the error, and the remedy.

    Raises:
        DamagedError: it is missing or damaged.
        SinkError: the store does not answer.
    """

    def load() -> None:
        check_object(storage, key, part.sha256)  # nothing is decoded before
        take(_rows(storage, key, row))

    name, remedy = about
    try:
        with_retries(load, f"reading {storage.url}/{key}")
    except (FoundDamageError, pa.ArrowException, ValueError, SinkError) as error:
        missing = isinstance(error.__cause__, FileNotFoundError)  # removed since it was checked
        if isinstance(error, SinkError) and not missing:
            raise
        faults = [damage.fault for damage in error.damages] if isinstance(error, FoundDamageError) else [str(error)]
        fault = "missing" if missing else faults[0]
        raise DamagedError(f"{storage.url}/{key}: {name} is {fault}", remedy) from error


def _rows(storage: Storage, key: str, row: Callable[..., _T]) -> Iterator[_T]:
    with storage.open(key) as file, pa.ipc.open_stream(pa.PythonFile(file, mode="r")) as reader:
        for batch in reader:
            columns = (column.to_pylist() for column in batch.columns)
            yield from (
                row(**dict(zip(batch.schema.names, values, strict=True))) for values in zip(*columns, strict=True)
            )
