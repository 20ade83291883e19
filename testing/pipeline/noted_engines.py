"""Engine loaders that leave a note of each actor in the output; and a run on made-up GPUs, as a program of its own."""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from pathlib import Path
from typing import Any

from pipeline import layout, stages
from pipeline.codec import Generation
from pipeline.plan.job import Job
from pipeline.worker.engine_thread import EngineLike
from pipeline.worker.load_engine import load_engine
from testing.pipeline.fakes import FakeEngine

_NOTES = "actors"
_STEP_SECONDS = 0.05


class _SlowEngine(FakeEngine):
    """One with 64 slots takes as long for a step as one with 4. ``note``: gets the number of rows that are done."""

    def __init__(self, slots: int, note: Path) -> None:
        super().__init__(slots=slots)
        self._note = note
        self._facts = json.loads(note.read_text())
        self._rows = 0

    def step(self) -> list[Generation]:
        time.sleep(_STEP_SECONDS)
        done = super().step()
        self._rows += len(done)
        _write(self._note, {**self._facts, "rows": self._rows})
        return done


def _note(job: Job) -> Path:
    folder = Path(job.storage.url, layout.SCRATCH).parent / _NOTES
    folder.mkdir(parents=True, exist_ok=True)
    note = {"devices": os.environ.get("CUDA_VISIBLE_DEVICES"), "slots": job.config.engine.max_num_seqs}
    path = folder / f"{os.getpid()}.json"
    _write(path, note)
    return path


def _write(path: Path, note: dict[str, Any]) -> None:
    """In one piece: the process may be killed at any moment."""
    aside = path.with_suffix(".aside")
    aside.write_text(json.dumps(note))
    aside.replace(path)


def noted_engine(job: Job, num_threads: int | None) -> EngineLike:
    """The real one."""
    _note(job)
    return load_engine(job, num_threads)


def noted_slow_engine(job: Job, num_threads: int | None) -> EngineLike:
    """A fake one whose steps take a while."""
    return _SlowEngine(job.config.engine.max_num_seqs, _note(job))


def notes_of(output: str | Path) -> list[dict[str, Any]]:
    """The notes of the actors of all runs into this output."""
    folder = Path(output, layout.SCRATCH).parent / _NOTES
    return [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]


def _on_made_up_gpus(folder: Path) -> dict[str, Any]:
    """Runs on one node that claims two GPUs: devices of the actors, and requests to an autoscaler meanwhile."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    import ray
    from ray.autoscaler.v2.sdk import get_cluster_status

    from pipeline.cluster import members
    from pipeline.cluster.executor import RayExecutor
    from pipeline.cluster.private_ray import LOOPBACK, on_loopback
    from pipeline.commands.run import run_on
    from pipeline.config import RunConfig
    from pipeline.progress.snapshot import Progress
    from pipeline.storage.open import open_storage

    with on_loopback():
        ray.init(address="local", num_cpus=4, num_gpus=2, include_dashboard=False, log_to_driver=False,
                 _node_ip_address=LOOPBACK, object_store_memory=200 * 2**20)  # fmt: skip
    pq.write_table(pa.table({"prompt_token_ids": [[10, 20 + i] for i in range(160)]}), folder / "in.parquet")
    members._TELL_SECONDS = 1.0
    said: list[str] = []
    stages.LOGGER.setLevel(logging.INFO)
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    stages.LOGGER.addHandler(handler)

    def demand() -> list[dict[str, float]]:
        found = get_cluster_status(ray.get_runtime_context().gcs_address).resource_demands
        return [dict(one.bundle) for each in found.ray_task_actor_demand for one in each.bundles_by_count]

    def go(name: str, **fields: Any) -> dict[str, Any]:
        output = folder / name
        config = RunConfig(
            input=str(folder / "in.parquet"), output=str(output), model="tiny", unit_rows=2, units_in_flight=1, **fields
        )  # fmt: skip
        asked: list[dict[str, float]] = []

        def look(progress: Progress) -> None:
            if progress.session.units % 8 == 7:
                asked.extend(demand())

        executor = RayExecutor(config, noted_slow_engine)
        summary = run_on(executor, config, open_storage(config.output, layout.SCRATCH), look)
        deadline = time.monotonic() + 20
        while (left := demand()) and time.monotonic() < deadline:  # Ray reports with a delay
            time.sleep(0.2)
        return {"rows": summary.total.rows, "actors": notes_of(output), "asked": asked, "left": left}

    found: dict[str, Any] = {
        "whole": go("whole", actors={"min": 0, "max": 5}, gpus_per_actor=1),
        "half": go("half", actors={"min": 0, "max": 3}, gpus_per_actor=0.5, actors_per_node=2),
    }
    found["said"] = [line for line in said if line.startswith("waiting")]
    ray.shutdown()
    return found


if __name__ == "__main__":
    from testing.pipeline import noted_engines  # workers look for its functions by this name

    print(json.dumps(noted_engines._on_made_up_gpus(Path(sys.argv[1]))))
