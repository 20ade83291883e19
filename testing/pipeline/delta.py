"""Exports to Delta tables that die at a chosen moment, in this process or by signal 9 in one of their own."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable

from pipeline import layout
from pipeline.commands.export_delta import DeltaExported, export_to
from pipeline.sinks.delta_table import DeltaCommit, DeltaLake
from pipeline.storage.open import open_storage
from testing.pipeline.faults import FaultyStorage, Moment


class FaultyLake(DeltaLake):
    """A table; before and after each operation that changes it, ``inject`` is asked."""

    def __init__(self, url: str, inject: Callable[[Moment], None], options: dict[str, str] | None = None) -> None:
        super().__init__(url, options or {})
        self._inject = inject

    def create(self, schema: pa.Schema) -> None:
        self._around("create table", lambda: super(FaultyLake, self).create(schema))

    def add_columns(self, schema: pa.Schema, names: Sequence[str]) -> None:
        self._around("add columns", lambda: super(FaultyLake, self).add_columns(schema, names))

    def commit(self, commit: DeltaCommit) -> None:
        self._around("commit", lambda: super(FaultyLake, self).commit(commit))

    def _around(self, operation: str, act: Callable[[], None]) -> None:
        self._inject(Moment(operation=operation, key="_delta_log", after=False))
        act()
        self._inject(Moment(operation=operation, key="_delta_log", after=True))


def export_with(output: str, table: str, inject: Callable[[Moment], None]) -> DeltaExported:
    """Export an output to a table on this machine, with faults in the files and in the table."""
    files = FaultyStorage(open_storage(table, "_scratch"), inject)
    return export_to(open_storage(output, layout.SCRATCH), FaultyLake(table, inject), files)


def rows_of(table: str, options: dict[str, str] | None = None) -> list[dict[str, Any]]:
    """The rows of a table as another reader sees them, sorted."""
    found = pa.table(DeltaTable(table, storage_options=options).to_pyarrow_table())
    return sorted(found.to_pylist(), key=lambda row: (row["row_id"], row["sample_index"]))


class _KillAt:
    """SIGKILL to the own process at a moment, counted from 0."""

    def __init__(self, at: int) -> None:
        self._left = at

    def __call__(self, moment: Moment) -> None:
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        self._left -= 1


def _killed(output: str, lines: Sequence[str]) -> None:
    """For each line (table, tab, moment) an export in a child that is killed there; prints the statuses."""
    for line in lines:
        table, at = line.split("\t")
        child = os.fork()
        if child == 0:
            export_with(output, table, _KillAt(int(at)))
            os._exit(0)
        status = os.waitpid(child, 0)[1]
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    _killed(sys.argv[1], sys.stdin.read().splitlines())
