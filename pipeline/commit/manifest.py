"""The records of what was published: publications, the list of their units, and the manifest.

The manifest holds the publications' records once more, whole: each can be made again from the other.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any

import pyarrow as pa

from pipeline import layout
from pipeline.commit.index import PublishedUnit, PublishedUnits
from pipeline.commit.part_files import PartRecord
from pipeline.commit.run_record import Origin
from pipeline.commit.sealed import read_state, seal, unseal
from pipeline.damage import is_unreadable
from pipeline.errors import DamagedError, OutputError, SinkError
from pipeline.sinks.hashed import HashedFile
from pipeline.storage.protocol import Storage
from pipeline.storage.retry import with_retries

__all__ = ["FENCE", "Manifest", "Publication", "index_publication", "write_units"]

_VERSION = 3
"""Of the record. 1 held the units themselves; 2 was named by a token."""
FENCE = b"fenced off "
"""What the object begins with that takes the place of a record which must not come."""
_UNITS = pa.schema([("unit_id", pa.string()), ("attempt", pa.int32()), ("rows", pa.int64()), ("failed", pa.int64())])
_BATCH_UNITS = 4096
_CHUNK_BYTES = 2**16


@dataclass(frozen=True, kw_only=True)
class Publication:
    """Units that became visible together.

    Attributes:
        number: publications and revisions are numbered from 0, in the order in which they were decided.
        slot, revision: publications are numbered from 0, and so are those that took the place of each other.
        epoch: of the lease under which it was decided.
        format: of its files, see :data:`pipeline.sinks.FORMATS`.
        schema, dead_schema: of the tables; the files may hold less exact types.
        parts: its files, in input order.
        dead_letters: the file of failed rows, if there were any.
        units: the file that lists its units, in input order, one row for each: see :func:`write_units`.
    """

    number: int
    slot: int
    revision: int
    epoch: int
    format: str
    schema: pa.Schema
    dead_schema: pa.Schema
    parts: tuple[PartRecord, ...]
    dead_letters: PartRecord | None
    units: PartRecord

    @property
    def name(self) -> str:
        """Its visible folder."""
        return layout.publication(self.slot, self.revision)

    @property
    def record_key(self) -> str:
        """Where its record is."""
        return layout.publication_record(self.number, self.epoch)

    @property
    def units_key(self) -> str:
        """Where the list of its units is."""
        return layout.named_units(self.units.name)

    @property
    def part_keys(self) -> list[str]:
        """Where its parts are."""
        return [f"{self.name}/{part.name}" for part in self.parts]

    def to_dict(self) -> dict[str, Any]:
        """Plain values that :meth:`parse` reads back."""
        return {
            "version": _VERSION,
            "number": self.number,
            "slot": self.slot,
            "revision": self.revision,
            "epoch": self.epoch,
            "format": self.format,
            "schema": self.schema.serialize().to_pybytes().hex(),
            "dead_schema": self.dead_schema.serialize().to_pybytes().hex(),
            "parts": [asdict(part) for part in self.parts],
            "dead_letters": None if self.dead_letters is None else asdict(self.dead_letters),
            "units": asdict(self.units),
        }

    def to_bytes(self) -> bytes:
        """The record."""
        return seal(self.to_dict())

    @classmethod
    def parse(cls, raw: Mapping[str, Any]) -> Publication:
        """Inverse of :meth:`to_dict`.

        Raises:
            OutputError: written by a version with other records.
        """
        version = raw.get("version", 1)
        if version != _VERSION:
            raise OutputError(
                f"{layout.publication(raw['slot'], raw['revision'])}: its record is of version {version}, this version "
                f"of the package reads {_VERSION}. Its files are plain tables that any reader opens; to go on with "
                "the run use the version it was begun with, or write to a new folder, or discard it with mode='new'."
            )
        dead = raw["dead_letters"]
        return cls(
            number=raw["number"],
            slot=raw["slot"],
            revision=raw["revision"],
            epoch=raw["epoch"],
            format=raw["format"],
            schema=pa.ipc.read_schema(pa.py_buffer(bytes.fromhex(raw["schema"]))),
            dead_schema=pa.ipc.read_schema(pa.py_buffer(bytes.fromhex(raw["dead_schema"]))),
            parts=tuple(PartRecord(**p) for p in raw["parts"]),
            dead_letters=None if dead is None else PartRecord(**dead),
            units=PartRecord(**raw["units"]),
        )


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What was decided and made visible, in that order: publications, and revisions in the place of some.

    ``first``: the number from which they, and their slots, are counted.
    """

    decided: tuple[Publication, ...] = ()
    first: int = 0

    @property
    def publications(self) -> tuple[Publication, ...]:
        """Those that are visible: the last of each slot, in the order of slots, which is that of the rows."""
        last = {publication.slot: publication for publication in self.decided}
        return tuple(last[slot] for slot in sorted(last))

    @property
    def next_number(self) -> int:
        """Of the publication that is decided next."""
        return 1 + max((publication.number for publication in self.decided), default=self.first - 1)

    @property
    def next_slot(self) -> int:
        """Of the publication that takes the place of no other."""
        return 1 + max((publication.slot for publication in self.decided), default=self.first - 1)

    @classmethod
    def load(cls, storage: Storage, origin: Origin | None = None) -> Manifest:
        """Read the latest manifest; empty where nothing was published.

        Args:
            storage: the output.
            origin: of the run; None looks it up. Manifests from before it began do not count.

        Raises:
            DamagedError: it cannot be read; a run makes it again from the publications' records.
            OutputError: written by a version with other records.
        """
        origin = Origin.of(storage) if origin is None else origin
        keys = [key for key in storage.keys(layout.MANIFEST) if layout.epoch_of(key) >= origin.begun]
        if not keys:
            return cls(first=origin.first)
        key = max(keys)
        try:
            raw = unseal(read_state(storage, key))
            decided = tuple(Publication.parse(publication) for publication in raw["publications"])
            return cls(decided=decided, first=origin.first)
        except FileNotFoundError:
            return cls.load(storage, origin)  # a later one has just taken its place
        except (DamagedError, KeyError, TypeError, ValueError, pa.ArrowException) as error:
            raise DamagedError(
                f"{storage.url}/{key}: the manifest is {error}. Run the same command as before again: it is made anew "
                "from the records of what was published. The published files themselves are plain tables."
            ) from error

    def save(self, storage: Storage, epoch: int) -> None:
        """Write the manifest, as the holder of the lease of this epoch."""
        parts = {f"{p.name}/{part.name}": part.rows for p in self.publications for part in p.parts}
        raw = {"publications": [p.to_dict() for p in self.decided], "parts": parts}
        key = layout.manifest(epoch, len(self.decided))
        storage.put(key, seal(raw))
        storage.delete_objects([other for other in storage.keys(layout.MANIFEST) if other < key])


def write_units(storage: Storage, key: str, units: Callable[[], Iterable[PublishedUnit]]) -> PartRecord:
    """Write the list of a publication's units, an Arrow stream, some of them in memory at a time.

    Args:
        storage: the output.
        key: of the list.
        units: gives them, in order; called again where writing has to be tried again.

    Raises:
        SinkError: it failed repeatedly.
    """
    return with_retries(lambda: _write_units(storage, key, units()), f"writing {storage.url}/{key}")


def _write_units(storage: Storage, key: str, units: Iterable[PublishedUnit]) -> PartRecord:
    source, count = iter(units), 0
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with storage.create(key) as file:
        hashed = HashedFile(file)
        with pa.ipc.new_stream(hashed, _UNITS, options=options) as writer:
            while batch := list(islice(source, _BATCH_UNITS)):
                columns = [[getattr(unit, name) for unit in batch] for name in _UNITS.names]
                arrays = [pa.array(c, field.type) for c, field in zip(columns, _UNITS, strict=True)]
                writer.write_batch(pa.record_batch(arrays, schema=_UNITS))
                count += len(batch)
    return PartRecord.of(key, count, hashed)


def index_publication(storage: Storage, publication: Publication, published: PublishedUnits) -> None:
    """Enter a publication's units in the index, in the place of what was in its slot, some in memory at a time.

    Raises:
        DamagedError: the list of its units is missing or damaged.
    """

    def load() -> None:
        _check_list(storage, publication)
        units = _placed(publication, _read_units(storage, publication.units_key))
        shas = [part.sha256 for part in publication.parts]
        published.replace(publication.slot, publication.part_keys, shas, publication.format, units)

    key = f"{storage.url}/{publication.units_key}"
    try:
        with_retries(load, f"reading {key}")
    except (DamagedError, pa.ArrowException, ValueError, SinkError) as error:
        missing = isinstance(error.__cause__, FileNotFoundError)
        if isinstance(error, SinkError) and not missing and not is_unreadable(error):
            raise
        fault = "missing" if missing else str(error)
        raise DamagedError(
            f"{key}: the list of the units of {publication.name} is {fault}. Run the same command again: it is made "
            "anew from the published rows; or restore it from a copy, or discard the run with mode='new'."
        ) from error


def _check_list(storage: Storage, publication: Publication) -> None:
    digest = hashlib.sha256()
    with storage.open(publication.units_key) as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    if digest.hexdigest() != publication.units.sha256:
        raise DamagedError("altered (its checksum differs)")


def _read_units(storage: Storage, key: str) -> Iterator[PublishedUnit]:
    with storage.open(key) as file, pa.ipc.open_stream(pa.PythonFile(file, mode="r")) as reader:
        for batch in reader:
            for values in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                yield PublishedUnit(**dict(zip(_UNITS.names, values, strict=True)))


def _placed(
    publication: Publication, units: Iterable[PublishedUnit]
) -> Iterator[tuple[PublishedUnit, int, int]]:  # fmt: skip
    """Units with the number of their part and that of their first row in it. A unit lies in one part whole."""
    ends = [part.rows for part in publication.parts]
    part = row = 0
    for unit in units:
        while part < len(ends) and row >= ends[part]:
            part, row = part + 1, 0
        if part == len(ends) or row + unit.rows > ends[part]:
            raise ValueError(f"unit {unit.unit_id} is in none of its parts")
        yield unit, part, row
        row += unit.rows
    if part < len(ends) and (row, part + 1) != (ends[part], len(ends)):
        raise ValueError(f"it ends {ends[part] - row} rows before its part {part} does")
