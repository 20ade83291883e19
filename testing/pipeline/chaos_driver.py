"""A driver process for tests that kill it: ``python -m testing.pipeline.chaos_driver spec.json``.

The specification: ``config`` (fields of RunConfig), ``counters`` (folder of the engines' counts), ``failures``
(probability that an operation on the output fails), ``ttl`` (seconds of a lease), ``pace`` (seconds of an engine's
step, at least). Exit status as for ``jobs.generate``: 0 done, 1 failed, 143 ended by SIGTERM.
"""

from __future__ import annotations

import functools
import json
import signal
import sys
from pathlib import Path
from types import FrameType

import pipeline
from jobs.cli import show_stages
from pipeline import layout
from pipeline.cluster.executor import RayExecutor
from pipeline.commands.run import run_on
from pipeline.commit import lease
from pipeline.config import RunConfig
from pipeline.storage.open import open_storage
from pipeline.storage.retry import RetryingStorage
from testing.engine.counted_engine import counted_engine
from testing.pipeline.faults import FailAtRandom, FaultyStorage


def _stop(signum: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + signum)


def main() -> int:
    """Run the specified job."""
    spec = json.loads(Path(sys.argv[1]).read_text())
    signal.signal(signal.SIGTERM, _stop)
    show_stages()
    lease.TTL_SECONDS = spec["ttl"]
    config = RunConfig.from_mapping(spec["config"])
    storage = open_storage(config.output, layout.SCRATCH, config.output_options)
    if spec["failures"]:
        storage = RetryingStorage(FaultyStorage(storage.inner, FailAtRandom(probability=spec["failures"])))
    load = functools.partial(counted_engine, folder=spec["counters"], pace=spec["pace"])
    try:
        run_on(RayExecutor(config, load), config, storage, lambda progress: None)
    except pipeline.PipelineError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
