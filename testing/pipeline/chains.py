"""A small chain of two stages without Ray, whose outputs after faults are compared with those of an undisturbed one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline import layout
from pipeline.commands.chain import chain_on
from pipeline.commands.chain_config import ChainConfig
from pipeline.commands.chain_summary import ChainSummary
from pipeline.commands.read import read
from pipeline.commands.verify import verify
from pipeline.config import RunConfig
from pipeline.plan.job import Job
from pipeline.plan.units import Work, read_units
from pipeline.prompts.tokenize import prepare_table
from pipeline.schema import data_columns
from pipeline.storage.open import open_storage
from pipeline.storage.protocol import Storage
from pipeline.types import CommitRecord, Unit
from pipeline.worker.engine_thread import EngineThread
from pipeline.worker.unit_worker import UnitWorker
from testing.pipeline.fakes import FakeEngine, InlineExecutor

NAMES = ("write", "judge")
_FAILING = {3: "", 10: None}
ROWS = [{"prompt": _FAILING.get(i, f"Count from {i} to {i + 4}."), "topic": f"t{i % 3}"} for i in range(22)]
"""Two rows fail; the units of 4 rows are 6."""


class ChainExecutor(InlineExecutor):
    """Does units one after the other in this process: those of later stages as soon as they come.

    ``done`` has the stage of every unit, in order of their ends. ``lazy`` does later stages last.
    """

    def __init__(self, engine: Callable[[], FakeEngine] = FakeEngine, *, lazy: bool = False) -> None:
        super().__init__(engine=engine)
        self.done: list[int] = []
        self._lazy = lazy

    def run_units(self, job: Job, work: Work) -> Iterator[list[CommitRecord]]:
        assert work.later is not None
        thread = EngineThread(self._engine())
        worker = UnitWorker(job, thread)
        workers = [worker, *map(worker.beside, job.later)]
        first = ((unit,) for task in work.tasks for unit in task.units)
        try:
            while not work.later.exhausted:
                units: Sequence[Unit] = next(first, ()) if self._lazy else ()
                units = units or work.later.take() or next(first, ()) or work.later.take(seconds=0.01)
                source = job.of_stage(units[0].stage).source if units else job.source
                for unit, table in zip(units, read_units(source, units), strict=True):
                    record = workers[unit.stage].run(unit, prepare_table(table, unit, job.of_stage(unit.stage)))
                    self.done.append(unit.stage)
                    yield [record]
        finally:
            thread.close()


class SmallChain:
    """An input file, and two stages with an output each; the second one is made of the text of the first.

    Args:
        folder: for the input, and the outputs unless ``output`` is given.
        model: a model folder.
        output: a folder or URL.
        **judge: settings of the second stage.
    """

    def __init__(self, folder: Path, model: Path, output: str | None = None, **judge: Any) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.source = folder / "a.parquet"
        pq.write_table(pa.Table.from_pylist(ROWS), self.source, row_group_size=8)
        self.output = output or str(folder / "out")
        self.base = {
            "input": str(self.source), "output": self.output, "model": str(model), "unit_rows": 4,
            "target_part_bytes": 9000, "sampling": {"max_tokens": 6, "n": 2},
        }  # fmt: skip
        self.judge = {
            "name": "judge", "prompt_template": "Rate {{ text }} of {{ topic }}", "sampling": {"max_tokens": 4, "n": 1},
            "parse": {"letter": {"pattern": "[A-Z]"}}, **judge,
        }  # fmt: skip
        self.filters: list[dict[str, Any]] = []

    def config(self, *, redo: str | None = None, **fields: Any) -> ChainConfig:
        base = RunConfig.from_mapping({**self.base, **fields})
        return ChainConfig.of(base, [{"name": "write"}, self.judge, *self.filters], redo)

    @property
    def storages(self) -> list[Storage]:
        return [open_storage(f"{self.output}/{name}", layout.SCRATCH) for name in NAMES]

    def run(
        self, executor: InlineExecutor | None = None, storages: Sequence[Storage] | None = None, **fields: Any
    ) -> ChainSummary:  # fmt: skip
        config = self.config(**fields)
        executors = [executor or ChainExecutor(), *(ChainExecutor() for _ in config.groups[1:])]
        return chain_on(executors, config, storages or self.storages)

    def data(self, name: str) -> list[dict[str, Any]]:
        """The data columns of a stage's published rows."""
        table = read(f"{self.output}/{name}", format="arrow")
        inputs = len(table.column_names) if name == "write" else table.column_names.index("judge_row_id")
        prefix = "" if name == "write" else "judge_"
        own = table.column_names.index("row_id") if name == "write" else inputs
        extra = [] if name == "write" else ["judge_letter"]
        return table.select([*data_columns(table.schema, own, prefix), *extra]).to_pylist()

    def every(self) -> dict[str, list[dict[str, Any]]]:
        return {name: self.data(name) for name in NAMES}

    def problems(self) -> list[str]:
        """Of the outputs."""
        return [text for name in NAMES for text in verify(f"{self.output}/{name}").problems]
