"""Reads published part files; a file that is not as it was published is an error that names it."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from pipeline import layout
from pipeline.commit.manifest import Publication
from pipeline.commit.repair import reading_error
from pipeline.sinks import FORMATS
from pipeline.storage.damage import Damage
from pipeline.storage.protocol import Storage
from pipeline.storage.urls import join


@dataclass(frozen=True, kw_only=True)
class PublishedPart:
    """A published file. Picklable.

    Attributes:
        storage: the output.
        key: its key there.
        format: see :data:`pipeline.sinks.FORMATS`.
        schema: of the rows that are read from it.
        lacks: whether the file lacks columns of ``schema``, which the table gained later; they are null.
    """

    storage: Storage
    key: str
    format: str
    schema: pa.Schema
    lacks: bool = False

    @property
    def path(self) -> str:
        """Its path or URL."""
        return join(self.storage.url, self.key)

    def tables(self) -> Iterator[pa.Table]:
        """Its rows, as tables of bounded size.

        Raises:
            DamagedError: the file is missing or not as it was published.
            OutputError: a run replaced it during the read.
        """
        try:
            with self.storage.open(self.key) as file:
                yield from FORMATS[self.format].tables(file, self.schema)
        except (pa.ArrowException, OSError, ValueError, KeyError) as error:
            if isinstance(error, OSError) and error.errno not in (None, errno.ENOENT, errno.EIO):
                raise  # the store does not answer: no damage
            fault = "missing" if isinstance(error, FileNotFoundError) else f"not as it was published ({error})"
            raise reading_error(self.storage, [Damage(key=self.key, fault=fault)]) from error


def published_rows(storage: Storage, publication: Publication) -> list[PublishedPart]:
    """The parts of a publication, in input order."""
    return [
        PublishedPart(
            storage=storage,
            key=f"{publication.name}/{part.name}",
            format=publication.format,
            schema=publication.schema,
        )
        for part in publication.parts
    ]


def published_dead_letters(storage: Storage, publication: Publication) -> list[PublishedPart]:
    """The dead-letter file of a publication, as a list of at most one; empty if no row failed."""
    if publication.dead_letters is None:
        return []
    key = layout.published_dead_letters(publication.dead_letters.name)
    return [PublishedPart(storage=storage, key=key, format=publication.format, schema=publication.dead_schema)]
