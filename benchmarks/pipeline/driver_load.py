"""What a driver of thousands of GPUs has to do, and whether it keeps up: the real decisions, with simulated actors.

    python -m benchmarks.pipeline.driver_load [--actors 1000 4000] [--rows 100000000]

First a real run on Ray, of units of one row and one token, tells what a unit costs the driver process, Ray's calls
included. Then :mod:`testing.pipeline.cluster_simulation` runs a job of 100 million rows on each number of actors, 5% of
whose nodes are lost an hour, with the real dispatcher, scaler, index and ledger; each unit is charged what the real run
says beyond what is run for real.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

import psutil
import pyarrow as pa

from benchmarks.common import table, write_result
from testing.pipeline.cluster_simulation import Outcome, Scenario, simulate

__all__ = ["main", "unit_seconds"]

_MEMORY = Path("/dev/shm")


def unit_seconds(units: int) -> float:
    """Processor seconds of the driver process for each unit, between the first and the last commit of a real run."""
    import pipeline

    process, seen = psutil.Process(), []

    def on_progress(progress: pipeline.Progress) -> None:
        if progress.session.rows:
            times = process.cpu_times()
            seen.append((progress.session.rows, times.user + times.system))

    with tempfile.TemporaryDirectory() as folder:
        pipeline.run(
            pa.table({"prompt": [f"Count to {i}." for i in range(units)]}), model="tiny", output=f"{folder}/out",
            unit_rows=1, num_threads=1, sampling=pipeline.SamplingParams(max_tokens=1, strategy="autoregressive"),
            on_progress=on_progress,
        )  # fmt: skip
    (first, begin), (last, end) = seen[0], seen[-1]
    return (end - begin) / (last - first)


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, simulate, write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--actors", type=int, nargs="+", default=[1000, 4000])
    parser.add_argument("--rows", type=int, default=100_000_000)
    parser.add_argument("--real-units", type=int, default=4000)
    args = parser.parse_args(argv)
    real = unit_seconds(args.real_units)
    print(f"a real run: {1e6 * real:.0f} us of the driver for a unit", flush=True)
    found: list[tuple[Scenario, Outcome]] = []
    with tempfile.TemporaryDirectory(dir=_MEMORY if _MEMORY.is_dir() else None) as folder:
        small = simulate(Scenario(actors=100, rows=2_000_000), Path(folder) / "small")
        rest = max(0.0, real - sum(small.driver_seconds.values()) / small.units)
        for actors in args.actors:
            scenario = Scenario(actors=actors, rows=args.rows, call_seconds=rest)
            found.append((scenario, simulate(scenario, Path(folder) / str(actors))))
            print(scenario, found[-1][1], sep="\n", flush=True)
    _report(real, rest, found)


def _report(real: float, rest: float, found: Sequence[tuple[Scenario, Outcome]]) -> None:
    scenario = found[0][0]
    header = ("GPUs", "hours", "units/s", "GPU efficiency", "driver load", "its memory, MB", "ledger entries/s",
              "ledger puts/s", "puts of all/s", "nodes lost", "units run again")  # fmt: skip
    lines = [
        (s.actors, o.seconds / 3600, o.units / o.seconds, o.efficiency, o.driver_load, o.peak_bytes / 1e6,
         o.units / o.seconds, o.ledger_puts / o.seconds, (o.ledger_puts + o.units) / o.seconds, o.lost_nodes,
         o.executions - o.units)
        for s, o in found
    ]  # fmt: skip
    parts = sorted(found[0][1].driver_seconds, key=lambda name: -found[0][1].driver_seconds[name])
    spent = [
        (part, *(f"{1e6 * o.driver_seconds[part] / o.units:.0f}" for _, o in found)) for part in parts
    ]  # fmt: skip
    body = (
        f"{scenario.rows} rows in units of {scenario.unit_rows}; a GPU does {1 / scenario.row_seconds:g} rows/s; "
        f"{scenario.lost_an_hour:.0%} of the nodes of {scenario.per_node} GPUs are lost an hour, each back after "
        f"{scenario.back_seconds:g} s; a put takes {1000 * scenario.put_seconds:g} ms. Every unit was committed once "
        f"({', '.join(str(o.commits) for _, o in found)}).\n\n"
        + table(header, lines)
        + "\n\nMicroseconds of the driver for a unit:\n\n"
        + table(("part", *(f"{s.actors} GPUs" for s, _ in found)), spent)
        + f"\n\nA real run on Ray (units of one row and one token) costs the driver process {1e6 * real:.0f} us a "
        f"unit; the {1e6 * rest:.0f} us of it that the simulation does not run are charged to it as calls of actors. "
        "Driver load: processor seconds of the driver over seconds of the job; it keeps up below 1. Prefetching "
        "is taken to keep up: it runs on other processes, at the speed of the cluster's CPUs."
    )
    command = f"python -m benchmarks.pipeline.driver_load --actors {' '.join(str(s.actors) for s, _ in found)}"
    write_result("driver-load", "A driver of thousands of GPUs", command, body)


if __name__ == "__main__":
    main()
