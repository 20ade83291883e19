"""The watermark of a table that scheduled runs keep: the input files whose rows are published.

It is a set of files, not the highest of something, so a file that comes late is new whatever was processed before it.
Each file is there with its identity and the position of the publication that holds its rows.

The watermark is part of the publication record, so it is decided by the same put as the rows. To write all of it with
every publication would cost ever more; to write the new files only would leave as many lists to read as there were
publications. So a record names a few lists, the oldest first: the lists of the decision before, then a new list. The
last ones are merged into the new list while they are not much larger. Of n files about log2(n) lists are read, and each
file is written about log2(n) times. Of equal keys the last list counts; a file whose publication was withdrawn does not
count.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields
from itertools import islice
from typing import BinaryIO

import pyarrow as pa

from pipeline import layout
from pipeline.commit.index import Inputs, ProcessedFile
from pipeline.commit.manifest import Manifest
from pipeline.commit.part_files import PartRecord
from pipeline.errors import DamagedError, SinkError
from pipeline.sinks.part_format import HashedFile
from pipeline.storage.damage import is_unreadable
from pipeline.storage.protocol import Storage
from pipeline.storage.retry import with_retries

_GROWTH = 2
"""A list is merged into the new one if it has at most so many times its files."""
_BATCH_FILES = 4096
_CHUNK_BYTES = 2**20
_TYPES = {"str": pa.string(), "int": pa.int64(), "int | None": pa.int64(), "bool": pa.bool_()}
_SCHEMA = pa.schema([(field.name, _TYPES[str(field.type)]) for field in fields(ProcessedFile)])


def load_watermark(storage: Storage, manifest: Manifest, inputs: Inputs) -> None:
    """Enter the watermark in the index, a batch of one list in memory at a time.

    Args:
        storage: the output.
        manifest: the decisions so far.
        inputs: tables of an index, to be filled.

    Raises:
        DamagedError: a list is missing, or differs from the decided one.
    """
    for number, part in enumerate(manifest.inputs):
        key = layout.named_inputs(part.name)
        try:
            _check(storage, key, part)  # nothing is decoded before
            with storage.open(key) as file:
                inputs.enter(_parsed(file), number=number)
        except (DamagedError, FileNotFoundError, SinkError, pa.ArrowException, ValueError) as error:
            missing = isinstance(error, FileNotFoundError) or isinstance(error.__cause__, FileNotFoundError)
            if isinstance(error, SinkError) and not missing and not is_unreadable(error):
                raise
            fault = "missing" if missing else str(error)
            raise DamagedError(
                f"{storage.url}/{key}: this list of input files that were processed is {fault}",
                "Restore it from a copy, or discard the table with mode='new': without it nobody knows which files are "
                "new. The published files themselves are plain tables.",
            ) from error
    inputs.keep_positions([publication.position for publication in manifest.publications])


def _check(storage: Storage, key: str, part: PartRecord) -> None:
    digest = hashlib.sha256()
    with storage.open(key) as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    if digest.hexdigest() != part.sha256:
        raise DamagedError("altered (its checksum differs)")


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

    Args:
        storage: the output.
        manifest: the decisions so far.
        inputs: the watermark that these make up.
        files: the files to add.
        number: of the publication that will name the list.
        epoch: of the lease.

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
    own = with_retries(lambda: _write(storage, key, inputs.entries(len(kept))), f"writing {storage.url}/{key}")
    return (*kept, own)


def _write(storage: Storage, key: str, files: Iterator[ProcessedFile]) -> PartRecord:
    count = 0
    with storage.create(key) as file:
        hashed = HashedFile(file)
        options = pa.ipc.IpcWriteOptions(compression="zstd")
        with pa.ipc.new_stream(hashed, _SCHEMA, options=options) as writer:
            while batch := list(islice(files, _BATCH_FILES)):
                arrays = [pa.array([getattr(f, own.name) for f in batch], own.type) for own in _SCHEMA]
                writer.write_batch(pa.record_batch(arrays, schema=_SCHEMA))
                count += len(batch)
    return PartRecord.of(key, count, hashed)


def _parsed(file: BinaryIO) -> Iterator[ProcessedFile]:
    with pa.ipc.open_stream(pa.PythonFile(file, mode="r")) as reader:
        for batch in reader:
            columns = (column.to_pylist() for column in batch.columns)
            yield from (
                ProcessedFile(**dict(zip(_SCHEMA.names, row, strict=True))) for row in zip(*columns, strict=True)
            )
