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

from collections.abc import Callable, Iterable
from dataclasses import fields
from functools import partial

import pyarrow as pa

from pipeline import layout
from pipeline.commit.index import Inputs, ProcessedFile
from pipeline.commit.lists import read_list, write_list
from pipeline.commit.manifest import Manifest
from pipeline.commit.part_files import PartRecord
from pipeline.storage.protocol import Storage

_GROWTH = 2
"""A list is merged into the new one if it has at most so many times its files."""
_TYPES = {"str": pa.string(), "int": pa.int64(), "int | None": pa.int64(), "bool": pa.bool_()}
_SCHEMA = pa.schema([(field.name, _TYPES[str(field.type)]) for field in fields(ProcessedFile)])


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
    return (*kept, write_list(storage, key, _SCHEMA, lambda: inputs.entries(len(kept))))
