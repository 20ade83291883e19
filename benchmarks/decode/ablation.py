"""Leave out each part of drafting: the rate without it over the rate with it.

    python -m benchmarks.decode.ablation [--seeds 2] [--forwards 500] [--processes 2] [--rounds 0]

In the simulation (:mod:`testing.engine.drafting_simulation`), which the machine's load does not touch, every part is
left out in every scenario. With ``--rounds``, the shipped model decodes texts that repeat on this CPU, for the parts
that the simulation does not have. All variants take turns, and each pass begins with a new engine. Processor times are
compared within a round. A part stays if it gains 1% on the mean or 2% at its best point.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from benchmarks.common import positive, table, write_result
from benchmarks.decode.history_engine import prompts_of
from benchmarks.decode.passes import Workload, run_pass
from testing.engine.drafting_simulation import H200, Planned, Scenario, simulate
from wedlm_core import EngineConfig, SamplingParams, Strategy
from wedlm_core.config.step_cost import StepCost
from wedlm_core.engine import Engine
from wedlm_core.engine.drafting.constants import CONSTANTS, DraftingConstants
from wedlm_core.engine.drafting.drafting import Drafting
from wedlm_core.engine.scheduling.slots import IntArray, SlotTable
from wedlm_core.llm import LLM

_NOISE = "noise: nothing left out, other seeds"
_ALL = 1e12  # a weight beside which no count matters
_KEPT = 0.01, 0.02  # a part stays with such a gain on the mean and at the best point


def _nothing(drafting: Drafting) -> None:
    """Leave nothing out."""


def _no_corrections(drafting: Drafting) -> None:
    controller, arms = drafting.controller, drafting.controller._records
    controller._corrected = lambda expected: {  # type: ignore[method-assign]
        arm: rate for arm, rate in expected.items() if arm in arms and rate > 0
    }


def _no_host_seconds(drafting: Drafting) -> None:
    drafting._host_time.record = lambda *args, **kinds: None  # type: ignore[method-assign]


def _no_classes(drafting: Drafting) -> None:
    if drafting._history is not None:
        history = drafting._history._history
        history._memory = history._memory._replace(prior=_ALL)


def _no_finished_rows(drafting: Drafting) -> None:
    if drafting._history is not None:
        drafting._history._history.close = lambda slot: None  # type: ignore[method-assign]


def _no_prefill(drafting: Drafting) -> None:
    load = drafting._load
    drafting._load = lambda *args: replace(load(*args), prefill_rows=0.0)  # type: ignore[method-assign]


def _no_stale_drafts(drafting: Drafting) -> None:
    admit, plan, table = drafting.admit, drafting.plan, drafting._table

    def admitted(slots_S: IntArray, *others: Any) -> None:
        admit(slots_S, *others)
        table.keep_stale[slots_S] = 0

    def planned(slots_R: IntArray, spare_tokens: Callable[[], int]) -> bool:
        found = plan(slots_R, spare_tokens)
        table.keep_stale[slots_R] = 0
        return found

    drafting.admit, drafting.plan = admitted, planned  # type: ignore[method-assign, assignment]


@dataclass(frozen=True, kw_only=True)
class Part:
    """A part of drafting, and the switch that leaves it out.

    Attributes:
        constants: that change.
        change: is called with the drafting before its first step.
    """

    constants: Mapping[str, object] = field(default_factory=dict)
    change: Callable[[Drafting], None] = _nothing

    @property
    def without(self) -> DraftingConstants:
        """The constants without the part."""
        return replace(CONSTANTS, **self.constants)  # type: ignore[arg-type]


PARTS: Mapping[str, Part] = {
    "acceptance: forgetting": Part(constants={"counts_kept": 1.0}),
    "acceptance: the job's counts as prior": Part(constants={"sequence_prior": 0.01, "failure_prior": 0.01}),
    "acceptance: a sequence's own counts by offset": Part(constants={"sequence_prior": _ALL}),
    "acceptance: the failure ratio of a sequence": Part(constants={"failure_prior": _ALL}),
    "stale drafts": Part(change=_no_stale_drafts),
    "step time: seconds of the host": Part(change=_no_host_seconds),
    "step time: prefill": Part(change=_no_prefill),
    "controller: corrections": Part(change=_no_corrections),
    "controller: all trials": Part(constants={"near": _ALL, "trial_share": 0.0}),
    "controller: trials at the start": Part(constants={"near": _ALL}),
    "controller: later trials": Part(constants={"trial_share": 0.0}),
    "controller: uncounted forwards": Part(constants={"uncounted": 0}),
    "controller: least gain to switch": Part(constants={"least_gain": 0.0}),
    "plans: rarer while they change nothing": Part(constants={"plan_forwards": (CONSTANTS.plan_forwards[0],) * 2}),
    "plans: the fewest rows near the best rate": Part(constants={"near_best": 1.0}),
    "steps that something disturbed": Part(constants={"disturbed": _ALL}),
}
"""The part left out, by name."""
HISTORY_PARTS: Mapping[str, Part] = {
    "history: finished rows": Part(change=_no_finished_rows),
    "history: n-grams of several lengths": Part(constants={"orders": (1,)}),
    "history: votes of several occurrences": Part(constants={"walk": 1}),
    "history: learned acceptance": Part(change=_no_classes),
}
"""The same for parts that the simulation does not have."""
CHOSEN = "controller: corrections", "controller: all trials", "controller: later trials"
"""Parts that are left out on the CPU as well: they decide whether masks pay next to history."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A scenario of the simulation, the costs that hold there, and those that drafting believes at first."""

    scenario: Scenario
    cost: StepCost = H200
    believed: StepCost = H200


_EASY, _MEDIUM, _HARD, _MIXED = (0.95,), (0.8,), (0.5,), (0.5, 0.8, 0.95)
_CPU_COST = StepCost.linear(fixed=0.45e-3, per_row=17e-6, floor_rows=8)
_BELIEVED = {
    "rows thought cheap": StepCost.linear(fixed=0.9e-3, per_row=8e-6, floor_rows=24),
    "rows thought expensive": StepCost.linear(fixed=0.2e-3, per_row=30e-6),
}


def _cases() -> dict[str, Case]:
    found: dict[str, Case] = {}
    shapes = ((1, 1024), (8, 1024), (32, 1024), (128, 1024), (128, 4096))
    for acceptance, (batch, context) in itertools.product((_EASY, _MEDIUM, _HARD, _MIXED), shapes):
        found[f"batch {batch}, context {context}, acceptance {'/'.join(map(str, acceptance))}"] = Case(
            scenario=Scenario(batch=batch, context=context, acceptance=acceptance, stale=0.7)
        )
    for batch in (1, 8, 32, 128):
        found[f"batch {batch}, the job turns easy and hard"] = Case(
            scenario=Scenario(batch=batch, context=1024, acceptance=_EASY, later=_HARD, stale=0.7)
        )
    for batch, acceptance in itertools.product((8, 32), (_MEDIUM, _MIXED)):
        found[f"batch {batch}, outputs of 24 after prompts of 96, {acceptance[-1]}"] = Case(
            scenario=Scenario(batch=batch, context=128, acceptance=acceptance, tokens=24, prompt=96, stale=0.7)
        )
    for batch, acceptance in itertools.product((8, 64), (_HARD, _MIXED)):
        found[f"batch {batch}, host time, {acceptance[-1]}"] = Case(
            scenario=Scenario(batch=batch, context=1024, acceptance=acceptance, stale=0.7, host_seconds=(2e-3, 4e-3))
        )
    for batch, hidden in itertools.product((8, 64), ((0.0, 0.3), (0.3, 0.0))):
        found[f"batch {batch}, {hidden[1]} of steps with drafts and {hidden[0]} of others hidden"] = Case(
            scenario=Scenario(batch=batch, context=1024, acceptance=_MEDIUM, stale=0.7, hidden=hidden, noise=0.1)
        )
    slow, dear = (
        StepCost.linear(fixed=fixed, per_row=row, floor_rows=32) for fixed, row in ((6e-3, 4e-5), (3e-3, 2e-4))
    )
    for batch, (name, later) in itertools.product((8, 32), (("the machine", slow), ("a row", dear))):
        found[f"batch {batch}, {name} turns slow"] = Case(
            scenario=Scenario(batch=batch, context=1024, acceptance=_MEDIUM, stale=0.7, host_seconds=(2e-3, 4e-3),
                              later_cost=later)
        )  # fmt: skip
    for batch in (8, 32):
        found[f"batch {batch}, one step of 200 takes 50 times as long"] = Case(
            scenario=Scenario(batch=batch, context=1024, acceptance=_MEDIUM, stale=0.7, disturbed=0.005)
        )
    for (batch, own), (name, believed) in itertools.product(((8, 0.5), (8, 0.7), (32, 0.5)), _BELIEVED.items()):
        scenario = Scenario(batch=batch, context=64, acceptance=(own,), stale=0.8, host_seconds=(0.3e-3, 0.46e-3))
        found[f"batch {batch}, acceptance {own}, {name}"] = Case(
            scenario=scenario, cost=_CPU_COST, believed=believed
        )  # fmt: skip
    return found


CASES: Mapping[str, Case] = _cases()


class _Without(Planned):
    """Drafting without a part."""

    def __init__(self, part: Part, believed: StepCost) -> None:
        super().__init__(believed, part.without)
        self._part = part

    def start(self, slots: SlotTable) -> None:
        """Leave the part out before the first forward."""
        super().start(slots)
        self._part.change(self.drafting)


def rate(name: str, part: Part, *, forwards: int, seed: int) -> float:
    """Tokens per second of a case from its first step on; small batches, where chance counts for more, run longer."""
    case = CASES[name]
    batch = case.scenario.batch
    return simulate(
        case.scenario, _Without(part, case.believed), forwards=forwards * max(1, 4 // batch), warm_up=0,
        cost=case.cost, seed=batch + 1000 * seed,
    ).rate  # fmt: skip


def _job(what: tuple[str, str, int, int]) -> float:
    part, name, forwards, seed = what
    return rate(name, PARTS.get(part, Part()), forwards=forwards, seed=seed)


def _simulation(forwards: int, seeds: int, processes: int) -> dict[str, np.ndarray]:
    """Ratio of the rates by part and case."""
    runs = [("", 0), (_NOISE, seeds), *((part, 0) for part in PARTS)]
    jobs = [(part, name, forwards, first + i) for part, first in runs for name in CASES for i in range(seeds)]
    with ProcessPoolExecutor(processes) as pool:
        rates = np.array(list(pool.map(_job, jobs, chunksize=4))).reshape(len(runs), len(CASES), seeds).mean(axis=2)
    return {part: rates[place] / rates[0] for place, (part, _) in enumerate(runs) if place}


# ---- on this CPU


CPU_POINTS = (("templates", 8, 192), ("copying", 8, 64), ("lists", 1, 24))
"""Workload, sequences at once, prompts: texts that repeat, as only there are drafts from history."""


def processor_seconds(
    point: tuple[str, int, int], parts: Mapping[str, Part], rounds: int
) -> dict[str, list[float]]:  # fmt: skip
    """Processor seconds of passes by part and round, all parts in turn in each round.

    Raises:
        AssertionError: leaving a part out changed tokens.
    """
    found: dict[str, list[float]] = {name: [] for name in parts}
    random, expected = np.random.default_rng(0), None
    llm = LLM("tiny", config=EngineConfig(max_num_seqs=8))
    model, tokenizer, config = llm.engine._runner.model_runner.model, llm.engine.tokenizer, llm.engine.config
    workload, batch, count = point
    prompts: Sequence[Sequence[int]] = prompts_of(workload, tokenizer, count)
    work = Workload(prompts=prompts, params=[SamplingParams(max_tokens=96)] * len(prompts), concurrency=batch)
    settings = {"strategy": Strategy.VERIFIED, "window_size": "auto"}
    run_pass(llm, work, settings)
    for _ in range(rounds):
        for name in random.permutation(list(parts)).tolist():
            llm.engine = Engine(model, tokenizer, config, constants=parts[name].without)
            parts[name].change(llm.engine._drafting)
            llm.engine.measure_step_cost()
            begin = time.process_time()
            ids = run_pass(llm, work, settings).ids
            found[name].append(time.process_time() - begin)
            expected = expected or ids
            if ids != expected:
                raise AssertionError(f"{name}: windows changed tokens")
    return found


def _measured(rounds: int) -> dict[str, list[float]]:
    """Ratio of the rates by part and point."""
    parts = {"": Part(), _NOISE: Part(), **{name: PARTS[name] for name in CHOSEN}, **HISTORY_PARTS}
    found: dict[str, list[float]] = {name: [] for name in parts}
    for point in CPU_POINTS:
        seconds = processor_seconds(point, parts, rounds)
        for name, own in seconds.items():
            found[name].append(statistics.median(a / b for a, b in zip(seconds[""], own, strict=True)))
        print(point, {name: round(ratios[-1], 3) for name, ratios in found.items()}, flush=True)
    return found


# ---- the table


def main() -> None:
    """Leave each part out and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=positive, default=2)
    parser.add_argument("--forwards", type=positive, default=500)
    parser.add_argument("--processes", type=positive, default=2)
    parser.add_argument("--rounds", type=int, default=0, help="on this CPU; 0 leaves that out")
    args = parser.parse_args()
    simulated = _simulation(args.forwards, args.seeds, args.processes)
    measured = _measured(args.rounds) if args.rounds else {}
    command = f"python -m benchmarks.decode.ablation --seeds {args.seeds} --forwards {args.forwards}"
    command += f" --rounds {args.rounds}" if args.rounds else ""
    write_result("drafting-ablation", "Drafting, each part left out", command, _body(simulated, measured))


def _body(simulated: Mapping[str, np.ndarray], measured: Mapping[str, Sequence[float]]) -> str:
    about = (
        f"Rate without the part over the rate with it, in {len(CASES)} simulated cases from their first step on; below "
        "1, the part gains. In six cases the table of costs is wrong. The simulation has no history.\n\n"
    )
    names, rows = list(CASES), []
    for part, ratio in simulated.items():
        cpu = measured.get(part)
        mean, lowest = float(np.exp(np.log(ratio).mean())), float(ratio.min())
        stays = part != _NOISE and (1 - mean >= _KEPT[0] or 1 - lowest >= _KEPT[1])
        rows.append((part, f"{mean:.3f}", f"{lowest:.3f}", names[int(ratio.argmin())], f"{ratio.max():.3f}",
                     "" if part == _NOISE else "yes" if stays else "no", *_cpu_cells(cpu)))  # fmt: skip
    rows += [(part, *5 * ("-",), *_cpu_cells(measured[part])) for part in HISTORY_PARTS if part in measured]
    header = ("left out", "mean", "lowest", "where", "highest", "gains 1% or 2% at best", "CPU, mean", "CPU, lowest")
    return about + table(header, rows)


def _cpu_cells(ratios: Sequence[float] | None) -> tuple[str, str]:
    return ("-", "-") if ratios is None else (f"{statistics.geometric_mean(ratios):.3f}", f"{min(ratios):.3f}")


if __name__ == "__main__":
    main()
