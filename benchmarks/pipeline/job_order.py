"""Compares two orders of rows, longest first and by arrival: slots in use, and seconds of the last 5% of rows.

    python -m benchmarks.pipeline.job_order [--seeds 5]
    python -m benchmarks.pipeline.job_order --real-rows 1000 [--rounds 3]

Output lengths are log-normal with a sigma of 1. The first command simulates engines: each has 64 slots, and every slot
generates one token per step. The dispatcher and the queues are the real ones. The second command measures the shipped
model, with ``ignore_eos`` and a ``max_tokens`` in each row; the two orders run in turns. For the order of arrival all
rows count as one size; nothing else differs.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.common import positive, table, write_result
from pipeline import layout
from pipeline.cluster.executor import RayExecutor
from pipeline.codec import EngineConfig, SamplingParams
from pipeline.commands.run import run_on
from pipeline.config import RunConfig
from pipeline.plan.job import Job
from pipeline.storage.open import open_storage
from pipeline.worker.lengths import Kind, Lengths
from pipeline.worker.load_engine import load_engine
from testing.pipeline.simulated_job import JobTimes, SimulatedJob, cut, skewed_rows, without_hints

_MEDIAN, _MOST = 100, 2048
_JOBS = ((1, 4_000, 8), (1, 4_000, 32), (4, 16_000, 8), (4, 16_000, 32), (4, 3_000, 8))
"""Simulated jobs: actors, rows, and rows of a unit."""
_REAL_MEDIAN, _REAL_MOST, _REAL_SLOTS = 48, 900, 32


def main(argv: Sequence[str] | None = None) -> None:
    """Simulate, measure, write the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=positive, default=5)
    parser.add_argument("--real-rows", type=int, default=0)
    parser.add_argument("--rounds", type=positive, default=3)
    args = parser.parse_args(argv)
    names = ("order", "slots in use", "seconds", "last 5% of rows", "of that in order of arrival")
    command = "python -m benchmarks.pipeline.job_order"
    if args.real_rows:
        about = (
            f"Measured: {args.real_rows} rows, {_REAL_SLOTS} slots, one actor with one thread, {args.rounds} rounds in "
            f"turns (medians). Seconds are CPU time of the engine's thread. {_REAL_MEDIAN} tokens in the median, at "
            f"most {_REAL_MOST}."
        )
        body = f"{about}\n\n" + table(names, _measured(args.real_rows, args.rounds))
        command += f" --real-rows {args.real_rows} --rounds {args.rounds}"
        write_result("job-order-measured", "The longest rows first: the shipped model", command, body, threads=1)
        return
    about = (
        f"Simulated, {args.seeds} seeds. A second is a token of a slot; rows have {_MEDIAN} tokens in the median, at "
        f"most {_MOST}. Known from limits: `max_tokens` with `ignore_eos`. Learned: a template, one of 20, decides "
        "half of the variance."
    )
    body = f"{about}\n\n" + table(("actors", "rows", "rows of a unit", *names), _simulated(args.seeds))
    command += f" --seeds {args.seeds}"
    write_result("job-order", "The longest rows first: a simulation", command, body, threads=1)


def _line(order: str, full: float, seconds: float, last: float, before: float) -> tuple[str, ...]:
    return order, f"{full:.1%}", _seconds(seconds), _seconds(last), f"{last / before:.2f}"


def _seconds(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"


# --- simulated --------------------------------------------------------------------------------------


def _simulated(seeds: int) -> Iterator[tuple[str, ...]]:
    for actors, count, unit_rows in _JOBS:
        config = RunConfig(
            input="-", output="-", actors=actors, unit_rows=unit_rows, engine=EngineConfig(max_num_seqs=64)
        )

        def run(seed: int, *, learned: bool, ordered: bool, config: RunConfig = config, count: int = count) -> JobTimes:
            rows = skewed_rows(seed, count, median=_MEDIAN, most=_MOST, learned=learned)
            units = cut(rows if ordered else without_hints(rows), config.resolved_unit_rows())
            return SimulatedJob(config, units, [1.0] * config.most_actors, ordered=ordered).run()

        for known in ("limits", "learned"):
            before = 0.0
            for order in ("arrival", f"longest first, {known}"):
                some = [run(seed, learned=known == "learned", ordered=order != "arrival") for seed in range(seeds)]
                full, seconds, last = (
                    statistics.mean(getattr(times, name) for times in some)
                    for name in ("utilisation", "seconds", "last_rows")
                )
                before = before or last
                yield (str(actors), str(count), str(unit_rows), *_line(order, full, seconds, last, before))


# --- measured ---------------------------------------------------------------------------------------


def _of_one_size(self: Lengths, kinds: Iterable[Kind]) -> int:
    return 0


def _load_logged(log: str, *, ordered: bool) -> Callable[[Job, int | None], Any]:
    """A loader whose engine logs each step: CPU seconds of its thread, running requests, finished requests."""

    def load(job: Job, num_threads: int | None) -> Any:
        if not ordered:
            Lengths.size = _of_one_size  # type: ignore[method-assign]
        engine: Any = load_engine(job, num_threads)
        step, file = engine.step, open(log, "a", encoding="utf-8", buffering=1)  # noqa: SIM115

        def logged() -> Any:
            done = step()
            file.write(json.dumps((time.thread_time(), engine.snapshot().running + len(done), len(done))) + "\n")
            return done

        engine.step = logged
        return engine

    return load


@contextmanager
def _sizes(*, ordered: bool) -> Iterator[None]:
    """Give the dispatcher of this process real sizes, or one size for all units."""
    own = Lengths.size
    try:
        if not ordered:
            Lengths.size = _of_one_size  # type: ignore[method-assign]
        yield
    finally:
        Lengths.size = own  # type: ignore[method-assign]


def _measured(count: int, rounds: int) -> Iterator[tuple[str, ...]]:
    found: dict[bool, list[tuple[float, float, float]]] = {False: [], True: []}
    with tempfile.TemporaryDirectory() as made:
        draw = random.Random(1)
        limits = [min(_REAL_MOST, max(1, round(_REAL_MEDIAN * draw.lognormvariate(0, 1)))) for _ in range(count)]
        prompts = [f"Count from {i % 97} to {i % 97 + 10 + i % 33}." for i in range(count)]
        pq.write_table(pa.table({"prompt": prompts, "limit": limits}), f"{made}/in.parquet")
        for number in range(rounds):
            for ordered in (False, True) if number % 2 else (True, False):
                found[ordered].append(_one(Path(made), number, ordered=ordered))
    before = statistics.median(last for _, _, last in found[False])
    for ordered, name in ((False, "arrival"), (True, "longest first, limits")):
        full, seconds, last = (statistics.median(values) for values in zip(*found[ordered], strict=True))
        yield _line(name, full, seconds, last, before)


def _one(folder: Path, number: int, *, ordered: bool) -> tuple[float, float, float]:
    """Run a job; its share of slots in use, seconds, and seconds of the last 5% of rows, from the engine's log."""
    name = f"{number}-{ordered}"
    config = RunConfig(
        input=f"{folder}/in.parquet", output=f"{folder}/{name}", model="tiny", actors=1, num_threads=1, report=False,
        sampling=SamplingParams(ignore_eos=True, max_tokens=_REAL_MOST), sampling_columns={"max_tokens": "limit"},
        engine=EngineConfig(max_num_seqs=_REAL_SLOTS),
    )  # fmt: skip
    log = folder / f"{name}.jsonl"
    with _sizes(ordered=ordered):
        executor = RayExecutor(config, _load_logged(str(log), ordered=ordered))
        run_on(executor, config, open_storage(config.output, layout.SCRATCH), lambda progress: None)
    steps = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    begin, end = steps[0][0], steps[-1][0]
    busy = sum((b[0] - a[0]) * b[1] for a, b in itertools.pairwise(steps))
    rows, done, most = sum(step[2] for step in steps), 0, end
    for moment, _, finished in steps:
        done += finished
        if done >= 0.95 * rows:
            most = moment
            break
    return busy / (_REAL_SLOTS * (end - begin)), end - begin, end - most


if __name__ == "__main__":
    main()
