"""Publication records, and the manifest of all publications.

The manifest repeats the publication records in full, so each can be restored from the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

import pyarrow as pa

from pipeline import layout
from pipeline.commit.part_files import PartRecord
from pipeline.commit.run_record import Origin
from pipeline.commit.sealed import read_state, seal, unseal
from pipeline.errors import DamagedError, OutputError
from pipeline.storage.protocol import Storage

_VERSION = 3
"""Version of the record. 1 held the units themselves; 2 was named by a token."""
FENCE = b"fenced off "
"""First bytes of a fence: an object under the name of a record that must not be put any more."""
_SCHEMAS = ("schema", "dead_schema")


@dataclass(frozen=True, kw_only=True)
class Publication:
    """A publication: units that became visible at once, as part files in one folder.

    Attributes:
        number: running number of publications and revisions, in the order of their decisions.
        position: place of its rows in the output, counted from 0; a revision has the position of the publication that
            it replaces.
        revision: 0, or how many publications were at this position before.
        epoch: epoch of the lease that decided it.
        format: format of its files, see :data:`pipeline.sinks.FORMATS`.
        schema, dead_schema: schemas of the two tables; the files may hold less exact types.
        parts: its part files, in input order.
        dead_letters: the file of failed rows; None if no row failed.
        units: the file that lists its units in input order, see :func:`pipeline.commit.lists.write_units`.
        inputs: the lists of input files that make up the watermark once it is decided, from the oldest on, see
            :mod:`pipeline.commit.lists`; empty for outputs that no scheduled run keeps.
    """

    number: int
    position: int
    revision: int
    epoch: int
    format: str
    schema: pa.Schema
    dead_schema: pa.Schema
    parts: tuple[PartRecord, ...]
    dead_letters: PartRecord | None
    units: PartRecord
    inputs: tuple[PartRecord, ...] = ()

    @property
    def name(self) -> str:
        """Its visible folder."""
        return layout.publication(self.position, self.revision)

    @property
    def record_key(self) -> str:
        """Key of its record."""
        return layout.publication_record(self.number, self.epoch)

    @property
    def units_key(self) -> str:
        """Key of the list of its units."""
        return f"{layout.UNITS}/{self.units.name}"

    @property
    def part_keys(self) -> list[str]:
        """Keys of its parts."""
        return [f"{self.name}/{part.name}" for part in self.parts]

    @property
    def dead_key(self) -> str | None:
        """Key of its dead letters; None if it has none."""
        return None if self.dead_letters is None else f"{layout.DEAD_LETTERS}/{self.dead_letters.name}"

    @property
    def files(self) -> dict[str, PartRecord]:
        """Key -> record of each part, and of the dead letters."""
        letters = {} if self.dead_key is None or self.dead_letters is None else {self.dead_key: self.dead_letters}
        return {**dict(zip(self.part_keys, self.parts, strict=True)), **letters}

    def to_dict(self) -> dict[str, Any]:
        """Plain values that :meth:`parse` reads back."""
        inputs = {"inputs": [asdict(part) for part in self.inputs]} if self.inputs else {}
        return {
            "version": _VERSION,
            "number": self.number,
            "slot": self.position,
            "revision": self.revision,
            "epoch": self.epoch,
            "format": self.format,
            "schema": self.schema.serialize().to_pybytes().hex(),
            "dead_schema": self.dead_schema.serialize().to_pybytes().hex(),
            "parts": [asdict(part) for part in self.parts],
            "dead_letters": None if self.dead_letters is None else asdict(self.dead_letters),
            "units": asdict(self.units),
            **inputs,
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
        version = raw["version"]
        if version != _VERSION:
            raise OutputError(
                f"{layout.publication(raw['slot'], raw['revision'])}: its record is of version {version}, this version "
                f"of the package reads {_VERSION}. Its files are plain tables that any reader opens; to go on with "
                "the run use the version it was begun with, or write to a new folder, or discard it with mode='new'."
            )
        dead = raw["dead_letters"]
        return cls(
            number=raw["number"],
            position=raw["slot"],
            revision=raw["revision"],
            epoch=raw["epoch"],
            format=raw["format"],
            schema=_schema_of(raw["schema"]),
            dead_schema=_schema_of(raw["dead_schema"]),
            parts=tuple(PartRecord(**p) for p in raw["parts"]),
            dead_letters=None if dead is None else PartRecord(**dead),
            units=PartRecord(**raw["units"]),
            inputs=tuple(PartRecord(**part) for part in raw.get("inputs", ())),
        )


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """All publications and revisions, in the order of their decisions.

    ``first``: the first number of publications and positions.
    """

    decided: tuple[Publication, ...] = ()
    first: int = 0

    @property
    def publications(self) -> tuple[Publication, ...]:
        """The visible publications: the last one of each position, in the order of positions (that of the rows)."""
        last = {publication.position: publication for publication in self.decided}
        return tuple(last[position] for position in sorted(last))

    @property
    def parts(self) -> dict[str, PartRecord]:
        """Key -> record of each visible part, in order."""
        return {key: part for own in self.publications for key, part in zip(own.part_keys, own.parts, strict=True)}

    @property
    def rows(self) -> int:
        """Rows of all visible parts."""
        return sum(part.rows for part in self.parts.values())

    @property
    def widest(self) -> Publication:
        """The visible publication with the most columns: columns are only ever added to a table, so it has all."""
        return max(self.publications, key=lambda publication: len(publication.schema))

    @property
    def inputs(self) -> tuple[PartRecord, ...]:
        """The lists of input files that make up the watermark: those that the last decision names."""
        last = max(self.decided, key=lambda publication: publication.number, default=None)
        return () if last is None else last.inputs

    @property
    def next_number(self) -> int:
        """Number of the next publication."""
        return 1 + max((publication.number for publication in self.decided), default=self.first - 1)

    @property
    def next_position(self) -> int:
        """Position of the next publication that is not a revision."""
        return 1 + max((publication.position for publication in self.decided), default=self.first - 1)

    @classmethod
    def load(cls, storage: Storage, origin: Origin | None = None) -> Manifest:
        """Read the latest manifest; empty if nothing was published.

        Manifests from before the ``origin`` of the run (None reads it) do not count.

        Raises:
            DamagedError: it cannot be read; a run restores it from the publication records.
            OutputError: written by a version with other records.
        """
        origin = Origin.of(storage) if origin is None else origin
        keys = [key for key in storage.keys(layout.MANIFEST) if layout.epoch_of(key) >= origin.begun]
        if not keys:
            return cls(first=origin.first)
        key = max(keys)
        try:
            raw = unseal(read_state(storage, key))
            decided = tuple(Publication.parse(publication) for publication in _with_schemas(raw))
            return cls(decided=decided, first=origin.first)
        except FileNotFoundError:
            return cls.load(storage, origin)  # a later one has replaced it
        except (DamagedError, LookupError, TypeError, ValueError, pa.ArrowException) as error:
            raise DamagedError(
                f"{storage.url}/{key}: the manifest is {error}",
                "Run the same command as before again: it is made again from the records of publications. The "
                "published files themselves are plain tables.",
            ) from error

    def save(self, storage: Storage, epoch: int) -> None:
        """Write the manifest, as the holder of the lease of this epoch."""
        parts = {key: part.rows for key, part in self.parts.items()}
        raw = {**_without_schemas(p.to_dict() for p in self.decided), "parts": parts}
        before = storage.keys(layout.MANIFEST)
        own = [layout.count_of(key) for key in before if layout.epoch_of(key) == epoch]
        # Publications may have been withdrawn since the last one of this epoch was written.
        key = layout.manifest(epoch, max([len(self.decided), *(count + 1 for count in own)]))
        storage.put(key, seal(raw))
        storage.delete_objects([other for other in before if other < key])


@lru_cache(maxsize=64)
def _schema_of(text: str) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(bytes.fromhex(text)))


def _without_schemas(publications: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Records as a manifest has them: their schemas, which are nearly all of their bytes, once, and by number."""
    numbers: dict[str, int] = {}
    short = [
        {**raw, **{name: numbers.setdefault(raw[name], len(numbers)) for name in _SCHEMAS}} for raw in publications
    ]
    return {"publications": short, "schemas": list(numbers)}


def _with_schemas(manifest: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Inverse of :func:`_without_schemas`."""
    for raw in manifest["publications"]:
        yield {**raw, **{name: manifest["schemas"][raw[name]] for name in _SCHEMAS}}
