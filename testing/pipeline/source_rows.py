"""A source opened as a run opens it, and all of its rows as the units of a run read them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from pipeline import layout
from pipeline.plan.units import plan_units, read_tasks, read_units
from pipeline.sources import SlicedSource, open_source
from pipeline.storage.local import LocalStorage


def opened(data: Any, folder: Path, **options: Any) -> SlicedSource:
    """The source of ``data``; rows in memory are kept below ``folder``."""
    return open_source(data, LocalStorage(folder / "out", layout.SCRATCH), **options)


def all_rows(source: SlicedSource, rows: int) -> pa.Table:
    """Every row, read in units of ``rows`` rows."""
    tables = [table for task in read_tasks(plan_units(source, rows, "f")) for table in read_units(source, task.units)]
    return pa.concat_tables([source.schema.empty_table(), *tables], promote_options="default")
