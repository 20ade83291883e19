"""A Delta table, as far as an export needs it: its content, and commits that apply wholly or not at all.

Every commit sets numbers under names of ours (``txn`` actions of the protocol). The table keeps the last number of each
name, so a second try finds the commits that are done; and of two commits on top of one version, the second is refused.
The only module that imports ``deltalake``.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from pipeline.codec import redact
from pipeline.errors import ConfigError, OutputError, SinkError
from pipeline.sinks.delta_options import delta_schema

_S3 = {"key": "AWS_ACCESS_KEY_ID", "secret": "AWS_SECRET_ACCESS_KEY", "token": "AWS_SESSION_TOKEN",
       "endpoint_url": "AWS_ENDPOINT_URL", "region_name": "AWS_REGION"}  # fmt: skip
_REFUSED = ("delta.constraints.", "delta.columnMapping.mode", "delta.generationExpression")
"""Settings of a table that ask for a look at each row, or for other names in its files."""


class ConflictError(SinkError):
    """Somebody else has committed to the table since it was looked at. Look again."""


@dataclass(frozen=True, kw_only=True)
class DeltaFile:
    """A Parquet file in the table's folder. ``path``: below it."""

    path: str
    bytes: int
    rows: int


@dataclass(frozen=True, kw_only=True)
class DeltaCommit:
    """The changes of one commit.

    Attributes:
        numbers: name -> number that the table keeps under it; of one name they only grow.
        added: files that it adds.
        removed: paths of files that it removes.
        schema: columns of the files.
        note: key -> value, for the table's history.
    """

    numbers: Mapping[str, int]
    added: Sequence[DeltaFile]
    removed: Sequence[str]
    schema: pa.Schema
    note: Mapping[str, str]


class DeltaLake:
    """A table at a path or URL, which need not exist. Looked at again by :meth:`load`."""

    def __init__(self, url: str, options: Mapping[str, str]) -> None:
        """``options``: of the table's store, in the names of ``deltalake``."""
        self.url = url
        self._options = dict(options)
        self._library = _deltalake()
        self._table: Any = None

    def load(self) -> bool:
        """Look at the latest version; False if there is no table.

        Raises:
            OutputError: it cannot be read.
        """
        try:
            self._table = self._library.DeltaTable(self.url, storage_options=self._options or None)
        except self._library.exceptions.TableNotFoundError:
            return False
        except Exception as error:  # errors of its store have many kinds
            raise OutputError(
                redact(f"{self.url}: the Delta table cannot be read ({_first_line(error)}). Check URL and options.")
            ) from None
        return True

    @property
    def version(self) -> int:
        """The version that was looked at."""
        return int(self._table.version())

    @property
    def paths(self) -> frozenset[str]:
        """Paths of its files, below the table's folder."""
        return frozenset(pa.table(self._table.get_add_actions(flatten=True))["path"].to_pylist())

    def done(self, app: str) -> int | None:
        """The number of the last commit under a name; None if there was none."""
        found = self._table.transaction_version(app)
        return None if found is None else int(found)

    def create(self, schema: pa.Schema) -> None:
        """Make an empty table.

        Raises:
            ConflictError: it is there by now.
        """

        def act() -> None:
            self._library.DeltaTable.create(
                self.url, schema=delta_schema(schema), mode="error", storage_options=self._options or None
            )  # fmt: skip

        self._attempt(act)

    def missing_columns(self, schema: pa.Schema) -> list[str]:
        """Names of the columns that the table lacks.

        Raises:
            OutputError: the table cannot take files with these columns: a column is of another type, a column that they
                lack must not be null, or the table has partitions, constraints or mapped names.
        """
        table = {field.name: field for field in self._table.schema().fields}
        own = {field.name: field for field in self._library.Schema.from_arrow(delta_schema(schema)).fields}
        faults = [f"column {name!r} is {table[name].type} there, and {own[name].type} in the output"
                  for name in own if name in table and table[name].type != own[name].type]  # fmt: skip
        faults += [f"column {name!r} must not be null there, and the output lacks it"
                   for name, field in table.items() if name not in own and not field.nullable]  # fmt: skip
        metadata = self._table.metadata()
        if metadata.partition_columns:
            faults.append(f"it is partitioned by {metadata.partition_columns}")
        asked = [name for name, value in metadata.configuration.items()
                 if name.startswith(_REFUSED) and value != "none"]  # fmt: skip
        faults += [f"it has the setting {name!r}" for name in asked]
        if faults:
            raise OutputError(f"{self.url}: the Delta table cannot take the output's files: {'; '.join(faults)}. "
                              "Export to a table of its own.")  # fmt: skip
        return [name for name in own if name not in table]

    def add_columns(self, schema: pa.Schema, names: Sequence[str]) -> None:
        """Add columns, null in all rows that are there; a commit of its own.

        Raises:
            ConflictError: somebody else has committed meanwhile.
        """
        wanted = pa.schema([schema.field(name) for name in names])
        fields = self._library.Schema.from_arrow(delta_schema(wanted)).fields
        once = self._library.CommitProperties(max_commit_retries=0)
        self._attempt(lambda: self._table.alter.add_columns(fields, commit_properties=once))

    def commit(self, commit: DeltaCommit) -> None:
        """Apply a commit on top of the version that was looked at.

        Raises:
            ConflictError: somebody else has committed meanwhile.
        """
        from deltalake.transaction import AddAction, RemoveAction, Transaction

        now = int(time.time() * 1000)
        added = [
            AddAction(path=file.path, size=file.bytes, partition_values={}, modification_time=now, data_change=True,
                      stats=json.dumps({"numRecords": file.rows}))
            for file in commit.added
        ]  # fmt: skip
        removed = [RemoveAction(path, True, now) for path in commit.removed]
        properties = self._library.CommitProperties(
            custom_metadata=dict(commit.note),
            max_commit_retries=0,
            app_transactions=[Transaction(name, number) for name, number in commit.numbers.items()],
        )
        schema = delta_schema(commit.schema)
        self._attempt(
            lambda: self._table.create_write_transaction(
                [*added, *removed], "append", schema, commit_properties=properties
            )
        )

    def _attempt(self, act: Any) -> None:
        """Do something that commits once; a refusal because of another commit is a :class:`ConflictError`."""
        try:
            act()
        except self._library.exceptions.CommitFailedError as error:
            raise ConflictError(redact(f"{self.url}: {_first_line(error)}")) from None
        except Exception as error:  # errors of its store have many kinds
            text = _first_line(error)
            if "already exists" in text:
                raise ConflictError(redact(f"{self.url}: {text}")) from None
            raise SinkError(redact(f"{self.url}: not committed ({text}). The same command continues.")) from None


def table_options(
    url: str, options: Mapping[str, Any], given: Mapping[str, str] | None = None
) -> dict[str, str]:  # fmt: skip
    """Options of fsspec's file systems in the names of ``deltalake``, as far as these are those of S3.

    Args:
        url: of the table; a path needs no options.
        options: keyword arguments of fsspec's file system, references resolved.
        given: options by their names there; who gives them has thought of those without a translation.

    Raises:
        ConfigError: an option has no such name there, and none are given.
    """
    return {**_translated(url, options, strict=not given), **(given or {})}


def _translated(url: str, options: Mapping[str, Any], *, strict: bool) -> dict[str, str]:
    if not url.startswith(("s3://", "s3a://")):
        return {}
    flat = {**options, **options.get("client_kwargs", {})}
    flat.pop("client_kwargs", None)
    unknown = sorted(flat.keys() - _S3.keys())
    if unknown and strict:
        raise ConfigError(f"storage_options {unknown}: of these a Delta table takes {sorted(_S3)}. Give the others in "
                          "delta_options, by the names of deltalake.")  # fmt: skip
    found = {_S3[name]: str(value) for name, value in flat.items() if name in _S3 and value is not None}
    if found.get("AWS_ENDPOINT_URL", "").startswith("http://"):
        found["AWS_ALLOW_HTTP"] = "true"
    if "AWS_ENDPOINT_URL" in found:
        found.setdefault("AWS_REGION", "us-east-1")
    return found


def _deltalake() -> Any:
    try:
        import deltalake
        import deltalake.exceptions
    except ImportError:
        raise ConfigError("format='delta': needs the package deltalake. Install it: pip install 'wedlm-batch[delta]'."
                          ) from None  # fmt: skip
    return deltalake


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
