"""The cost of ledger and staging: the same job with them, and with results discarded in the actor, in turns."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

import pipeline
from pipeline import layout
from pipeline.cluster.executor import RayExecutor
from pipeline.cluster.session import ensure_ray
from pipeline.commands.run import run_on
from pipeline.plan.job import resolve_job
from pipeline.plan.units import Work, plan_units
from pipeline.progress.snapshot import Progress
from pipeline.sources import open_source
from pipeline.storage.local import LocalStorage
from pipeline.storage.open import open_storage

_PAIRS = 4


class _Discarding(LocalStorage):
    """Where staged units go nowhere."""

    def put(self, key: str, data: bytes) -> None:
        if not key.startswith(f"{layout.STAGED}/"):
            super().put(key, data)


def measure_overhead(source: Path, folder: Path, pairs: int = _PAIRS) -> dict[str, Any]:
    """Share of generating time that ledger and staging add, pair by pair; and the share of publishing."""
    ensure_ray()
    config = pipeline.RunConfig(
        input=str(source), output=str(folder / "out"), model="tiny", num_threads=1, unit_rows=16, units_in_flight=8,
        sampling=pipeline.SamplingParams(max_tokens=128, temperature=0.7),
    )  # fmt: skip
    _without(config, source)  # the first actor of a session finds nothing in the file cache
    overheads, publishing = [], []
    for number in range(pairs):
        if number % 2:
            bare = _without(config, source)
            whole, publish = _with(config)
        else:
            whole, publish = _with(config)
            bare = _without(config, source)
        print(f"with {whole:.2f} s, without {bare:.2f} s, publishing {publish:.2f} s", flush=True)
        overheads.append(whole / bare - 1)
        publishing.append(publish / whole)
    return {"overheads": overheads, "publishing": sum(publishing) / len(publishing)}


def _with(config: pipeline.RunConfig) -> tuple[float, float]:
    """Seconds of generating and of publishing."""
    shutil.rmtree(config.output, ignore_errors=True)
    last = [time.monotonic()]

    def on_progress(progress: Progress) -> None:
        last[0] = time.monotonic()

    summary = run_on(RayExecutor(config), config, open_storage(config.output, layout.SCRATCH), on_progress)
    return summary.generating_seconds, time.monotonic() - last[0]


def _without(config: pipeline.RunConfig, source: Path) -> float:
    """Seconds of generating."""
    shutil.rmtree(config.output, ignore_errors=True)
    storage = _Discarding(config.output, layout.SCRATCH)
    job = resolve_job(config, open_source(str(source), storage), storage)
    units = plan_units(job.sliced, config.resolved_unit_rows(), "overhead")
    executor = RayExecutor(config)
    return max(record.engine_seconds for records in executor.run_units(job, Work.of(units)) for record in records)
