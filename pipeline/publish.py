"""From staged units to plain files that appear at once, in input order.

Steps, each of which a kill may interrupt: (1) write the part files and dead letters aside; (2) put the
publication record: from here on the publication is decided and only rolled forward; (3) give the folder
its visible name (one rename; on object stores copies inside the store, all at once); (4) list it in the
manifest; (5) remove the staged units. A run that begins calls :func:`recover` first, which redoes (3) to (5)
for a decided publication.

A revision (:mod:`pipeline.revising`) takes the place of a publication some of whose failed rows were done again:
it is a publication too, whose step (3) begins with removing the folder of the one before. A reader of the folder
never sees both; for the moment between, one that lists the folder sees neither.

What a reader may see: :func:`pipeline.read` goes by the manifest, hence sees all of a publication or nothing
of it, everywhere. A plain reader that lists the folder sees the same on a local file system; on an object
store, between (2) and the end of (3), it sees some of the publication's parts: each of them whole, none twice,
and no other files.

The record's name holds the writer's token and its put succeeds once. Whoever takes over a lease that was not
given back puts a fence under the name that the former holder would use (:func:`recover`): should that one
wake up, its put fails.
"""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, BinaryIO

import pyarrow as pa

from pipeline import layout
from pipeline.errors import LeaseError
from pipeline.lease import Lease
from pipeline.sinks.base import PartFormat
from pipeline.sinks.places import read_place
from pipeline.storage import Storage
from pipeline.storage_retrying import with_retries
from pipeline.types import CommitRecord, Place

__all__ = [
    "Manifest",
    "PartJob",
    "PartRecord",
    "Publication",
    "PublishedUnit",
    "decide",
    "decided",
    "publish",
    "recover",
    "staged_dead_place",
    "staged_place",
    "write_part",
]


@dataclass(frozen=True, kw_only=True)
class PartRecord:
    """A published file: its name in the publication's folder, rows, bytes, and SHA-256 of the bytes."""

    name: str
    rows: int
    bytes: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class PartJob:
    """A part to write: rows from these places, in order, into one file. Picklable: parts can be written anywhere.

    With ``copy_of``, a part that is there already is copied as it is.
    """

    storage: Storage
    format: PartFormat
    schema: pa.Schema
    key: str
    pieces: tuple[Place, ...] = ()
    copy_of: str | None = None


@dataclass(frozen=True, kw_only=True)
class PublishedUnit:
    """A unit as it was published: its attempt, its rows in the output, and how many of them are failures."""

    unit_id: str
    attempt: int
    rows: int
    failed: int

    @classmethod
    def of(cls, record: CommitRecord) -> PublishedUnit:
        """What is published of a committed unit."""
        return cls(
            unit_id=record.unit_id, attempt=record.attempt, rows=record.output_rows, failed=record.failed_rows
        )  # fmt: skip


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
        units: the units it holds, in input order.
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
    units: tuple[PublishedUnit, ...]

    @property
    def unit_ids(self) -> tuple[str, ...]:
        """Of its units."""
        return tuple(unit.unit_id for unit in self.units)

    @property
    def name(self) -> str:
        """Its visible folder."""
        return layout.publication(self.slot, self.revision)

    @property
    def record_key(self) -> str:
        """Where its record is."""
        return layout.publication_record(self.number, self.token)

    def to_bytes(self) -> bytes:
        """What :meth:`parse` reads back."""
        raw = {
            "number": self.number,
            "slot": self.slot,
            "revision": self.revision,
            "token": self.token,
            "format": self.format,
            "schema": self.schema.serialize().to_pybytes().hex(),
            "dead_schema": self.dead_schema.serialize().to_pybytes().hex(),
            "parts": [asdict(part) for part in self.parts],
            "dead_letters": None if self.dead_letters is None else asdict(self.dead_letters),
            "units": [[unit.unit_id, unit.attempt, unit.rows, unit.failed] for unit in self.units],
        }
        return json.dumps(raw, indent=1).encode()

    @classmethod
    def parse(cls, record: bytes) -> Publication:
        """Inverse of :meth:`to_bytes`."""
        raw: dict[str, Any] = json.loads(record)
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
            units=tuple(PublishedUnit(unit_id=u, attempt=a, rows=r, failed=f) for u, a, r, f in raw["units"]),
        )


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What was decided and made visible, in that order: publications, and revisions in the place of some."""

    decided: tuple[Publication, ...] = ()

    @property
    def publications(self) -> tuple[Publication, ...]:
        """Those that are visible: the last of each slot, in the order of slots, which is that of the rows."""
        last = {publication.slot: publication for publication in self.decided}
        return tuple(last[slot] for slot in sorted(last))

    @property
    def attempts(self) -> dict[str, int]:
        """Published unit -> its attempt."""
        return {unit.unit_id: unit.attempt for publication in self.publications for unit in publication.units}

    @property
    def unit_ids(self) -> set[str]:
        """All published units."""
        return set(self.attempts)

    @classmethod
    def load(cls, storage: Storage) -> Manifest:
        """Read the manifest; empty where nothing was published."""
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


def recover(storage: Storage, lease: Lease | None = None) -> Manifest:
    """Finish a publication that was decided before a kill; the manifest as it then is.

    Args:
        storage: the output.
        lease: held by the caller; former holders that never gave theirs back can decide nothing after this.
    """
    manifest = Manifest.load(storage)
    if lease is not None:
        first = len(manifest.decided)
        manifest = _roll_forward(storage, manifest)
        for token in lease.predecessors:
            manifest = _fence_off(storage, manifest, token, first)
        lease.forget_predecessors()
    manifest = _roll_forward(storage, manifest)
    _clean(storage, manifest)
    return manifest


def decided(storage: Storage, first: int = 0) -> list[Publication]:
    """The publications and revisions that were ever decided, visible or not, from number ``first`` on."""
    beyond = f"{layout.PUBLICATIONS}/{layout.publication(first)}"
    keys = [key for key in storage.keys(layout.PUBLICATIONS) if key >= beyond]
    records = [Publication.parse(record) for record in storage.read_many(keys) if record.startswith(b"{")]
    return sorted(records, key=lambda publication: publication.number)


def _roll_forward(storage: Storage, manifest: Manifest) -> Manifest:
    for publication in decided(storage, len(manifest.decided)):
        manifest = _make_visible(storage, manifest, publication)
    return manifest


def _fence_off(storage: Storage, manifest: Manifest, token: str, first: int) -> Manifest:
    """Take the names of the records that a former holder may yet put: of the publications since it looked."""
    for number in range(first, len(manifest.decided) + 1):
        fence = f"fenced off by {uuid.uuid4().hex}".encode()
        if not storage.put_new(layout.publication_record(number, token), fence):
            manifest = _roll_forward(storage, manifest)
    return manifest


def publish(
    storage: Storage,
    manifest: Manifest,
    records: Sequence[CommitRecord],
    *,
    lease: Lease,
    schema: pa.Schema,
    dead_schema: pa.Schema,
    format: PartFormat,
    target_bytes: int,
    write_parts: Callable[[Sequence[PartJob]], Iterable[PartRecord]] | None = None,
) -> Manifest:
    """Make committed units visible, in the order given; the manifest as it then is.

    Args:
        storage: the output.
        manifest: what is visible already.
        records: committed units that are not visible yet, in input order. None are given on the first
            publication of an empty input: then one part without rows is published, so that readers find a schema.
        lease: the caller's; without it nothing is published.
        schema: of the output table.
        dead_schema: of the dead-letter table.
        format: of the files.
        target_bytes: a part is closed when its staged (compressed) bytes reach this.
        write_parts: runs :func:`write_part` over jobs, results in order; None does it here, one by one.

    Raises:
        LeaseError: another run took over.
        SinkError: the parts could not be written.
    """
    number = len(manifest.decided)
    folder = layout.publishing(number, lease.token)
    groups = list(_grouped(records, target_bytes)) or [[]]
    jobs = [
        PartJob(
            storage=storage,
            format=format,
            schema=schema,
            key=f"{folder}/{layout.part(i)}{format.suffix}",
            pieces=tuple(staged_place(r) for r in group),
        )
        for i, group in enumerate(groups)
    ]
    parts = tuple((write_parts or (lambda js: map(write_part, js)))(jobs))
    failed = tuple(staged_dead_place(r) for r in records if r.failed_rows)
    dead = None
    if failed:
        key = layout.dead_letters(number, lease.token) + format.suffix
        dead = write_part(PartJob(storage=storage, format=format, schema=dead_schema, key=key, pieces=failed))
    publication = Publication(
        number=number,
        slot=len(manifest.publications),
        revision=0,
        token=lease.token,
        format=format.name,
        schema=schema,
        dead_schema=dead_schema,
        parts=parts,
        dead_letters=dead,
        units=tuple(PublishedUnit.of(r) for r in records),
    )
    return decide(storage, manifest, publication, lease)


def staged_place(record: CommitRecord) -> Place:
    """Where the output rows of a committed unit are staged."""
    return Place(
        key=layout.staged_rows(record.unit_id, record.attempt, record.copy), first_row=0, num_rows=record.output_rows
    )


def staged_dead_place(record: CommitRecord) -> Place:
    """Where its dead letters are."""
    return Place(
        key=layout.staged_dead(record.unit_id, record.attempt, record.copy), first_row=0, num_rows=record.failed_rows
    )


def decide(storage: Storage, manifest: Manifest, publication: Publication, lease: Lease) -> Manifest:
    """Publish what is written under its publishing name: steps (2) to (5); the manifest as it then is.

    Raises:
        LeaseError: another run took over.
    """
    _decide(storage, publication, lease)
    manifest = _make_visible(storage, manifest, publication)
    _clean(storage, manifest)
    return manifest


def _decide(storage: Storage, publication: Publication, lease: Lease) -> None:
    """Put the record: the moment of publication."""
    lease.verify()
    if not storage.put_new(publication.record_key, publication.to_bytes()):
        raise LeaseError(f"{storage.url}: another run took over this output. This one publishes nothing.")


def _grouped(records: Sequence[CommitRecord], target_bytes: int) -> Iterator[list[CommitRecord]]:
    group: list[CommitRecord] = []
    size = 0
    for record in records:
        group.append(record)
        size += record.staged_bytes
        if size >= target_bytes:
            yield group
            group, size = [], 0
    if group:
        yield group


def write_part(job: PartJob) -> PartRecord:
    """Write one file from its pieces, a few of them in memory at a time.

    Raises:
        SinkError: it failed repeatedly.
    """
    return with_retries(lambda: _write_part(job), f"writing {job.storage.url}/{job.key}")


def _write_part(job: PartJob) -> PartRecord:
    rows = sum(piece.num_rows for piece in job.pieces)
    with job.storage.create(job.key) as file:
        hashed = _Hashed(file)
        if job.copy_of is not None:
            with job.storage.open(job.copy_of) as there:
                shutil.copyfileobj(there, hashed, 2**22)
        else:
            writer = job.format.open(hashed, job.schema)
            written = 0
            for piece in job.pieces:
                for table in read_place(job.storage, piece, job.schema):
                    written += table.num_rows
                    writer.write(table)
            writer.close()
            if written != rows:
                raise AssertionError(f"{job.key}: {written} rows were found where the ledger says {rows}")
    name = job.key.rsplit("/", 1)[-1]
    return PartRecord(name=name, rows=rows, bytes=hashed.size, sha256=hashed.digest.hexdigest())


class _Hashed(io.BufferedIOBase):
    """A stream that hashes what passes through it.

    A writer that is collected after a failure still writes its file's end; by then there is nowhere to write to.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.digest = hashlib.sha256()
        self.size = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        data = memoryview(data)
        self.digest.update(data)
        self.size += data.nbytes
        if not self._file.closed:
            self._file.write(data)
        return data.nbytes

    def tell(self) -> int:
        return self.size


def _make_visible(storage: Storage, manifest: Manifest, publication: Publication) -> Manifest:
    if publication.revision:
        storage.delete(layout.publication(publication.slot, publication.revision - 1))
    storage.promote(layout.publishing(publication.number, publication.token), publication.name)
    manifest = Manifest(decided=(*manifest.decided, publication))
    manifest.save(storage)
    return manifest


def _clean(storage: Storage, manifest: Manifest) -> None:
    """Remove what is published from the staging folder, and what runs that were killed left unfinished."""
    published = manifest.attempts
    named = {p.dead_letters.name for p in manifest.publications if p.dead_letters is not None}
    attempts = ((key, *layout.staged_attempt(key)) for key in storage.keys(layout.STAGED))
    staged = [key for key, unit_id, attempt in attempts if attempt <= published.get(unit_id, 0)]
    dead = [k for k in storage.keys(layout.DEAD_LETTERS) if k.rsplit("/", 1)[-1] not in named]
    storage.delete_objects([*staged, *dead])
    storage.delete(layout.PUBLISH)  # what is decided has left this folder
    storage.sweep()
