"""From staged units to plain files that appear at once, in input order.

Steps, each of which a kill may interrupt: (1) write the part files and dead letters aside; (2) put the
publication record: from here on the publication is decided and only rolled forward; (3) give the folder
its visible name (one rename); (4) list it in the manifest; (5) remove the staged units. A run that
begins calls :func:`recover` first, which redoes (3) to (5) for a decided publication.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa

from pipeline import layout
from pipeline.sinks.base import PartFormat
from pipeline.sinks.staging import load_staged
from pipeline.storage import Storage
from pipeline.types import CommitRecord

__all__ = ["Manifest", "PartJob", "PartRecord", "Publication", "publish", "recover", "write_part"]


@dataclass(frozen=True, kw_only=True)
class PartRecord:
    """A published file: its name in the publication's folder, rows, bytes, and SHA-256 of the bytes."""

    name: str
    rows: int
    bytes: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class PartJob:
    """A part to write: staged tables, in order, into one file. Picklable: parts can be written anywhere."""

    storage: Storage
    format: PartFormat
    schema: pa.Schema
    key: str
    staged: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Publication:
    """Units that became visible together."""

    number: int
    parts: tuple[PartRecord, ...]
    dead_letters: PartRecord | None
    unit_ids: tuple[str, ...]

    @property
    def name(self) -> str:
        """Its visible folder."""
        return layout.publication(self.number)

    @classmethod
    def load(cls, storage: Storage, key: str) -> Publication:
        """Read a publication record."""
        raw: dict[str, Any] = json.loads(storage.read(key))
        dead = raw["dead_letters"]
        return cls(
            number=raw["number"],
            parts=tuple(PartRecord(**p) for p in raw["parts"]),
            dead_letters=None if dead is None else PartRecord(**dead),
            unit_ids=tuple(raw["unit_ids"]),
        )


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The publications that are visible, in order."""

    publications: tuple[Publication, ...] = ()

    @property
    def unit_ids(self) -> set[str]:
        """All published units."""
        return {unit for publication in self.publications for unit in publication.unit_ids}

    @classmethod
    def load(cls, storage: Storage) -> Manifest:
        """Read the manifest; empty where nothing was published."""
        try:
            numbers = json.loads(storage.read(layout.MANIFEST))["publications"]
        except FileNotFoundError:
            return cls()
        return cls(publications=tuple(Publication.load(storage, layout.publication_record(n)) for n in numbers))

    def save(self, storage: Storage) -> None:
        """Write the manifest."""
        parts = {f"{p.name}/{part.name}": part.rows for p in self.publications for part in p.parts}
        raw = {"publications": [p.number for p in self.publications], "parts": parts}
        with storage.create(layout.MANIFEST) as file:
            file.write(json.dumps(raw, indent=1).encode())


def recover(storage: Storage) -> Manifest:
    """Finish a publication that was decided before a kill; the manifest as it then is."""
    manifest = Manifest.load(storage)
    listed = {p.number for p in manifest.publications}
    for key in storage.keys(layout.PUBLICATIONS):
        publication = Publication.load(storage, key)
        if publication.number not in listed:
            manifest = _make_visible(storage, manifest, publication)
    _clean(storage, manifest)
    return manifest


def publish(
    storage: Storage,
    manifest: Manifest,
    records: Sequence[CommitRecord],
    *,
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
        schema: of the output table.
        dead_schema: of the dead-letter table.
        format: of the files.
        target_bytes: a part is closed when its staged (compressed) bytes reach this.
        write_parts: runs :func:`write_part` over jobs, results in order; None does it here, one by one.
    """
    number = len(manifest.publications)
    storage.delete(layout.publishing(number))  # what a kill left there was never decided
    groups = list(_grouped(records, target_bytes)) or [[]]
    jobs = [
        PartJob(
            storage=storage,
            format=format,
            schema=schema,
            key=f"{layout.publishing(number)}/{layout.part(i)}{format.suffix}",
            staged=tuple(layout.staged_rows(r.unit_id) for r in group),
        )
        for i, group in enumerate(groups)
    ]
    parts = tuple((write_parts or (lambda js: map(write_part, js)))(jobs))
    failed = tuple(layout.staged_dead(r.unit_id) for r in records if r.failed_rows)
    dead = None
    if failed:
        key = layout.dead_letters(number) + format.suffix
        dead = write_part(PartJob(storage=storage, format=format, schema=dead_schema, key=key, staged=failed))
    publication = Publication(
        number=number, parts=parts, dead_letters=dead, unit_ids=tuple(r.unit_id for r in records)
    )  # fmt: skip
    with storage.create(layout.publication_record(number)) as file:
        file.write(json.dumps(asdict(publication), indent=1).encode())
    manifest = _make_visible(storage, manifest, publication)
    _clean(storage, manifest)
    return manifest


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
    """Write one file from staged tables, one of them in memory at a time."""
    rows = 0
    with job.storage.create(job.key) as file:
        writer = job.format.open(file, job.schema)
        for key in job.staged:
            table = load_staged(job.storage, key)
            rows += table.num_rows
            writer.write(table.cast(job.schema))
        writer.close()
    digest, size = hashlib.sha256(), 0
    with job.storage.open(job.key) as written:
        while chunk := written.read(2**20):
            digest.update(chunk)
            size += len(chunk)
    return PartRecord(name=job.key.rsplit("/", 1)[-1], rows=rows, bytes=size, sha256=digest.hexdigest())


def _make_visible(storage: Storage, manifest: Manifest, publication: Publication) -> Manifest:
    storage.promote(layout.publishing(publication.number), publication.name)
    manifest = Manifest(publications=(*manifest.publications, publication))
    manifest.save(storage)
    return manifest


def _clean(storage: Storage, manifest: Manifest) -> None:
    """Remove what is published from the staging folder, and unfinished files of runs that were killed."""
    published = manifest.unit_ids
    for key in storage.keys(layout.STAGED):
        if key.rsplit("/", 1)[-1].split(".", 1)[0] in published:
            storage.delete(key)
    storage.delete(layout.SCRATCH)
