"""A job with rows that fail, for tests that correct and retry them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from pipeline import layout
from pipeline.codec import EngineConfig, SamplingParams
from pipeline.commands.read import read
from pipeline.commands.run import run_on
from pipeline.commands.summary import RunSummary
from pipeline.commands.verify import verify
from pipeline.config import RunConfig
from pipeline.storage.local import LocalStorage
from pipeline.storage.protocol import Storage
from testing.pipeline.fakes import InlineExecutor

LONG, EMPTY = 3, 10
ROWS: list[dict[str, Any]] = [{"prompt": f"Count from {i}.", "note": f"n{i}"} for i in range(14)]
ROWS[LONG]["prompt"] = "So long. " * 40
ROWS[EMPTY]["prompt"] = None


def write(path: Path, rows: Iterable[dict[str, Any]]) -> Path:
    """Rows as JSON lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def changed(**prompts: str) -> list[dict[str, Any]]:
    """The rows with other prompts, by ``rNUMBER``."""
    return [{**row, "prompt": prompts.get(f"r{i}", row["prompt"])} for i, row in enumerate(ROWS)]


def failed(job: Job) -> list[int]:
    """Numbers of the rows that failed."""
    return [number for number, (reason, _) in job.rows().items() if reason == "error"]


def fixed(job: Job, **more: Any) -> list[dict[str, Any]]:
    """The dead letters of a job, with prompts."""
    letters = read(job.config.output, table="dead_letters", format="arrow").to_pylist()
    return [{**letter, "prompt": f"Again {letter['note']}.", **more} for letter in letters]


class Job:
    """A job of 14 rows in units of 4: one is too long, one has no prompt."""

    def __init__(self, folder: Path, model: Path, **fields: Any) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.source = write(folder / "a.jsonl", ROWS)
        own = {"columns": ["note"], "engine": EngineConfig(max_model_len=64), "unit_rows": 4, **fields}
        own = {"input": str(self.source), "output": str(folder / "out"), **own}
        self.config = RunConfig(
            model=str(model), sampling=SamplingParams(max_tokens=6, n=2), **own,
        )  # fmt: skip

    @property
    def storage(self) -> LocalStorage:
        return LocalStorage(self.config.output, layout.SCRATCH)

    def run(self, storage: Storage | None = None, executor: Any = None, **fields: Any) -> RunSummary:
        executor = executor or InlineExecutor()
        return run_on(executor, replace(self.config, **fields), storage or self.storage, lambda progress: None)

    def retry(self, storage: Storage | None = None, **fields: Any) -> RunSummary:
        return self.run(storage, retry_failed=True, **fields)

    def rows(self) -> dict[int, tuple[str, int | None]]:
        """Number of each row -> its finish reason, and the number of its retry."""
        table = read(self.config.output, format="arrow")
        names = ("note", "finish_reason", "retry")
        return {int(n[1:]): (reason, number) for n, reason, number in zip(*(table[c].to_pylist() for c in names))}  # noqa: B905

    def data(self) -> list[dict[str, Any]]:
        return read(self.config.output, format="arrow").drop(["stats", "timings"]).to_pylist()

    def problems(self, input: Path | None = None) -> tuple[str, ...]:
        return verify(self.config.output, input=str(input or self.source)).problems
