"""The record of a run: what it was begun with, so that a continuation is the same run or a clear error."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from pipeline import layout
from pipeline.errors import FingerprintError, OutputError
from pipeline.schema import SCHEMA_VERSION
from pipeline.storage import Storage

__all__ = ["RunState", "describe_differences"]


@dataclass(frozen=True, kw_only=True)
class RunState:
    """What ``run.json`` holds.

    Attributes:
        fingerprint: setting -> plain value, for everything that changes the output.
        unit_rows: how the source was cut; a continuation cuts it the same way.
        files: file key -> digest of the source files seen so far.
        columns: schema of the passed-through input columns.
        units, rows: of the input, when a run last began.
    """

    fingerprint: Mapping[str, Any]
    unit_rows: int
    files: Mapping[str, str]
    columns: pa.Schema
    units: int = 0
    rows: int = 0

    @property
    def fingerprint_hash(self) -> str:
        """Hash of the fingerprint; part of every unit's id."""
        return hashlib.blake2b(json.dumps(self.fingerprint, sort_keys=True).encode(), digest_size=16).hexdigest()

    def save(self, storage: Storage) -> None:
        """Write ``run.json``."""
        raw = {
            "schema_version": SCHEMA_VERSION,
            "fingerprint": dict(self.fingerprint),
            "unit_rows": self.unit_rows,
            "units": self.units,
            "rows": self.rows,
            "files": dict(self.files),
            "columns": self.columns.serialize().to_pybytes().hex(),
            "columns_text": [f"{field.name}: {field.type}" for field in self.columns],
        }
        storage.put(layout.RUN, json.dumps(raw, indent=1).encode())

    @classmethod
    def load(cls, storage: Storage) -> RunState | None:
        """Read ``run.json``; None where no run was begun.

        Raises:
            OutputError: written by a version with another schema.
        """
        try:
            raw = json.loads(storage.read(layout.RUN))
        except FileNotFoundError:
            return None
        if raw["schema_version"] != SCHEMA_VERSION:
            raise OutputError(
                f"{storage.url}: written with output schema {raw['schema_version']}, this version writes "
                f"{SCHEMA_VERSION}. Finish it with the version it was begun with, or write to a new folder."
            )
        return cls(
            fingerprint=raw["fingerprint"],
            unit_rows=raw["unit_rows"],
            files=raw["files"],
            columns=pa.ipc.read_schema(pa.py_buffer(bytes.fromhex(raw["columns"]))),
            units=raw["units"],
            rows=raw["rows"],
        )

    def continued_by(self, new: RunState, url: str) -> RunState:
        """The state of a continuation: this run's settings and cut, with the files that ``new`` adds.

        Raises:
            FingerprintError: a setting, the columns, or a file's content differs; each difference is named.
        """
        differences = describe_differences(dict(self.fingerprint), dict(new.fingerprint))
        if not new.columns.equals(self.columns):
            differences.append(f"input columns: was {_names(self.columns)}, is {_names(new.columns)}")
        differences += [
            f"input file {key!r}: its content changed"
            for key, digest in new.files.items()
            if self.files.get(key, digest) != digest
        ]
        if differences:
            raise FingerprintError(
                f"{url} was begun with other settings than these:\n  "
                + "\n  ".join(differences)
                + "\nGo back to them, write to another folder, or discard what is there with mode='new'."
            )
        return replace(self, files={**self.files, **new.files})


def describe_differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """One line per setting that differs: name, then value, value now."""
    # Through JSON and back, so that tuples and lists, and enums and text, compare as what is stored.
    new = json.loads(json.dumps(new))
    absent = "(not set)"
    return [
        f"{name}: was {old.get(name, absent)!r}, is {new.get(name, absent)!r}"
        for name in sorted({*old, *new})
        if old.get(name, absent) != new.get(name, absent)
    ]


def _names(schema: pa.Schema) -> str:
    return "{" + ", ".join(f"{field.name}: {field.type}" for field in schema) + "}"
