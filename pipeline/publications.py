"""The records of what was published: publications, the list of their units, and the manifest."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any

import pyarrow as pa

from pipeline import layout
from pipeline.errors import OutputError
from pipeline.index import PublishedUnit, PublishedUnits
from pipeline.parts import HashedFile, PartRecord
from pipeline.storage import Storage
from pipeline.storage_retrying import with_retries

__all__ = ["Manifest", "Publication", "decided", "index_publication", "visible_name", "write_units"]

_VERSION = 2
"""Of the record. 1 held the units themselves."""
_UNITS = pa.schema([("unit_id", pa.string()), ("attempt", pa.int32()), ("rows", pa.int64()), ("failed", pa.int64())])
_BATCH_UNITS = 4096


@dataclass(frozen=True, kw_only=True)
class Publication:
    """Units that became visible together.

    Attributes:
        number: publications and revisions are numbered from 0, in the order in which they were decided.
        slot, revision: publications are numbered from 0, and so are those that took the place of each other.
        token: of the lease under which it was decided.
        format: of its files, see :data:`pipeline.sinks.FORMATS`.
        schema, dead_schema: of the tables; the files may hold less exact types.
        parts: its files, in input order.
        dead_letters: the file of failed rows, if there were any.
        units: the file that lists its units, in input order, one row for each: see :func:`write_units`.
    """

    number: int
    slot: int
    revision: int
    token: str
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
        return layout.publication_record(self.number, self.token)

    @property
    def units_key(self) -> str:
        """Where the list of its units is."""
        return layout.named_units(self.units.name)

    @property
    def part_keys(self) -> list[str]:
        """Where its parts are."""
        return [f"{self.name}/{part.name}" for part in self.parts]

    def to_bytes(self) -> bytes:
        """What :meth:`parse` reads back."""
        raw = {
            "version": _VERSION,
            "number": self.number,
            "slot": self.slot,
            "revision": self.revision,
            "token": self.token,
            "format": self.format,
            "schema": self.schema.serialize().to_pybytes().hex(),
            "dead_schema": self.dead_schema.serialize().to_pybytes().hex(),
            "parts": [asdict(part) for part in self.parts],
            "dead_letters": None if self.dead_letters is None else asdict(self.dead_letters),
            "units": asdict(self.units),
        }
        return json.dumps(raw, indent=1).encode()

    @classmethod
    def parse(cls, record: bytes) -> Publication:
        """Inverse of :meth:`to_bytes`.

        Raises:
            OutputError: written by a version with other records.
        """
        raw: dict[str, Any] = json.loads(record)
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
            token=raw["token"],
            format=raw["format"],
            schema=pa.ipc.read_schema(pa.py_buffer(bytes.fromhex(raw["schema"]))),
            dead_schema=pa.ipc.read_schema(pa.py_buffer(bytes.fromhex(raw["dead_schema"]))),
            parts=tuple(PartRecord(**p) for p in raw["parts"]),
            dead_letters=None if dead is None else PartRecord(**dead),
            units=PartRecord(**raw["units"]),
        )


def visible_name(record: bytes) -> str:
    """The visible folder of the publication that a record of any version decides."""
    raw = json.loads(record)
    return layout.publication(raw["slot"], raw["revision"])


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What was decided and made visible, in that order: publications, and revisions in the place of some."""

    decided: tuple[Publication, ...] = ()

    @property
    def publications(self) -> tuple[Publication, ...]:
        """Those that are visible: the last of each slot, in the order of slots, which is that of the rows."""
        last = {publication.slot: publication for publication in self.decided}
        return tuple(last[slot] for slot in sorted(last))

    @classmethod
    def load(cls, storage: Storage) -> Manifest:
        """Read the manifest; empty where nothing was published.

        Raises:
            OutputError: written by a version with other records.
        """
        try:
            keys = json.loads(storage.read(layout.MANIFEST))["publications"]
        except FileNotFoundError:
            return cls()
        return cls(decided=tuple(Publication.parse(record) for record in storage.read_many(keys)))

    def save(self, storage: Storage) -> None:
        """Write the manifest."""
        parts = {f"{p.name}/{part.name}": part.rows for p in self.publications for part in p.parts}
        raw = {"publications": [p.record_key for p in self.decided], "parts": parts}
        storage.put(layout.MANIFEST, json.dumps(raw, indent=1).encode())


def decided(storage: Storage, first: int = 0) -> list[bytes]:
    """The records of all that was ever decided, visible or not, from number ``first`` on, in no order."""
    beyond = f"{layout.PUBLICATIONS}/{layout.publication(first)}"
    keys = [key for key in storage.keys(layout.PUBLICATIONS) if key >= beyond]
    return [record for record in storage.read_many(keys) if record.startswith(b"{")]  # the others are fences


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
    return hashed.record(key, count)


def index_publication(storage: Storage, publication: Publication, published: PublishedUnits) -> None:
    """Enter a publication's units in the index, in the place of what was in its slot, some in memory at a time.

    Raises:
        OutputError: the list of its units is damaged.
    """

    def load() -> None:
        units = _placed(publication, _read_units(storage, publication.units_key))
        published.replace(publication.slot, publication.part_keys, publication.format, units)

    key = f"{storage.url}/{publication.units_key}"
    try:
        with_retries(load, f"reading {key}")
    except (pa.ArrowException, ValueError) as error:
        raise OutputError(
            f"{key}: not a readable list of the units of {publication.name} ({error}). Restore it from a copy, or "
            "discard the run with mode='new'."
        ) from error


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
