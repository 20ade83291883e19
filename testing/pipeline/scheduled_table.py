"""A growing input folder and the table that scheduled runs keep of it, and the rows that it should hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline import layout
from pipeline.codec import SamplingParams
from pipeline.commands.etl import EtlResult, etl_on
from pipeline.commands.etl_config import EtlConfig
from pipeline.commands.read import read
from pipeline.commands.run import run_on
from pipeline.commands.verify import verify
from pipeline.config import RunConfig
from pipeline.schema import DATA_COLUMNS
from pipeline.storage.open import open_storage
from pipeline.storage.protocol import Storage
from pipeline.storage.retry import RetryingStorage
from testing.pipeline.fakes import InlineExecutor


def prompts(first: int, count: int, **more: Any) -> list[dict[str, Any]]:
    """Rows with prompts of their own, each with the further columns."""
    return [{"prompt": f"Count from {i} to {i + 4}.", **more} for i in range(first, first + count)]


class ScheduledTable:
    """An input folder, a table, and scheduled runs without Ray.

    Args:
        place: folder or URL for both.
        model: a model folder.
        options: of the file system of ``place``.
    """

    def __init__(self, place: str, model: Path, options: Mapping[str, Any] | None = None, **fields: Any) -> None:
        self.options = dict(options or {})
        self.fs, self.root = fsspec.core.url_to_fs(place, use_listings_cache=False, **self.options)
        self.place = place
        run = RunConfig(
            input=f"{place}/in", output=f"{place}/out", model=str(model), storage_options=self.options,
            **{"unit_rows": 4, "target_part_bytes": 9000, "sampling": SamplingParams(max_tokens=6, n=2), **fields},
        )  # fmt: skip
        self.config = EtlConfig(run=run)
        self.files: dict[str, list[dict[str, Any]]] = {}

    @property
    def storage(self) -> RetryingStorage:
        return open_storage(self.config.run.output, layout.SCRATCH, self.options)

    def put(self, name: str, rows: list[dict[str, Any]]) -> None:
        """Write an input file, or another content of it."""
        path = f"{self.root}/in/{name}"
        self.fs.makedirs(path.rpartition("/")[0], exist_ok=True)
        with self.fs.open(path, "wb") as file:
            pq.write_table(pa.Table.from_pylist(rows), file, row_group_size=8)
        self.files[name] = rows

    def remove(self, name: str) -> None:
        """Remove an input file."""
        self.fs.rm(f"{self.root}/in/{name}")
        del self.files[name]

    def run(
        self, executor: InlineExecutor | None = None, storage: Storage | None = None, **fields: Any
    ) -> EtlResult:  # fmt: skip
        """A scheduled run; ``fields`` of its configuration, or of the configuration of its runs."""
        own = {name: fields.pop(name) for name in list(fields) if name in EtlConfig.__dataclass_fields__}
        config = replace(self.config, run=replace(self.config.run, **fields), **own)
        return etl_on(executor or InlineExecutor(), config, storage or self.storage, lambda progress: None)

    def rows(self) -> list[dict[str, Any]]:
        """The data columns of the table, by row id and sample."""
        return _data(self.config.run.output, self.options)

    def expected(self, folder: Path) -> list[dict[str, Any]]:
        """The same of one run over all that is in the input now, on a fresh output below ``folder``."""
        config = replace(
            self.config.run, output=str(folder / "fresh"), output_storage_options={}, input_storage_options=self.options
        )
        run_on(InlineExecutor(), config, open_storage(config.output, layout.SCRATCH), lambda progress: None)
        return _data(config.output, {})

    def check(self, folder: Path) -> None:
        """The table has each row of the input once, as one run over all of it would have generated it."""
        assert self.rows() == self.expected(folder)
        self.check_whole()

    def check_whole(self, *, swept: bool = True) -> None:
        """The files are the committed ones; and if they were ``swept``, nothing lies around."""
        assert verify(self.config.run.output, storage_options=self.options).problems == ()
        for left in (layout.STAGED, layout.PUBLISH, layout.SCRATCH) if swept else ():
            assert self.storage.keys(left) == []


def _data(output: str, options: Mapping[str, Any]) -> list[dict[str, Any]]:
    table = read(output, format="arrow", storage_options=options)
    names = [name for name in table.column_names if name in (*DATA_COLUMNS, "prompt", "dt", "hour", "score", "topic")]
    rows = table.select(sorted(names)).to_pylist()
    return sorted(rows, key=lambda row: (row["row_id"], row["sample_index"]))
