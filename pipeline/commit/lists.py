"""Lists in the state of an output, as Arrow streams that are never held whole: units of a publication, input files.

The *watermark* of a scheduled table is the set of input files whose rows are published, each with its identity and the
position of the publication of its rows. It is a set, so a late file is new, whatever was processed before. A
publication record names the lists, so the watermark is decided by the same put as the rows.

To write all of it with every publication would cost ever more; to write the new files only would leave as many lists to
read as there were publications. So a record names a few lists, the oldest first: those of the decision before, then a
new list. The last ones are merged into the new list while they are not much larger. Of n files about log2(n) lists are
read, and each file is written about log2(n) times. Of equal keys the last list counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields
from functools import partial
from itertools import islice
from typing import TypeVar

import pyarrow as pa

from pipeline import layout
from pipeline.commit.index import Inputs, ProcessedFile, PublishedUnit, PublishedUnits
from pipeline.commit.manifest import Manifest, Publication
from pipeline.commit.part_files import PartRecord
from pipeline.errors import DamagedError, SinkError
from pipeline.sinks.formats import HashedFile
from pipeline.sinks.stored_rows import check_object
from pipeline.storage.damage import FoundDamageError
from pipeline.storage.protocol import Storage
from pipeline.storage.retry import with_retries

_T = TypeVar("_T")
_BATCH = 4096
_UNITS = pa.schema([("unit_id", pa.string()), ("attempt", pa.int32()), ("rows", pa.int64()), ("failed", pa.int64())])
_GROWTH = 2
"""A list is merged into the new one if it has at most this many times as many files."""
_TYPES = {"str": pa.string(), "int": pa.int64(), "int | None": pa.int64(), "bool": pa.bool_()}
_FILES = pa.schema([(field.name, _TYPES[str(field.type)]) for field in fields(ProcessedFile)])


def write_list(storage: Storage, key: str, schema: pa.Schema, rows: Callable[[], Iterable[object]]) -> PartRecord:
    """Write a list, a batch in memory at a time.

    Each column of the schema is an attribute of the rows; ``rows`` is called again for every attempt at writing.
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
    """Check a list, and give its rows to ``take``; after an error that may pass, both run again.

    ``about``: the name of the list, for the error, and the remedy.

    Raises:
        DamagedError: it is missing or damaged.
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


def write_units(storage: Storage, key: str, units: Callable[[], Iterable[PublishedUnit]]) -> PartRecord:
    """Write the list of a publication's units as an Arrow stream, a batch in memory at a time.

    ``units`` gives them in order; it is called again for every attempt at writing.
    """
    return write_list(storage, key, _UNITS, units)


def index_publication(storage: Storage, publication: Publication, published: PublishedUnits) -> None:
    """Enter a publication's units in the index, a batch in memory at a time; they replace those at its position.

    Raises:
        DamagedError: the list of its units is missing or damaged.
    """
    shas = [part.sha256 for part in publication.parts]

    def take(units: Iterator[PublishedUnit]) -> None:
        placed = _placed(publication, units)
        published.replace(publication.position, publication.part_keys, shas, publication.format, placed)

    _read_units(storage, publication, take)


def count_units(storage: Storage, publication: Publication) -> int:
    """Units of a publication, whose list is checked.

    Raises:
        DamagedError: the list is missing or damaged.
    """
    _read_units(storage, publication, lambda units: None)
    return publication.units.rows


def _read_units(
    storage: Storage, publication: Publication, take: Callable[[Iterator[PublishedUnit]], None]
) -> None:  # fmt: skip
    about = (
        f"the list of the units of {publication.name}",
        (
            "Run the same command again: it is made again from the published rows; or restore it from a copy, or "
            "discard the run with mode='new'."
        ),
    )
    read_list(storage, publication.units_key, publication.units, PublishedUnit, take, about)


def _placed(
    publication: Publication, units: Iterable[PublishedUnit]
) -> Iterator[tuple[PublishedUnit, int, int]]:  # fmt: skip
    """Units with the number of their part and of their first row in it. A unit never spans two parts.

    A unit without rows (of a chain, if no row of the unit before it succeeded) lies at the end of the part before it.
    """
    ends = [part.rows for part in publication.parts]
    part = row = 0
    for unit in units:
        while unit.rows and part < len(ends) and row >= ends[part]:
            part, row = part + 1, 0
        if part == len(ends) or row + unit.rows > ends[part]:
            raise ValueError(f"unit {unit.unit_id} is in none of its parts")
        yield unit, part, row
        row += unit.rows
    while part + 1 < len(ends) and row == ends[part] and not any(ends[part + 1 :]):
        part, row = part + 1, 0
    if part < len(ends) and (row, part + 1) != (ends[part], len(ends)):
        raise ValueError(f"it ends {ends[part] - row} rows before its part {part} does")


def load_watermark(storage: Storage, manifest: Manifest, inputs: Inputs) -> None:
    """Enter the watermark in the index, a batch of one list in memory at a time.

    Raises:
        DamagedError: a list is missing, or differs from the decided one.
    """
    about = (
        "this list of input files that were processed",
        (
            "Restore it from a copy, or discard the table with mode='new': without it nobody knows which files are "
            "new. The published files themselves are plain tables."
        ),
    )
    for number, part in enumerate(manifest.inputs):
        enter = partial(inputs.enter, number=number)
        read_list(storage, f"{layout.INPUTS}/{part.name}", part, ProcessedFile, enter, about)
    inputs.keep_positions([publication.position for publication in manifest.publications])


def write_watermark(
    storage: Storage,
    manifest: Manifest,
    inputs: Inputs,
    files: Callable[[], Iterable[ProcessedFile]],
    *,
    number: int,
    epoch: int,
) -> tuple[PartRecord, ...]:
    """Add files to the watermark: in the index, and as a list that counts once a publication that names it is decided.

    ``number``, ``epoch``: of the publication that will name the list, and of the lease.

    Returns:
        The lists that make up the watermark then.
    """
    kept = list(manifest.inputs)
    total = sum(1 for _ in files())
    while kept and kept[-1].rows <= _GROWTH * total:
        total += kept.pop().rows
    inputs.enter(files(), number=len(manifest.inputs))
    inputs.join_lists(len(kept))
    key = layout.inputs(number, epoch)
    return (*kept, write_list(storage, key, _FILES, lambda: inputs.entries(len(kept))))
