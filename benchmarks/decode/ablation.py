"""Each gate of the planner left out: the rate without it over the rate with it.

    python -m benchmarks.decode.ablation

In the simulation (:mod:`testing.engine.planner_simulation`), which the machine's load does not touch, and on the CPU
with the shipped tiny model: there all planners take turns on one engine, each pass begins with a planner that has seen
nothing, and what is compared is the processor time of passes of the same round.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from wedlm_core.engine.windows.planner import WindowPlanner
from wedlm_core.engine.windows.tuning import DEFAULT_TUNING, PlannerTuning

from benchmarks.common import table, write_result
from benchmarks.decode.passes import Workload, run_pass
from benchmarks.decode.workloads import Subject, mixed, open_subject, regime
from testing.engine.planner_simulation import H200, Planned, Scenario, simulate
from wedlm_core import Strategy

__all__ = ["CPU_POINTS", "GATES", "SCENARIOS", "main", "processor_seconds", "simulated_rates"]

GATES: Mapping[str, Mapping[str, object]] = {
    "sequences forget their past": {"sequence_kept": 1.0},
    "the job forgets its past": {"job_kept": 1.0},
    "failure ratio of a sequence": {"prior_failures": 1e12},
    "a sequence's own hazard at an offset": {"prior_sequence": 1e12},
    "correction of the cost table": {"forward_error": 1e9},
    "of the machine's speed": {"speed_error": 0.0, "speed_drift": 0.0},
    "disturbed times clipped": {"disturbed": 1e12},
    "cheapest near-optimal": {"near_optimal": 1.0},
    "longer intervals for more sequences": {"sequences_per_forward": 1 << 30},
    "longer intervals while plans change nothing": {"most_patience": 1, "most_patience_alone": 1},
    "lengths of the outputs that ended": {"lengths_trusted": 1 << 30},
    "prefill counted with commits": {"prior_commits": 1e12},
    "probes": {"probe_share": 0.0},
    "what a probe costs besides its rows": {"probe_cost": 0.0},
    "rarer probes while they change nothing": {"most_probe_patience": 1},
    "what comes second is timed": {"rival_within": 1e9},
    "and early": {"first_rival_interval": 1024},
    "masks and none are compared": {"visit_share": 0.0},
    "no masks where these come close": {"alone_within": 1.0},
}
_EASY, _MEDIUM, _HARD, _MIXED = (0.95,), (0.8,), (0.5,), (0.5, 0.8, 0.95)
SCENARIOS: Mapping[str, Scenario] = {
    **{
        f"batch {batch}, {context} tokens of context, acceptance {'/'.join(map(str, acceptance))}": Scenario(
            batch=batch, context=context, acceptance=acceptance, stale=0.7
        )
        for acceptance, (batch, context) in itertools.product(
            (_EASY, _MEDIUM, _HARD, _MIXED), ((1, 1024), (8, 1024), (32, 1024), (128, 1024), (128, 4096))
        )
    },
    **{
        f"batch {batch}, the job turns easy and hard": Scenario(
            batch=batch, context=1024, acceptance=_EASY, later=_HARD, stale=0.7
        )
        for batch in (1, 8, 32, 128)
    },
    **{
        f"batch {batch}, outputs of 24 behind prompts of 96": Scenario(
            batch=batch, context=128, acceptance=acceptance, tokens=24, prompt=96, stale=0.7
        )
        for batch, acceptance in itertools.product((8, 32), (_MEDIUM, _MIXED))
    },
    **{
        f"batch {batch}, host time, {acceptance[0]}": Scenario(
            batch=batch, context=1024, acceptance=acceptance, stale=0.7, host_seconds=(2e-3, 4e-3)
        )
        for batch, acceptance in itertools.product((8, 64), (_HARD, _MIXED))
    },
    **{
        f"batch {batch}, {with_drafts} of steps with drafts and {without} of others is not seen by parts": Scenario(
            batch=batch, context=1024, acceptance=_MEDIUM, stale=0.7, hidden=(without, with_drafts), noise=0.1
        )
        for batch, (without, with_drafts) in itertools.product((8, 64), ((0.0, 0.3), (0.3, 0.0)))
    },
}
CPU_POINTS = (("low", 1, 12), ("medium", 8, 48), ("high", 8, 24), ("mixed", 32, 96))
"""Regime, sequences at once, prompts."""
_NOISE = "noise: the same planner again"


def simulated_rates(tuning: PlannerTuning, *, forwards: int, warm_up: int, seed: int = 0) -> list[float]:
    """Tokens per second in each scenario; small batches, in which chance counts for more, run for longer."""
    return [
        simulate(
            s, Planned(H200, tuning), forwards=forwards * max(1, 8 // s.batch), warm_up=warm_up, seed=s.batch + seed
        ).rate
        for s in SCENARIOS.values()
    ]


def processor_seconds(
    subject: Subject, point: tuple[str, int, int], tunings: Mapping[str, PlannerTuning], rounds: int
) -> dict[str, list[float]]:
    """Processor seconds of passes by planner and round, all planners in turn in each round."""
    name, batch, count = point
    whole = mixed(subject, batch) if name == "mixed" else regime(subject, name, batch)
    work = Workload(prompts=whole.prompts[:count], params=whole.params[:count], concurrency=batch)
    engine, settings = subject.llm.engine, {"strategy": Strategy.VERIFIED, "window_size": "auto"}
    found: dict[str, list[float]] = {tuning: [] for tuning in tunings}
    run_pass(subject.llm, work, settings)
    order, random = list(tunings), np.random.default_rng(0)
    expected = None
    for _ in range(rounds):
        for tuning in random.permutation(order).tolist():
            engine._planner = WindowPlanner(
                engine._table, engine.config.max_window, engine.config.max_batch_rows, tunings[tuning]
            )
            begin = time.process_time()
            ids = run_pass(subject.llm, work, settings).ids
            found[tuning].append(time.process_time() - begin)
            expected = expected or ids
            if ids != expected:
                raise AssertionError(f"{tuning}: windows changed tokens")
    return found


def _without() -> dict[str, PlannerTuning]:
    return {name: replace(DEFAULT_TUNING, **changes) for name, changes in GATES.items()}  # type: ignore[arg-type]


def _simulation(forwards: int, warm_up: int, seeds: int) -> dict[str, tuple[float, float, str]]:
    """By gate: geometric mean and minimum of the ratio over scenarios, and where the minimum is."""

    def rates(tuning: PlannerTuning, first: int) -> np.ndarray:
        runs = [
            simulated_rates(tuning, forwards=forwards, warm_up=warm_up, seed=1000 * (first + i)) for i in range(seeds)
        ]
        return np.mean(runs, axis=0)

    base, names, found = rates(DEFAULT_TUNING, 0), list(SCENARIOS), {}
    for name, tuning, first in [(_NOISE, DEFAULT_TUNING, seeds), *((n, t, 0) for n, t in _without().items())]:
        ratio = rates(tuning, first) / base
        found[name] = (float(np.exp(np.log(ratio).mean())), float(ratio.min()), names[int(ratio.argmin())])
        print(name, *found[name], sep=" | ", flush=True)
    return found


def _measured(rounds: int) -> dict[str, list[float]]:
    """By gate: ratio at each point."""
    tunings = {"with": DEFAULT_TUNING, _NOISE: DEFAULT_TUNING, **_without()}
    found: dict[str, list[float]] = {name: [] for name in tunings}
    with open_subject("tiny") as subject:
        for point in CPU_POINTS:
            begin = time.perf_counter()
            seconds = processor_seconds(subject, point, tunings, rounds)
            for name, own in seconds.items():
                found[name].append(statistics.median(a / b for a, b in zip(seconds["with"], own, strict=True)))
            worst = sorted(seconds, key=lambda n: found[n][-1])[:6]
            print(point, f"{time.perf_counter() - begin:.0f} s", found[_NOISE][-1],
                  [(n, round(found[n][-1], 3)) for n in worst], flush=True)  # fmt: skip
    return found


def main() -> None:
    """Leave each gate out and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--forwards", type=int, default=600)
    parser.add_argument("--warm-up", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    import torch

    torch.set_num_threads(args.threads)
    simulated = _simulation(args.forwards, args.warm_up, args.seeds) if args.seeds else {}
    measured = _measured(args.rounds) if args.rounds else {}
    write_result(
        "planner-ablation", "The planner, each gate left out", "python -m benchmarks.decode.ablation",
        _body(simulated, measured), threads=args.threads,
    )  # fmt: skip


def _body(simulated: Mapping[str, tuple[float, float, str]], measured: Mapping[str, Sequence[float]]) -> str:
    rows: list[tuple[object, ...]] = []
    for name in (_NOISE, *GATES):
        mean, least, where = simulated.get(name, (1.0, 1.0, ""))
        cpu = measured.get(name, [1.0])
        rows.append((name, f"{mean:.3f}", f"{least:.3f}", where, f"{statistics.geometric_mean(cpu):.3f}",
                     f"{min(cpu):.3f}"))  # fmt: skip
    header = ("left out", "simulation, mean", "lowest", "where", "CPU, mean", "lowest")
    return table(header, rows)


if __name__ == "__main__":
    main()
