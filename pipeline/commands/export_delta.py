"""``export_delta``: the publications of an output in a Delta table, one commit each, exactly once.

For each publication: (1) its Parquet files are copied into the table's folder, under names that hold their SHA-256; (2)
columns that the table lacks are added; (3) one commit names the new files, removes those of the replaced publication,
and notes publication and revision under the output's name. A kill in (1) leaves files that no version names, which the
next attempt uses. A kill after (3) is found by that note. Two processes at once copy the same bytes to the same names,
and the table refuses the second commit of a number.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pipeline import layout
from pipeline.codec import redact
from pipeline.commit.manifest import Manifest, Publication
from pipeline.commit.repair import published
from pipeline.commit.run_record import RunState
from pipeline.errors import ConfigError, OutputError, SinkError
from pipeline.sinks.delta_options import check_columns, check_delta_options
from pipeline.sinks.delta_table import ConflictError, DeltaCommit, DeltaFile, DeltaLake, table_options
from pipeline.sinks.stored_rows import check_object
from pipeline.storage.open import open_storage
from pipeline.storage.protocol import Storage
from pipeline.storage.urls import is_url, lies_inside, local_path, plain_name, with_secrets

_SCRATCH = "_wedlm_scratch"
_ATTEMPTS = 20


@dataclass(frozen=True, kw_only=True)
class DeltaExported:
    """The result of an export.

    Attributes:
        table: path or URL of the table; credentials are masked.
        version: of the table that has all publications.
        committed: publications that this call committed, by name.
        rows: rows of these.
    """

    table: str
    version: int
    committed: tuple[str, ...]
    rows: int


def export_delta(
    output: str | os.PathLike[str],
    table: str | os.PathLike[str],
    *,
    append: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    table_storage_options: Mapping[str, Any] | None = None,
    delta_options: Mapping[str, Any] | None = None,
) -> DeltaExported:
    """Bring a Delta table up to the publications of an output. Call it after each run, or as often as you like.

    Args:
        output: the folder or URL of a run with ``output_format="parquet"``.
        table: folder or URL of the table, which is made if it is not there.
        append: add the rows to a table that holds rows of others already.
        storage_options: keyword arguments of the output's file system.
        table_storage_options: of the table's, in the same names; None takes ``storage_options``.
        delta_options: further options of the table's store, in the names of ``deltalake``; secrets by reference, too.

    Raises:
        ConfigError: ``deltalake`` is not installed, an option is unknown, or a column that a Delta table cannot hold.
        OutputError: nothing is published there, or the table is not one that can take it.
        DamagedError: a published file is missing or not as it was published.
        SinkError: the table could not be written; the same call continues.
    """
    name = plain_name(table)
    if lies_inside(name, output):
        raise ConfigError(f"table={redact(name)!r} lies inside the output, which readers list. Write elsewhere.")
    url = name if is_url(name) else str(local_path(name))
    options = (storage_options if table_storage_options is None else table_storage_options) or {}
    check_delta_options(url, delta_options or {})
    given = {name: str(value) for name, value in with_secrets(delta_options or {}, "delta_options").items()}
    lake = DeltaLake(url, table_options(url, with_secrets(options) if is_url(url) else {}, given))
    source = open_storage(output, layout.SCRATCH, storage_options)
    return export_to(source, lake, open_storage(url, _SCRATCH, options), append=append)


def export_to(source: Storage, lake: DeltaLake, files: Storage, *, append: bool = False) -> DeltaExported:
    """:func:`export_delta` between an output's storage, a table, and the storage of the table's folder.

    Raises:
        ConfigError, OutputError, DamagedError, SinkError: see :func:`export_delta`.
    """
    manifest, app = _published(source)
    committed: list[Publication] = []
    conflicts = 0
    while True:
        try:
            # Looked at again for each commit: another process may have made it meanwhile.
            pending = _pending(manifest, lake, app, append=append)
            if not pending:
                break
            _commit(pending[0], manifest, source, lake, files, app)
            committed.append(pending[0])
            conflicts = 0
        except ConflictError as error:
            conflicts += 1
            if conflicts == _ATTEMPTS:
                raise SinkError(f"{error}. Others commit all the time; the same command continues.") from None
    return DeltaExported(
        table=redact(lake.url),
        version=lake.version,
        committed=tuple(publication.name for publication in committed),
        rows=sum(part.rows for publication in committed for part in publication.parts),
    )


def _published(source: Storage) -> tuple[Manifest, str]:
    """The publications, and the name of the output in tables: that of its first publication, wherever it is moved to.

    Raises:
        ConfigError: they are not Parquet, or a column is nothing for Delta.
        OutputError: there are none.
    """
    manifest, state = Manifest.load(source), RunState.load(source)
    if state is None or not manifest.decided:
        raise OutputError(f"{source.url}: nothing is published there. Run `wedlm-batch generate` to its end first.")
    first = min(manifest.decided, key=lambda publication: publication.number)
    if first.format != "parquet":
        raise ConfigError(f"output_format={first.format!r}: a Delta table is of Parquet files. Generate to "
                          'output_format="parquet".')  # fmt: skip
    check_columns(manifest.widest.schema)
    named = f"{state.fingerprint_hash}\x1f{state.begun}\x1f{first.number}\x1f{first.units.sha256}"
    return manifest, f"wedlm-{hashlib.blake2b(named.encode(), digest_size=8).hexdigest()}"


def _pending(manifest: Manifest, lake: DeltaLake, app: str, *, append: bool) -> list[Publication]:
    """The visible publications that the table does not have, by number; the table is made if it is not there.

    Raises:
        ConflictError: somebody else makes it at the same time.
        OutputError: it holds rows of others, and ``append`` is False.
    """
    if not lake.load():
        lake.create(manifest.publications[0].schema)
        lake.load()
    if lake.done(app) is None and not append and (there := lake.paths):
        raise OutputError(
            f"{redact(lake.url)}: the Delta table holds rows of other writers ({min(there)}, ...), or of this "
            "output before mode='new'. Export to another table, or add the rows to this one with append."
        )
    pending = [p for p in manifest.publications if _revision_there(lake, app, p) < p.revision]
    return sorted(pending, key=lambda publication: publication.number)


def _place(app: str, publication: Publication) -> str:
    """The table's key for the revision of a publication."""
    return f"{app}/{layout.publication(publication.position)}"


def _revision_there(lake: DeltaLake, app: str, publication: Publication) -> int:
    """Which revision of a publication the table has; -1 if none."""
    found = lake.done(_place(app, publication))
    return -1 if found is None else found


def _commit(
    publication: Publication, manifest: Manifest, source: Storage, lake: DeltaLake, files: Storage, app: str
) -> None:
    """Copy a publication's files and commit them.

    Raises:
        ConflictError: somebody else has committed meanwhile.
        DamagedError: a published file is missing or not as it was published.
        OutputError: files of the publication that it takes the place of are not in the table any more.
    """
    if missing := lake.missing_columns(publication.schema):
        lake.add_columns(publication.schema, missing)
        lake.load()
    there = _revision_there(lake, app, publication)
    removed = [
        path
        for other in manifest.decided
        if (other.position, other.revision) == (publication.position, there)
        for path in _paths(app, other)
    ]
    if gone := set(removed) - lake.paths:
        raise OutputError(
            f"{redact(lake.url)}: {publication.name} takes the place of files that are not in the Delta table any more "
            f"({min(gone)}, ...; OPTIMIZE, DELETE or another writer has rewritten them). Export to a new table."
        )
    sizes = files.sizes(f"{app}/{publication.name}")
    added = []
    for part, path in zip(publication.parts, _paths(app, publication), strict=True):
        if sizes.get(path) != part.bytes:
            _copy(source, f"{publication.name}/{part.name}", part.sha256, files, path)
        added.append(DeltaFile(path=path, bytes=part.bytes, rows=part.rows))
    lake.commit(
        DeltaCommit(
            numbers={app: publication.number, _place(app, publication): publication.revision},
            added=added,
            removed=removed,
            schema=publication.schema,
            note={"wedlm.publication": publication.name, "wedlm.number": str(publication.number)},
        )
    )


def _paths(app: str, publication: Publication) -> list[str]:
    """Where the table has a publication's files: the same bytes have the same name."""
    names = ((*part.name.partition("."), part.sha256[:16]) for part in publication.parts)
    return [f"{app}/{publication.name}/{stem}-{digest}.{suffix}" for stem, _, suffix, digest in names]


def _copy(source: Storage, key: str, sha256: str, files: Storage, path: str) -> None:
    """Copy a file; it appears whole, and only if it equals the published one."""
    with files.create(path) as copy, published(source, "Run again with repair, then export."):
        check_object(source, key, sha256, copy)
