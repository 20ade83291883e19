"""Tables of each kind that exports go to, and exports that die at a chosen moment, here or by signal 9 in a process."""

from __future__ import annotations

import hashlib
import io
import os
import signal
import sqlite3
import sys
import traceback
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog
from pyiceberg.io import OutputFile, OutputStream
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO

from pipeline import layout
from pipeline.commands.export_table import TableExported, export_table
from pipeline.sinks.table_sink import TableCommit, TableFile, TableSink, open_sink
from testing.pages.blocks import blocks_of
from testing.pipeline.faults import FaultyStorage, Moment
from testing.repository import ROOT

KINDS = ("delta", "iceberg", "own")
NAME = "lake.rows"
"""Of each Iceberg table."""


def own_sink() -> types.ModuleType:
    """The sink of the documentation."""
    (block,) = (b for b in blocks_of(ROOT / "docs/reference/formats.md") if b.title == "sqlite_table.py")
    module = types.ModuleType("sqlite_table")
    exec(compile(block.code, "sqlite_table.py", "exec"), module.__dict__)
    return module


def catalog_in(folder: Path) -> dict[str, str]:
    """Properties of a catalog in a folder."""
    return {"name": "own", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": str(folder)}


@dataclass(frozen=True)
class Lake:
    """A table of a kind in a folder."""

    kind: str
    folder: Path

    def sink(self, options: Mapping[str, str] | None = None) -> TableSink:
        """The table, as an export opens it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if self.kind == "delta":
            return open_sink("delta", self.folder, {}, {})
        if self.kind == "iceberg":
            return open_sink("iceberg", NAME, {}, {**catalog_in(self.folder), **(options or {})})
        return own_sink().SqliteTable(str(self.folder / "rows.db"))

    def export(self, output: str | os.PathLike[str], **options: Any) -> TableExported:
        """Bring the table up to an output."""
        return export_table(output, self.sink(), **options)

    def export_with(self, output: str | os.PathLike[str], inject: Callable[[Moment], None]) -> TableExported:
        """:meth:`export` with faults in the table and in its files."""
        FaultyFiles.inject = inject
        sink = self.sink({"py-io-impl": f"{FaultyFiles.__module__}.{FaultyFiles.__name__}"})
        if self.kind == "delta":
            sink.files = FaultyStorage(sink.files, inject)  # type: ignore[attr-defined]
        return export_table(output, FaultySink(sink, inject))

    def exists(self) -> bool:
        """Whether the table was made."""
        sink = self.sink()
        sink.look()
        return not sink.is_empty()

    def rows(self) -> list[dict[str, Any]]:
        """Its rows as another reader sees them, sorted; of the documentation's sink only their keys."""
        if self.kind == "delta":
            return sorted_rows(pa.table(DeltaTable(str(self.folder)).to_pyarrow_table()))
        if self.kind == "iceberg":
            return sorted_rows(load_catalog(**catalog_in(self.folder)).load_table(NAME).scan().to_arrow())
        names = "row_id, sample_index, text"
        found = sqlite3.connect(self.folder / "rows.db").execute(f"select {names} from rows order by 1, 2")
        return [dict(zip(names.split(", "), row, strict=True)) for row in found]

    def of(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Rows of an output as :meth:`rows` gives them."""
        return rows if self.kind != "own" else [{name: row[name] for name in KEYS} for row in rows]

    def committed(self) -> list[str]:
        """Publications by its history, from the first one on."""
        if self.kind == "delta":
            entries = reversed(DeltaTable(str(self.folder)).history())
            return [entry["wedlm.publication"] for entry in entries if "wedlm.publication" in entry]
        if self.kind == "iceberg":
            snapshots = load_catalog(**catalog_in(self.folder)).load_table(NAME).snapshots()
            return [name for s in snapshots if s.summary and (name := s.summary.get("wedlm.publication"))]
        found = sqlite3.connect(self.folder / "rows.db").execute("select position, revision from done order by 1")
        return [f"data-{position:06d}" + (f"-r{revision:03d}" if revision else "") for position, revision in found]


KEYS = ("row_id", "sample_index", "text")


def sorted_rows(table: pa.Table) -> list[dict[str, Any]]:
    """Rows in the order of their keys."""
    return sorted(table.to_pylist(), key=lambda row: (row["row_id"], row["sample_index"]))


RUN = "wedlm-0123456789abcdef"


def change_of(
    rows: pa.Table, *, position: int = 0, revision: int = 0, replaces: TableCommit | None = None
) -> TableCommit:
    """A commit of one file with these rows; ``replaces``: the commit whose place it takes."""
    buffer = io.BytesIO()
    pq.write_table(rows, buffer)
    data = buffer.getvalue()
    folder = layout.publication(position, revision)
    name = f"{RUN}/{folder}/part-000000-{hashlib.sha256(data).hexdigest()[:16]}.parquet"
    file = TableFile(name=name, bytes=len(data), rows=rows.num_rows, copy_to=lambda stream: stream.write(data),
                     tables=lambda: iter([rows]))  # fmt: skip
    return TableCommit(
        run=RUN, position=position, revision=revision, replaces=None if replaces is None else replaces.revision,
        schema=rows.schema, files=[file], replaced=[] if replaces is None else [own.name for own in replaces.files],
    )  # fmt: skip


def commit_to(sink: TableSink, change: TableCommit) -> None:
    """Commit as an export does."""
    sink.look()
    if sink.fit(change.schema):
        sink.look()
    sink.commit(change)


class FaultySink:
    """Passes everything on to a sink; before and after each operation that changes the table, asks ``inject``."""

    def __init__(self, inner: TableSink, inject: Callable[[Moment], None]) -> None:
        self._inner = inner
        self._inject = inject

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def fit(self, schema: pa.Schema) -> bool:
        return bool(self._around("fit", lambda: self._inner.fit(schema)))

    def commit(self, change: TableCommit) -> None:
        self._around("commit", lambda: self._inner.commit(change))

    def _around(self, operation: str, act: Callable[[], Any]) -> Any:
        self._inject(Moment(operation=operation, key="table", after=False))
        done = act()
        self._inject(Moment(operation=operation, key="table", after=True))
        return done


class FaultyFiles(PyArrowFileIO):
    """Files of Iceberg tables; asks ``inject`` before one is made, and before one ends. A dead process ends none."""

    inject: ClassVar[Callable[[Moment], None]]

    def new_output(self, location: str) -> PyArrowFile:
        kind = "data" if location.endswith(".parquet") else location.rpartition(".")[2]
        type(self).inject(Moment(operation="create", key=kind, after=False))
        return _FaultyFile(super().new_output(location), kind)  # type: ignore[return-value]


class _FaultyFile:
    def __init__(self, inner: OutputFile, kind: str) -> None:
        self._inner = inner
        self._kind = kind

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def __len__(self) -> int:
        return len(self._inner)

    def create(self, overwrite: bool = False) -> _FaultyStream:
        return _FaultyStream(self._inner.create(overwrite), self._kind)


class _FaultyStream:
    def __init__(self, inner: OutputStream, kind: str) -> None:
        self._inner = inner
        self._kind = kind

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def __enter__(self) -> _FaultyStream:
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()

    def close(self) -> None:
        FaultyFiles.inject(Moment(operation="close", key=self._kind, after=False))
        self._inner.close()


class _KillAt:
    """SIGKILL to the own process at a moment, counted from 0."""

    def __init__(self, at: int) -> None:
        self._left = at

    def __call__(self, moment: Moment) -> None:
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        self._left -= 1


def _forked(lakes: Sequence[Lake], output: str, inject: Callable[[Moment], None]) -> list[str]:
    """The ends of exports in processes that run at once: the number of commits, or the negative signal."""
    children = []
    for lake in lakes:
        if (child := os.fork()) == 0:
            try:
                os._exit(len(lake.export_with(output, inject).committed))
            except BaseException:
                traceback.print_exc()
                os._exit(100)
        children.append(child)
    return [str(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])) for child in children]


def _main(output: str, lines: Sequence[str]) -> None:
    """Each line is kind, folder and moment: an export that is killed there; or without a moment, two at once."""
    for line in lines:
        kind, folder, at = line.split("\t")
        lake = Lake(kind, Path(folder))
        if at:
            print(*_forked([lake], output, _KillAt(int(at))), flush=True)
        else:
            lake.sink()  # pyiceberg makes the database of a catalog, and fails if another process does
            print(*_forked([lake, lake], output, lambda moment: None), flush=True)


if __name__ == "__main__":
    _main(sys.argv[1], sys.stdin.read().splitlines())
