"""A Delta table as a sink: published files are copied into its folder, and named by one commit.

A kill during the copies leaves files that no version names, under names that hold their SHA-256; the next attempt uses
them. Revisions are ``txn`` actions of the protocol, of which the table keeps the last of each name.
The only module that imports ``deltalake``.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import pyarrow as pa

from pipeline import layout
from pipeline.codec import first_line
from pipeline.errors import ConfigError, OutputError
from pipeline.sinks.delta_options import check_delta_options
from pipeline.sinks.table_sink import (
    TableCommit,
    check_faults,
    check_replaced,
    committing,
    needing,
    plain_columns,
)
from pipeline.storage.open import open_storage
from pipeline.storage.urls import is_url, local_path, plain_name, with_secrets

_SCRATCH = "_wedlm_scratch"
_S3 = {"key": "AWS_ACCESS_KEY_ID", "secret": "AWS_SECRET_ACCESS_KEY", "token": "AWS_SESSION_TOKEN",
       "endpoint_url": "AWS_ENDPOINT_URL", "region_name": "AWS_REGION"}  # fmt: skip
_REFUSED = ("delta.constraints.", "delta.columnMapping.mode", "delta.generationExpression")
"""Settings of a table that ask for a look at each row, or for other names in its files."""
_NOT_IN_NAMES = " ,;{}()\n\t="
"""Characters that column names may have only where a table maps them, which is not done here."""


def open_sink(
    to: str | os.PathLike[str], storage_options: Mapping[str, Any], table_options: Mapping[str, Any]
) -> DeltaSink:
    """The table in a folder or at a URL; ``table_options``: further options of its store, in ``deltalake``'s names.

    Raises:
        ConfigError: ``deltalake`` is not installed, or an option is unknown.
    """
    name = plain_name(to)
    url = name if is_url(name) else str(local_path(name))
    check_delta_options(url, table_options)
    given = {name: str(value) for name, value in with_secrets(table_options, "table_options").items()}
    own = with_secrets(storage_options) if is_url(url) else {}
    return DeltaSink(url, store_options(url, own, given), storage_options)


class DeltaSink:
    """A table at a path or URL; see :class:`~pipeline.sinks.table_sink.TableSink`."""

    def __init__(self, url: str, options: Mapping[str, str], storage_options: Mapping[str, Any]) -> None:
        """``options``: of the table's store, in the names of ``deltalake``; ``storage_options``: in those of fsspec."""
        self.url = url
        self.files = open_storage(url, _SCRATCH, storage_options)
        self._options = dict(options)
        with needing("deltalake", "delta"):
            import deltalake.exceptions
            import deltalake.transaction
        self._library: Any = deltalake
        self._committing = partial(committing, url, (deltalake.exceptions.CommitFailedError,))
        self._table: Any = None

    @property
    def version(self) -> int:
        """The version that was looked at; 0 if there is no table."""
        return 0 if self._table is None else int(self._table.version())

    def look(self) -> None:
        """Read the latest version."""
        self._table = None
        try:
            self._table = self._library.DeltaTable(self.url, storage_options=self._options or None)
        except self._library.exceptions.TableNotFoundError:
            return
        except Exception as error:  # errors of its store have many kinds
            raise OutputError(
                f"{self.url}: the Delta table cannot be read ({first_line(error)}). Check URL and options."
            ) from None

    def is_empty(self) -> bool:
        """Whether it has no file."""
        return self._table is None or not self._paths()

    def done(self, run: str, positions: Sequence[int]) -> dict[int, int]:
        """The revisions under its names for positions."""
        if self._table is None:
            return {}
        found = {position: self._table.transaction_version(_place(run, position)) for position in positions}
        return {position: int(revision) for position, revision in found.items() if revision is not None}

    def fit(self, schema: pa.Schema) -> bool:
        """Make the table or add columns, each a commit of its own."""
        columns = plain_columns(schema, "delta", _NOT_IN_NAMES)
        if self._table is None:
            with self._committing():
                self._library.DeltaTable.create(
                    self.url, schema=columns, mode="error", storage_options=self._options or None
                )
            return True
        missing = self._missing(columns)
        if missing:
            fields = self._library.Schema.from_arrow(pa.schema([columns.field(name) for name in missing])).fields
            once = self._library.CommitProperties(max_commit_retries=0)
            with self._committing():
                self._table.alter.add_columns(fields, commit_properties=once)
        return bool(missing)

    def commit(self, change: TableCommit) -> None:
        """Copy the files, then name them, and no longer those that they replace."""
        if change.replaced:
            check_replaced(change, self._paths(), self.url)
        sizes = self.files.sizes(f"{change.run}/{change.name}")
        for file in change.files:
            if sizes.get(file.name) != file.bytes:
                with self.files.create(file.name) as copy:  # it appears whole, or not at all
                    file.copy_to(copy)
        transaction, now = self._library.transaction, int(time.time() * 1000)
        added = [
            transaction.AddAction(path=file.name, size=file.bytes, partition_values={}, modification_time=now,
                                  data_change=True, stats=json.dumps({"numRecords": file.rows}))
            for file in change.files
        ]  # fmt: skip
        removed = [transaction.RemoveAction(path, True, now) for path in change.replaced]
        properties = self._library.CommitProperties(
            custom_metadata={"wedlm.publication": change.name},
            max_commit_retries=0,
            app_transactions=[transaction.Transaction(_place(change.run, change.position), change.revision)],
        )
        with self._committing():
            self._table.create_write_transaction(
                [*added, *removed], "append", plain_columns(change.schema, "delta"), commit_properties=properties
            )

    def _paths(self) -> frozenset[str]:
        """Paths of its files, below its folder."""
        return frozenset(pa.table(self._table.get_add_actions(flatten=True))["path"].to_pylist())

    def _missing(self, schema: pa.Schema) -> list[str]:
        """Names of the columns that the table lacks.

        Raises:
            OutputError: a column is of another type, a column that the output lacks must not be null, or the table has
                partitions, constraints or mapped names.
        """
        table = {field.name: field for field in self._table.schema().fields}
        own = {field.name: field for field in self._library.Schema.from_arrow(schema).fields}
        faults = [f"column {name!r} is {table[name].type} there, and {own[name].type} in the output"
                  for name in own if name in table and table[name].type != own[name].type]  # fmt: skip
        faults += [f"column {name!r} must not be null there, and the output lacks it"
                   for name, field in table.items() if name not in own and not field.nullable]  # fmt: skip
        metadata = self._table.metadata()
        if metadata.partition_columns:
            faults.append(f"it is partitioned by {metadata.partition_columns}")
        asked = [name for name, value in metadata.configuration.items()
                 if name.startswith(_REFUSED) and value != "none"]  # fmt: skip
        check_faults([*faults, *(f"it has the setting {name!r}" for name in asked)], self.url)
        return [name for name in own if name not in table]


def _place(run: str, position: int) -> str:
    """The table's name for a position."""
    return f"{run}/{layout.publication(position)}"


def store_options(url: str, options: Mapping[str, Any], given: Mapping[str, str]) -> dict[str, str]:
    """Options of fsspec's file system of S3 in the names of ``deltalake``, and those that are given by these names.

    Raises:
        ConfigError: an option has no such name there, and none are given.
    """
    if not url.startswith(("s3://", "s3a://")):
        return dict(given)
    flat = {**options, **options.get("client_kwargs", {})}
    flat.pop("client_kwargs", None)
    unknown = sorted(flat.keys() - _S3.keys())
    if unknown and not given:
        raise ConfigError(f"storage_options {unknown}: of these a Delta table takes {sorted(_S3)}. Give the others in "
                          "table_options, by the names of deltalake.")  # fmt: skip
    found = {_S3[name]: str(value) for name, value in flat.items() if name in _S3 and value is not None}
    if found.get("AWS_ENDPOINT_URL", "").startswith("http://"):
        found["AWS_ALLOW_HTTP"] = "true"
    if "AWS_ENDPOINT_URL" in found:
        found.setdefault("AWS_REGION", "us-east-1")
    return {**found, **given}
