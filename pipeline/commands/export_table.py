"""``export_table``: the publications of an output in a table of another system, one commit each, exactly once.

For each publication: (1) the table is made, or gains columns that it lacks; (2) one commit adds the rows, removes those
of the replaced publication, and keeps the revision under the output's name. After each step, kill or conflict the
table's state is read again, so a commit that is done is found, and of two processes at once one commits.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from pipeline import layout
from pipeline.codec import redact
from pipeline.commands.published_output import PublishedOutput, open_published
from pipeline.commit.committed_rows import PublishedPart, published_rows
from pipeline.commit.manifest import Publication
from pipeline.commit.part_files import PartRecord
from pipeline.commit.repair import published
from pipeline.errors import ConfigError, OutputError, SinkError
from pipeline.sinks.stored_rows import SupportsWrite, check_object
from pipeline.sinks.table_sink import ConflictError, TableCommit, TableFile, TableSink, open_sink
from pipeline.storage.open import open_storage
from pipeline.storage.urls import lies_inside, plain_name

_ATTEMPTS = 20


@dataclass(frozen=True, kw_only=True)
class TableExported:
    """The result of an export.

    Attributes:
        table: its path, URL or name; credentials are masked.
        version: of the table that has all publications: Delta's version, Iceberg's snapshot id.
        committed: publications that this call committed, by name.
        rows: rows of these.
    """

    table: str
    version: int
    committed: tuple[str, ...]
    rows: int


def export_table(
    output: str | os.PathLike[str],
    to: str | os.PathLike[str] | TableSink,
    *,
    format: str = "delta",
    append: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    to_storage_options: Mapping[str, Any] | None = None,
    table_options: Mapping[str, Any] | None = None,
) -> TableExported:
    """Bring a table up to the publications of an output. Call it after each run, or as often as you like.

    Args:
        output: the folder or URL of a run with ``output_format="parquet"``.
        to: folder or URL of a Delta table, or ``NAMESPACE.TABLE`` of Iceberg; it is made if it is not there. Or a sink
            of your own, which follows :class:`~pipeline.sinks.table_sink.TableSink`.
        format: "delta" or "iceberg".
        append: add the rows to a table that holds rows of others already.
        storage_options: keyword arguments of the output's file system.
        to_storage_options: of a Delta table's, in the same names; None takes ``storage_options``.
        table_options: further options of a Delta table's store, in the names of ``deltalake``; or properties of
            Iceberg's catalog, as ``pyiceberg.catalog.load_catalog`` takes them, and its ``name``. Secrets by reference.

    Raises:
        ConfigError: the format's package is not installed, an option is unknown, or a column that it cannot hold.
        OutputError: nothing is published there, or the table is not one that can take it.
        DamagedError: a published file is missing or not as it was published.
        SinkError: the table could not be written; the same call continues.
    """
    if isinstance(to, (str, os.PathLike)):
        name = plain_name(to)
        if format == "delta" and lies_inside(name, output):
            raise ConfigError(f"to={redact(name)!r} lies inside the output, which readers list. Write elsewhere.")
        options = storage_options if to_storage_options is None else to_storage_options
        to = open_sink(format, name, options or {}, table_options or {})
    committed = _bring_up(open_published(open_storage(output, layout.SCRATCH, storage_options)), to, append=append)
    return TableExported(
        table=redact(to.url),
        version=to.version,
        committed=tuple(publication.name for publication in committed),
        rows=sum(part.rows for publication in committed for part in publication.parts),
    )


def _bring_up(found: PublishedOutput, sink: TableSink, *, append: bool) -> list[Publication]:
    """Commit all visible publications that the table does not have; returns them."""
    run = _run_name(found)
    committed: list[Publication] = []
    tries = 0
    while change := _next(found, run, sink, append=append):
        if change.position in {own.position for own in committed}:
            raise SinkError(f"{sink.url}: done() lacks {change.name} after its commit. Keep the revision in the "
                            "transaction of the rows.")  # fmt: skip
        tries, reason = tries + 1, f"{sink.url}: fit() is never False. It is, once the table has all columns."
        try:
            # After a commit of its own: another may have come in between.
            if not sink.fit(found.schema):
                sink.commit(change)
                committed += [own for own in found.manifest.publications if own.position == change.position]
                tries = 0
        except ConflictError as error:
            reason = f"{error}. Others commit all the time; the same command continues."
        if tries == _ATTEMPTS:
            raise SinkError(reason)
    return committed


def _run_name(found: PublishedOutput) -> str:
    """The name of an output in tables: that of its first publication, wherever it is moved to.

    Raises:
        ConfigError: its files are not Parquet.
    """
    first = min(found.manifest.decided, key=lambda publication: publication.number)
    if first.format != "parquet":
        raise ConfigError(f"output_format={first.format!r}: tables take Parquet files. Generate to "
                          'output_format="parquet".')  # fmt: skip
    named = f"{found.state.fingerprint_hash}\x1f{found.state.begun}\x1f{first.number}\x1f{first.units.sha256}"
    return f"wedlm-{hashlib.blake2b(named.encode(), digest_size=8).hexdigest()}"


def _next(found: PublishedOutput, run: str, sink: TableSink, *, append: bool) -> TableCommit | None:
    """The first visible publication, by number, that the table does not have; None if it has all.

    Raises:
        OutputError: it holds rows of others, and ``append`` is False.
    """
    sink.look()
    manifest = found.manifest
    there = sink.done(run, [publication.position for publication in manifest.publications])
    if not there and not append and not sink.is_empty():
        raise OutputError(
            f"{sink.url}: the table holds rows of other writers, or of this output before mode='new'. Export to "
            "another table, or add the rows to this one with append."
        )
    pending = [p for p in manifest.publications if there.get(p.position, -1) < p.revision]
    if not pending:
        return None
    publication = min(pending, key=lambda publication: publication.number)
    replaces = there.get(publication.position)
    before = [p for p in manifest.decided if (p.position, p.revision) == (publication.position, replaces)]
    return TableCommit(
        run=run,
        position=publication.position,
        revision=publication.revision,
        replaces=replaces,
        schema=publication.schema,
        files=list(map(_file, _names(run, publication), publication.parts, published_rows(found.storage, publication))),
        replaced=frozenset(name for own in before for name in _names(run, own)),
    )


def _file(name: str, record: PartRecord, part: PublishedPart) -> TableFile:
    def copy_to(stream: SupportsWrite | None) -> None:
        with published(part.storage, "Run again with repair, then export."):
            check_object(part.storage, part.key, record.sha256, stream)

    def tables() -> Iterator[pa.Table]:
        copy_to(None)
        yield from part.tables()

    return TableFile(name=name, bytes=record.bytes, rows=record.rows, copy_to=copy_to, tables=tables)


def _names(run: str, publication: Publication) -> list[str]:
    """The names of a publication's files in tables: the same bytes have the same name."""
    names = ((*part.name.partition("."), part.sha256[:16]) for part in publication.parts)
    return [f"{run}/{publication.name}/{stem}-{digest}.{suffix}" for stem, _, suffix, digest in names]
