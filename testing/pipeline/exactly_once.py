"""A small job without Ray, whose output after faults is compared with that of an undisturbed run."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline import layout
from pipeline.codec import SamplingParams
from pipeline.commands.read import read
from pipeline.commands.run import run_on
from pipeline.commands.summary import RunSummary
from pipeline.commands.verify import verify
from pipeline.commit.part_files import PartDamage, PartJob, PartRecord
from pipeline.config import RunConfig
from pipeline.plan.job import Job
from pipeline.plan.units import Work
from pipeline.schema import DATA_COLUMNS
from pipeline.storage.open import open_storage
from pipeline.storage.protocol import Storage
from pipeline.storage.retry import RetryingStorage
from pipeline.types import CommitRecord
from testing.pipeline.fakes import FakeEngine, InlineExecutor

FAILING = {3: "", 10: None}
ROWS = [{"prompt": FAILING.get(i, f"Count from {i} to {i + 4}."), "topic": f"t{i % 3}"} for i in range(22)]
"""Two rows fail; the units of 4 rows are 6."""


class Stopped(BaseException):
    """The process ends here."""


class StopsAfter(InlineExecutor):
    """Ends the run when so many units are committed."""

    def __init__(self, units: int, **given: Any) -> None:
        super().__init__(**given)
        self._stop = units

    def run_units(self, job: Job, work: Work) -> Iterator[list[CommitRecord]]:
        for number, records in enumerate(super().run_units(job, work), start=1):
            yield records
            if number == self._stop:  # nothing is staged that is not committed
                raise Stopped
        raise Stopped


class Within(InlineExecutor):
    """Does something else before its parts are written, each time with the number of that time, from 0."""

    def __init__(self, meanwhile: Callable[[int], None], **given: Any) -> None:
        super().__init__(**given)
        self._meanwhile = meanwhile
        self._times = 0

    def write_parts(self, jobs: Iterable[PartJob]) -> Iterator[PartRecord | PartDamage]:
        self._meanwhile(self._times)
        self._times += 1
        return super().write_parts(jobs)


class SmallJob:
    """An input file and an output.

    Args:
        folder: for the input.
        model: a model folder.
        output: a folder or the URL of a store; None is a folder beside the input.
        options: of the output's file system.
        like: a job whose output, a folder, is copied if it is there. The input is its own, and has to stay as it is: a
            copy of a file is to a run another file.
        rows: of the input.
    """

    source: Path
    config: RunConfig

    def __init__(
        self, folder: Path, model: Path, output: str | None = None, options: Mapping[str, Any] | None = None,
        like: SmallJob | None = None, rows: Sequence[dict[str, Any]] = ROWS,
    ) -> None:  # fmt: skip
        folder.mkdir(parents=True, exist_ok=True)
        self.source = folder / "a.parquet" if like is None else like.source
        if like is None:
            pq.write_table(pa.Table.from_pylist(rows), self.source, row_group_size=8)
        elif output is None and Path(like.config.output).exists():
            shutil.copytree(like.config.output, folder / "out")
        elif output is not None:
            fs, place = fsspec.core.url_to_fs(output, **(options or {}))
            fs.put(f"{like.config.output}/", f"{place}/", recursive=True)
        self.options = dict(options or {})
        self.config = RunConfig(
            input=str(self.source), output=output or str(folder / "out"), model=str(model), unit_rows=4,
            target_part_bytes=9000, sampling=SamplingParams(max_tokens=6, n=2), output_storage_options=self.options,
        )  # fmt: skip

    @property
    def storage(self) -> RetryingStorage:
        return open_storage(self.config.output, layout.SCRATCH, self.options)

    def run(
        self, executor: InlineExecutor | None = None, storage: Storage | None = None, **fields: Any
    ) -> RunSummary:  # fmt: skip
        config = replace(self.config, **fields)
        return run_on(executor or InlineExecutor(), config, storage or self.storage, lambda progress: None)

    def stop_after(self, units: int, **fields: Any) -> None:
        """A run that ends after some units, without a publication."""
        try:
            self.run(StopsAfter(units), **fields)
        except Stopped:
            return
        raise AssertionError("it ended by itself")

    def retry(self, executor: InlineExecutor | None = None) -> RunSummary:
        return self.run(executor or InlineExecutor(engine=lambda: FakeEngine(bans=False)), retry_failed=True)

    def data(self) -> list[dict[str, Any]]:
        table = read(self.config.output, format="arrow", storage_options=self.options)
        return table.select(["prompt", "topic", *DATA_COLUMNS]).to_pylist()

    def problems(self) -> tuple[str, ...]:
        """Of the output against the input."""
        config = self.config
        return verify(
            config.output, input=config.input, storage_options=self.options, input_storage_options=config.input_options
        ).problems

    def staged(self, kind: str = "rows") -> list[str]:
        return [key for key in self.storage.keys(layout.STAGED) if f".{kind}." in key]
