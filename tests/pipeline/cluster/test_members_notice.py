"""An actor whose process gets SIGTERM: it leaves in order, another takes its place, and nobody takes it for a crash."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pipeline
from pipeline import layout
from pipeline.cluster.executor import RayExecutor
from pipeline.commands.run import run_on
from pipeline.config import RunConfig
from pipeline.stages import LOGGER
from pipeline.storage.open import open_storage
from testing.pipeline.deadly_engines import steady_engine

ROWS = 200


def actors() -> set[int]:
    """Process ids of this session's generate actors."""
    found = set()
    for process in psutil.Process().children(recursive=True):
        try:
            if "GenerateActor" in " ".join(process.cmdline()):
                found.add(process.pid)
        except psutil.Error:
            continue
    return found


class Terminating(RayExecutor):
    """Sends SIGTERM to one of two actors once both are there and units are done; ``victim`` is who got it."""

    victim: int | None = None
    gone_after: float | None = None

    def run_units(self, job: Any, work: Any) -> Iterator[Any]:
        for records in super().run_units(job, work):
            if self.victim is None and len(there := actors()) == 2:
                self.victim = min(there)
                os.kill(self.victim, signal.SIGTERM)
                threading.Thread(target=self._watch, args=(self.victim, time.monotonic()), daemon=True).start()
            yield records

    def _watch(self, pid: int, begin: float) -> None:
        while psutil.pid_exists(pid):
            time.sleep(0.05)
        self.gone_after = time.monotonic() - begin


@pytest.mark.usefixtures("cluster")
def test_it_finishes_its_units_within_the_budget_and_is_replaced(
    qwen3_folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pq.write_table(
        pa.table({"prompt_token_ids": [[10 + i % 50, 300 - i % 200] for i in range(ROWS)]}), tmp_path / "in.parquet"
    )
    config = RunConfig(
        input=str(tmp_path / "in.parquet"), output=str(tmp_path / "out"), model=str(qwen3_folder), unit_rows=4,
        actors=2, units_in_flight=4, max_engine_deaths=0, drain_seconds=30,
    )  # fmt: skip
    executor = Terminating(config, steady_engine)
    with caplog.at_level(logging.INFO, LOGGER.name):
        summary = run_on(executor, config, open_storage(config.output, layout.SCRATCH), lambda progress: None)
    assert (summary.total.rows, summary.total.failed_rows) == (ROWS, 0)
    assert pipeline.verify(config.output, input=config.input).ok
    said = [record.getMessage() for record in caplog.records]
    assert any(line.startswith("1 actor to leave (SIGTERM): 30 s for ") for line in said), said
    assert "1 actor left; 0 units handed back, for others to do" in said
    assert executor.gone_after is not None
    assert executor.gone_after < 20, "it did not wait for the end of its time"
    assert len(executor.starts) == 3, "another actor was asked for, and has worked"
    assert not list(Path(config.output, layout.CRASHES).glob("*")), "nor does max_engine_deaths=0 mind"
