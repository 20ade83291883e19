"""An Iceberg table as a sink: published files are copied to its data folder, and named by one snapshot.

The files are added as they are; readers find columns by name mapping, as they have no field ids. Names of copies are
never used twice: a kill or a lost race leaves copies that no snapshot names, for ``remove_orphan_files`` of Iceberg.

Revisions are one property of the table for each run, a JSON list by position, set in the transaction of the snapshot:
it outlives expired snapshots. The only module that imports ``pyiceberg``.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import pyarrow as pa

from pipeline.codec import first_line, keep_url_credentials, redact
from pipeline.errors import ConfigError, OutputError
from pipeline.sinks.table_sink import (
    TableCommit,
    TableFile,
    check_faults,
    check_replaced,
    committing,
    needing,
    plain_columns,
)
from pipeline.storage.urls import with_secrets

_MAPPING = "schema.name-mapping.default"
_COPY = f"-{uuid.UUID(int=0).hex}.parquet"
"""The form of the end of a copy's name."""


def open_sink(
    to: str | os.PathLike[str], storage_options: Mapping[str, Any], table_options: Mapping[str, Any]
) -> IcebergSink:
    """The table ``NAMESPACE.TABLE`` of a catalog with these ``table_options``, those of its store included.

    Raises:
        ConfigError: ``pyiceberg`` or the package of the catalog's kind is not installed, or the catalog does not open.
    """
    name = os.fspath(to)
    if not all(name.split(".")) or "." not in name or "/" in name:
        raise ConfigError(f"to={redact(name)!r}: no name of an Iceberg table. Write NAMESPACE.TABLE.")
    with needing("pyiceberg", "iceberg"):
        import pyiceberg.catalog  # noqa: F401
    given = with_secrets(table_options, "table_options")
    properties = {key: str(value) for key, value in given.items() if value is not None}
    keep_url_credentials(properties.get("uri"))
    try:
        catalog = _catalog(properties.pop("name", None), properties)
    except Exception as error:  # catalogs have many kinds
        raise ConfigError(
            f"to={name!r}: the catalog does not open ({first_line(error)}). Give its properties in table_options, as "
            "pyiceberg's load_catalog takes them."
        ) from None
    return IcebergSink(name, catalog)


def _catalog(name: str | None, properties: Mapping[str, str], tries: int = 3) -> Any:
    """The catalog; tried again if another process makes the catalog's own tables at the same time."""
    from pyiceberg.catalog import load_catalog

    try:
        return load_catalog(name, **properties)
    except Exception as error:  # databases have many kinds
        if tries == 0 or "already exists" not in str(error):
            raise
        return _catalog(name, properties, tries - 1)


class IcebergSink:
    """A table of a catalog; see :class:`~pipeline.sinks.table_sink.TableSink`."""

    def __init__(self, name: str, catalog: Any) -> None:
        import pyiceberg.exceptions
        import pyiceberg.io.pyarrow
        import pyiceberg.manifest

        self.url = name
        self._catalog = catalog
        self._library: Any = pyiceberg
        self._committing = partial(committing, name, (pyiceberg.exceptions.CommitFailedException,))
        self._table: Any = None
        self._copies: dict[tuple[str, str], str] = {}

    @property
    def version(self) -> int:
        """Id of the snapshot that was looked at; 0 if there is none."""
        snapshot = None if self._table is None else self._table.current_snapshot()
        return 0 if snapshot is None else int(snapshot.snapshot_id)

    def look(self) -> None:
        """Read the table's metadata."""
        self._table = None
        try:
            self._table = self._catalog.load_table(self.url)
        except self._library.exceptions.NoSuchTableError:
            return
        except Exception as error:  # catalogs and stores have many kinds
            raise OutputError(
                f"{self.url}: the Iceberg table cannot be read ({first_line(error)}). Check catalog and options."
            ) from None
        # Only in this copy: a commit that pyiceberg repeats on top of another may be one that the other has made.
        self._table.metadata.properties["commit.retry.num-retries"] = "0"

    def is_empty(self) -> bool:
        """Whether its snapshot has no file."""
        return not any(manifest.has_added_files() or manifest.has_existing_files() for manifest in self._manifests())

    def done(self, run: str, positions: Sequence[int]) -> dict[int, int]:
        """The revisions in the run's property."""
        kept = dict(enumerate(self._kept(run)))
        return {position: revision for position in positions if (revision := kept.get(position)) is not None}

    def fit(self, schema: pa.Schema) -> bool:
        """Make the table and its namespace, or add columns in one commit."""
        columns = plain_columns(schema, "iceberg")
        if self._table is None:
            with self._committing():
                self._create(columns)
            return True
        missing = self._missing(columns, schema)
        if missing:
            with self._committing(), self._table.update_schema() as update:
                update.union_by_name(pa.schema(missing))
        return bool(missing)

    def commit(self, change: TableCommit) -> None:
        """Copy the files, then replace files and set the property in one transaction."""
        with self._committing():
            removed = self._replaced(change)
            copies = [self._copied(file) for file in change.files]
            transaction = self._table.transaction()
            transaction.set_properties(self._properties(change))
            update = transaction.update_snapshot(snapshot_properties={"wedlm.publication": change.name})
            described, metadata = self._library.io.pyarrow.parquet_file_to_data_file, transaction.table_metadata
            with update.overwrite() if removed else update.fast_append() as snapshot:
                for file in removed:
                    snapshot.delete_data_file(file)
                for place in copies:
                    snapshot.append_data_file(described(self._table.io, metadata, place))
            transaction.commit_transaction()
        self._copies.clear()

    def _create(self, schema: pa.Schema) -> None:
        namespace = self.url.rpartition(".")[0]
        try:
            self._catalog.create_namespace_if_not_exists(namespace)
        except Exception:  # not allowed, or another process makes it at the same time
            if not self._catalog.namespace_exists(namespace):
                raise
        self._catalog.create_table(self.url, schema=schema)

    def _missing(self, plain: pa.Schema, schema: pa.Schema) -> list[pa.Field]:
        """The columns that the table lacks.

        Raises:
            OutputError: a column is of another type, was renamed or must not be null, or the table has partitions.
        """
        table = {field.name: field for field in self._table.schema().fields}
        faults = [self._fault(table.get(field.name), field, schema.field(field.name)) for field in plain]
        faults += [f"column {name!r} must not be null there, and the output lacks it"
                   for name, field in table.items() if name not in plain.names and field.required]  # fmt: skip
        if not self._table.spec().is_unpartitioned():
            faults.append(f"it is partitioned by {[field.name for field in self._table.spec().fields]}")
        check_faults([fault for fault in faults if fault], self.url)
        return [field for field in plain if field.name not in table]

    def _fault(self, there: Any, field: pa.Field, own: pa.Field) -> str:
        """The reason why the table cannot take a column; empty if it can."""
        mapping = self._table.name_mapping()
        if there is None:
            known = mapping is not None and any(field.name in entry.names for entry in mapping)
            return f"column {field.name!r} was renamed or dropped there" if known else ""
        if there.required and own.nullable:
            return f"column {field.name!r} must not be null there"
        try:
            wanted = self._library.io.pyarrow.pyarrow_to_schema(
                pa.schema([field]), mapping or self._table.schema().name_mapping
            ).fields[0]
        except ValueError:  # it has a field that the table lacks
            wanted = None
        if wanted is None or (wanted.field_id, wanted.field_type) != (there.field_id, there.field_type):
            return f"column {field.name!r} is {there.field_type} there, and {field.type} in the output"
        return ""

    def _kept(self, run: str) -> list[int | None]:
        kept: list[int | None] = [] if self._table is None else json.loads(self._table.properties.get(run, "[]"))
        return kept

    def _properties(self, change: TableCommit) -> dict[str, str]:
        """The run's property after a commit, and a name mapping if the table has none."""
        kept = self._kept(change.run)
        kept += [None] * (change.position + 1 - len(kept))
        kept[change.position] = change.revision
        mapped = {} if self._table.name_mapping() else {_MAPPING: self._table.schema().name_mapping.model_dump_json()}
        return {change.run: json.dumps(kept, separators=(",", ":")), **mapped}

    def _manifests(self) -> Sequence[Any]:
        snapshot = None if self._table is None else self._table.current_snapshot()
        return [] if snapshot is None else snapshot.manifests(self._table.io)

    def _replaced(self, change: TableCommit) -> list[Any]:
        """The table's entries of the files whose place a commit takes.

        Raises:
            OutputError: they are not all there, or rows of the table were deleted without rewriting its files.
        """
        found, deletes = {}, False
        for manifest in self._manifests() if change.replaced else ():
            deletes |= manifest.content == self._library.manifest.ManifestContent.DELETES
            for entry in manifest.fetch_manifest_entry(self._table.io):
                path = entry.data_file.file_path
                name = f"{path[path.rfind(change.run) : -len(_COPY)]}.parquet"
                if name in change.replaced:
                    found[name] = entry.data_file
        check_replaced(change, () if deletes else found, self.url)
        return list(found.values())

    def _copied(self, file: TableFile) -> str:
        """The place of a copy, which this sink has made if it is not there."""
        key = (str(self._table.metadata.table_uuid), file.name)
        if key not in self._copies:
            name = f"{file.name.removesuffix('.parquet')}-{uuid.uuid4().hex}.parquet"
            place = self._table.location_provider().new_data_location(name)
            with self._table.io.new_output(place).create() as copy:
                file.copy_to(copy)
            self._copies[key] = place
        return self._copies[key]
