"""What the pipeline itself costs: rows per second and memory with an engine that answers at once.

    python -m benchmarks.pipeline.overhead [--rows 20000 200000] [--actors 1] [--profile]

Everything but the model is real: Parquet in, the Ray graph, tokenising, the actor's engine thread, the codec,
staged units, the ledger, published Parquet, each row read back and counted. Each size runs in a process of its
own, so that its memory is its own. Rows per second are over planning, generating and publishing; the start of Ray
and of the actors' processes is left out and shown apart.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq

import pipeline
from benchmarks.common import table, write_result
from pipeline.cluster.executor import RayExecutor
from pipeline.cluster.session import ensure_ray
from pipeline.codec import FinishReason, Generation, Request
from pipeline.commands.run import run_on
from pipeline.plan.job import Job
from pipeline.progress.snapshot import Progress
from pipeline.storage.open import open_storage
from wedlm_core.types import CommitStats

__all__ = ["InstantEngine", "main"]

TOKENS = 16


class InstantEngine:
    """Takes requests and answers all of them in the next step with the same tokens."""

    def __init__(self) -> None:
        self._waiting: list[Request] = []

    def add(self, request: Request) -> None:
        """Take it."""
        self._waiting.append(request)

    def abort(self, request_id: str) -> None:
        """Forget a request."""
        self._waiting = [request for request in self._waiting if request.request_id != request_id]

    def has_work(self) -> bool:
        """Whether any waits."""
        return bool(self._waiting)

    def step(self) -> list[Generation]:
        """Answer everything."""
        waiting, self._waiting = self._waiting, []
        return [_answer(request) for request in waiting]


_TOKEN_IDS = tuple(range(100, 100 + TOKENS))
_TEXT = "sixteen tokens of a made-up answer to a short prompt"


def _answer(request: Request) -> Generation:
    stats = CommitStats(
        generated_tokens=TOKENS, decode_forwards=2, rows_forwarded=33, commit_histogram=(0,) * 8 + (2,),
        mean_entropy=0.1, max_entropy=0.5, mean_logprob=-0.1, draft_agreement=0.9, window_mean=16.5, max_window=17,
    )  # fmt: skip
    return Generation(
        request_id=request.request_id, sample_index=request.sample_index, text=_TEXT, token_ids=_TOKEN_IDS,
        prompt_tokens=len(request.prompt_token_ids), finish_reason=FinishReason.LENGTH, seed=request.seed, stats=stats,
    )  # fmt: skip


def instant_engine(job: Job, num_threads: int | None) -> InstantEngine:
    """In the place of the model."""
    return InstantEngine()


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One size. Seconds of each phase; memory in MiB that belongs to the process alone (USS), its highest value."""

    rows: int
    units: int
    start_seconds: float
    planning_seconds: float
    generating_seconds: float
    publishing_seconds: float
    driver_mib: float
    actor_mib: float
    task_mib: float

    @property
    def rows_per_second(self) -> float:
        """Start left out."""
        return self.rows / (self.planning_seconds + self.generating_seconds + self.publishing_seconds)


class MemoryWatch:
    """Samples the memory of this process and of its Ray workers until closed."""

    def __init__(self, every: float = 0.25) -> None:
        self.highest: dict[str, int] = {}
        self._every = every
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop sampling."""
        self._stop.set()
        self._thread.join()

    def mib(self, kind: str) -> float:
        """Highest sample of "driver", "actor" or "task"."""
        return self.highest.get(kind, 0) / 2**20

    def _run(self) -> None:
        while not self._stop.wait(self._every):
            self._sample("driver", psutil.Process())
            for child in psutil.Process().children(recursive=True):
                try:
                    title = " ".join(child.cmdline()[:1])
                    if title.startswith("ray::"):
                        self._sample("actor" if "GenerateActor" in title else "task", child)
                except psutil.Error:
                    continue

    def _sample(self, kind: str, process: psutil.Process) -> None:
        self.highest[kind] = max(self.highest.get(kind, 0), process.memory_full_info().uss)


def measure(rows: int, actors: int) -> Measured:
    """Run one size in this process."""
    with tempfile.TemporaryDirectory(prefix="wedlm-overhead-") as folder:
        source = _write_prompts(Path(folder) / "prompts.parquet", rows)
        config = pipeline.RunConfig(
            input=str(source), output=str(Path(folder) / "out"), model="tiny", actors=actors,
            sampling=pipeline.SamplingParams(max_tokens=TOKENS),
        )  # fmt: skip
        begin = time.monotonic()
        ensure_ray()
        watch = MemoryWatch()
        moments = [time.monotonic()]

        def on_progress(progress: Progress) -> None:
            moments.append(time.monotonic())

        executor = RayExecutor(config, load=instant_engine)
        summary = run_on(executor, config, open_storage(config.output, pipeline.layout.SCRATCH), on_progress)
        end = time.monotonic()
        watch.close()
        _check(config.output, rows)
    return Measured(
        rows=rows,
        units=summary.total.units,
        start_seconds=moments[0] - begin + summary.seconds - summary.generating_seconds,
        planning_seconds=moments[1] - moments[0],
        generating_seconds=summary.generating_seconds,
        publishing_seconds=end - moments[-1],
        driver_mib=watch.mib("driver"),
        actor_mib=watch.mib("actor"),
        task_mib=watch.mib("task"),
    )


def _write_prompts(path: Path, rows: int) -> Path:
    with pq.ParquetWriter(path, pa.schema([("prompt", pa.string()), ("topic", pa.int64())])) as writer:
        for first in range(0, rows, 10_000):
            numbers = range(first, min(first + 10_000, rows))
            prompts = [f"Count from {i % 90} to {i % 90 + 9}, please." for i in numbers]
            writer.write_table(pa.table({"prompt": prompts, "topic": list(numbers)}))
    return path


def _check(output: str, rows: int) -> None:
    """Every row is there once, in order; read in batches, so that it costs no memory."""
    count = 0
    for part in sorted(Path(output).glob("data-*/*.parquet")):
        for batch in pq.ParquetFile(part).iter_batches(columns=["topic", "text"]):
            assert batch["topic"].to_pylist() == list(range(count, count + len(batch)))
            assert batch["text"].null_count == 0
            count += len(batch)
    if count != rows:
        raise AssertionError(f"{rows} rows went in, {count} came out")


def _in_own_process(rows: int, actors: int) -> Measured:
    command = [sys.executable, "-m", "benchmarks.pipeline.overhead", "--child", str(rows), "--actors", str(actors)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return Measured(**json.loads(done.stdout.splitlines()[-1]))


def main(argv: Sequence[str] | None = None) -> None:
    """Measure all sizes and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[20_000, 200_000])
    parser.add_argument("--actors", type=int, default=1)
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.child:
        print(json.dumps(asdict(measure(args.child, args.actors))))
        return
    found = [_in_own_process(rows, args.actors) for rows in args.rows]
    _report(found, args.actors)


def _report(found: list[Measured], actors: int) -> None:
    header = ("rows", "units", "rows/s", "planning s", "generating s", "publishing s", "start s (left out)",
              "driver MiB", "actor MiB", "reading task MiB")  # fmt: skip
    lines: list[tuple[Any, ...]] = [
        (m.rows, m.units, round(m.rows_per_second), m.planning_seconds, m.generating_seconds, m.publishing_seconds,
         m.start_seconds, round(m.driver_mib), round(m.actor_mib), round(m.task_mib))
        for m in found
    ]  # fmt: skip
    body = table(header, lines)
    body += (
        f"\n\nAn engine that answers {TOKENS} tokens at once stands for the model; {actors} actor(s). Memory: highest "
        "sample (every 0.25 s) of what belongs to the process alone."
    )
    first, last = found[0], found[-1]
    for name in ("driver", "actor"):
        before, after = getattr(first, f"{name}_mib"), getattr(last, f"{name}_mib")
        body += f"\n\n{name.capitalize()} memory, {last.rows} rows against {first.rows}: {after / before - 1:+.1%}."
    rows = " ".join(str(m.rows) for m in found)
    command = f"python -m benchmarks.pipeline.overhead --rows {rows} --actors {actors}"
    write_result("pipeline-overhead", "The pipeline without its model", command, body)


if __name__ == "__main__":
    main()
