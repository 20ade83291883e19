"""Reading an output back: what is published, in input order."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Literal, overload

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline import layout
from pipeline.cluster import ensure_ray
from pipeline.errors import OutputError
from pipeline.lease import current_holder
from pipeline.ledger import Ledger
from pipeline.publish import Manifest
from pipeline.storage import Storage, open_storage
from pipeline.types import Totals

if TYPE_CHECKING:
    import ray.data

__all__ = ["read", "status"]


@overload
def read(
    output: str | os.PathLike[str], *, table: Literal["rows", "dead_letters"] = ..., format: Literal["ray"] = "ray"
) -> ray.data.Dataset: ...
@overload
def read(
    output: str | os.PathLike[str], *, table: Literal["rows", "dead_letters"] = ..., format: Literal["arrow"]
) -> pa.Table: ...
def read(
    output: str | os.PathLike[str],
    *,
    table: Literal["rows", "dead_letters"] = "rows",
    format: Literal["ray", "arrow"] = "ray",
) -> Any:
    """The published table of an output, in input order.

    Args:
        output: the folder of a run.
        table: "rows", the generations; or "dead_letters", the input rows that failed, with their reasons.
        format: "ray" gives a lazy ``ray.data.Dataset`` (starting Ray on loopback where none runs); "arrow" a
            ``pyarrow.Table`` in memory.

    Raises:
        OutputError: nothing is published there.
    """
    storage = open_storage(output, layout.SCRATCH)
    manifest = Manifest.load(storage)
    if not manifest.publications:
        state = "a run was begun but not finished: run it again to continue" if storage.exists(layout.RUN) else "no run"
        raise OutputError(f"{storage.url}: nothing is published there ({state}).")
    if table == "rows":
        paths = [f"{storage.url}/{p.name}/{part.name}" for p in manifest.publications for part in p.parts]
    else:
        paths = [
            f"{storage.url}/{layout.published_dead_letters(p.dead_letters.name)}"
            for p in manifest.publications
            if p.dead_letters is not None
        ]
    if format == "arrow":
        tables = [pq.ParquetFile(path).read() for path in paths]
        return pa.concat_tables(tables) if tables else pa.table({})
    return _ray_dataset(paths)


def _ray_dataset(paths: list[str]) -> Any:
    ensure_ray()
    import ray
    from ray.data import DataContext

    if not paths:
        return ray.data.from_arrow(pa.table({}))
    context = DataContext.get_current().copy()
    context.execution_options.preserve_order = True
    with DataContext.current(context):
        return ray.data.read_parquet(paths)


def status(output: str | os.PathLike[str]) -> dict[str, Any]:
    """What is committed and published, without touching the run: plain values."""
    storage: Storage = open_storage(output, layout.SCRATCH)
    if not storage.exists(layout.RUN):
        raise OutputError(f"{storage.url}: no run was begun there. Check the path.")
    manifest = Manifest.load(storage)
    segments = storage.read_many(storage.keys(layout.LEDGER))
    records = {r.unit_id: r for segment in segments for r in Ledger.parse(segment)}
    total = Totals.of(records.values())
    return {
        "output": storage.url,
        "units_committed": total.units,
        "rows_committed": total.rows,
        "rows_failed": total.failed_rows,
        "samples": total.samples,
        "completion_tokens": total.completion_tokens,
        "tokens_per_forward": total.tokens_per_forward,
        "units_published": len(manifest.unit_ids),
        "rows_published": sum(part.rows for p in manifest.publications for part in p.parts),
        "publications": [p.name for p in manifest.publications],
        "being_written": current_holder(storage) is not None,
    }
