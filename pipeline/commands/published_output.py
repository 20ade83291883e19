"""The published files of an output, for commands that read them: filter, export and push."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from pipeline.commit.committed_rows import published_dead_letters, published_rows
from pipeline.commit.manifest import Manifest
from pipeline.commit.repair import reading_error
from pipeline.commit.run_record import RunState
from pipeline.errors import OutputError
from pipeline.sinks.stored_rows import check_object
from pipeline.storage.damage import FoundDamageError
from pipeline.storage.protocol import Storage


@dataclass(frozen=True, kw_only=True)
class PublishedOutput:
    """The published files of an output at one moment.

    Attributes:
        storage: where it lies.
        state: its run record.
        manifest: its publications.
    """

    storage: Storage
    state: RunState
    manifest: Manifest

    @property
    def prefix(self) -> str:
        """Prefix of its result columns."""
        prefix: str = self.state.fingerprint["column_prefix"]
        return prefix

    @property
    def schema(self) -> pa.Schema:
        """Of its rows."""
        return self.manifest.widest.schema

    @property
    def format(self) -> str:
        """Of its files."""
        return self.manifest.publications[0].format

    @property
    def identity(self) -> dict[str, Any]:
        """Which publications these are, and a hash of all their files; another content is another identity."""
        digest = hashlib.sha256()
        for key, part in self.manifest.parts.items():
            digest.update(f"{key}/{part.sha256}\n".encode())
        return {
            "source.publications": [publication.name for publication in self.manifest.publications],
            "source.rows": self.manifest.rows,
            "source.sha256": digest.hexdigest(),
        }

    @property
    def bytes_per_row(self) -> float:
        """Of its files, on average; at least 1."""
        return max(1.0, sum(part.bytes for part in self.manifest.parts.values()) / max(1, self.manifest.rows))

    def check(self) -> None:
        """Check every published file against its checksum.

        Raises:
            DamagedError: one is missing or damaged.
            OutputError: a run replaced one during the read.
        """
        for key, part in self.manifest.parts.items():
            try:
                check_object(self.storage, key, part.sha256)
            except FoundDamageError as error:
                raise reading_error(self.storage, error.damages) from error

    def tables(self) -> Iterator[pa.Table]:
        """Its rows, in order."""
        schema = self.schema
        for publication in self.manifest.publications:
            for part in published_rows(self.storage, publication):
                yield from replace(part, schema=schema, lacks=len(part.schema) < len(schema)).tables()


def open_published(storage: Storage) -> PublishedOutput:
    """The published files of an output.

    Raises:
        OutputError: no run was begun there, or nothing is published.
    """
    state = RunState.load_begun(storage)
    manifest = Manifest.load(storage)
    if not manifest.publications:
        raise OutputError(f"{storage.url}: nothing is published there. Run the same command to its end first.")
    return PublishedOutput(storage=storage, state=state, manifest=manifest)


def dropped_by_reason(storage: Storage, manifest: Manifest, prefix: str) -> dict[str, int]:
    """How many rows a filter dropped, by reason, the most frequent first; from its notes."""
    counts: Counter[str] = Counter()
    for publication in manifest.publications:
        for part in published_dead_letters(storage, publication):
            for table in part.tables():
                counts.update(table[f"{prefix}reason"].to_pylist())
    return dict(counts.most_common())
