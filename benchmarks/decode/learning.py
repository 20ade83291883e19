"""Loss of learning of a job that begins with no knowledge, against its length.

    python -m benchmarks.decode.learning [--processes 2]

In the simulation (:mod:`testing.engine.drafting_simulation`). The loss is 1 - tokens / tokens of the best fixed window,
which is known beforehand; below 0, windows of different sizes gain more than learning loses. The table of costs
is right, as after a measurement. Writes a table and a plot; the plot needs matplotlib (the ``train`` extra).
"""

from __future__ import annotations

import argparse
import itertools
import statistics
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from benchmarks.common import positive, table, write_result
from benchmarks.records import RESULTS
from testing.engine.drafting_simulation import H200, FixedWindow, Planned, Scenario, simulate, tokens_after
from wedlm_core.config.step_cost import StepCost
from wedlm_core.engine.scheduling.slots import SlotTable

MACHINES: Mapping[str, StepCost] = {
    "H200, 8B": H200,
    "2 CPU cores, 25M": StepCost.linear(fixed=5e-3, per_row=0.4e-3, floor_rows=12),
}
LONGEST: Mapping[str, float] = {"H200, 8B": 60.0, "2 CPU cores, 25M": 600.0}
"""Seconds of the longest job: an H200 takes 200,000 steps in ten minutes, which take as long to simulate."""
MASKS: Mapping[str, float] = {"right": 0.95, "poor": 0.5, "worthless": 0.05}
"""Kind of masks -> acceptance of each draft."""
BATCHES = (1, 8, 32)
SECONDS: Mapping[float, int] = {2.0: 4, 10.0: 3, 60.0: 1, 600.0: 1}
"""Length of the job -> seeds that are averaged: chance counts for more in short jobs."""
_WINDOWS = (0, 1, 2, 4, 8, 16, 32)
_STALE = (0, 4, 32)  # stale drafts that a fixed window keeps
_NAME = "drafting-learning"

Point = tuple[str, int, str]


class _Fixed(FixedWindow):
    """A fixed window that keeps fewer stale drafts than masks."""

    def __init__(self, window: int, stale: int) -> None:
        super().__init__(window)
        self._stale = stale

    def start(self, slots: SlotTable) -> None:
        """Set it once."""
        super().start(slots)
        slots.keep_stale[:] = self._stale


def losses(point: Point) -> list[float]:
    """Loss by length of the job, for a machine, a number of sequences and a kind of masks."""
    machine, batch, masks = point
    cost = MACHINES[machine]
    scenario = Scenario(batch=batch, context=512, acceptance=(MASKS[masks],), stale=0.7, noise=0.05)
    forwards = 3000 // min(8, batch)
    fixed = [_Fixed(window, stale) for window in _WINDOWS for stale in _STALE if stale <= window]
    best = max(simulate(scenario, policy, forwards=forwards, warm_up=50, cost=cost).rate for policy in fixed)
    lengths = [length for length in SECONDS if length <= LONGEST[machine]]
    found: dict[float, list[float]] = {length: [] for length in lengths}
    for seed in range(max(SECONDS.values())):
        own = [length for length in lengths if SECONDS[length] > seed]
        tokens = tokens_after(scenario, Planned(cost), own, cost=cost, seed=seed)
        for length, count in zip(own, tokens, strict=True):
            found[length].append(1 - count / (best * length))
    return [statistics.mean(found[length]) for length in lengths]


def plot(found: Mapping[Point, Sequence[float]], picture: Path) -> None:
    """Draw a panel for each machine and number of sequences, and a line for each kind of masks."""
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams.update({"svg.hashsalt": _NAME, "svg.fonttype": "none"})  # the same figures give the same small file
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(
        len(MACHINES), len(BATCHES), figsize=(9, 5), sharex=True, sharey=True, layout="constrained"
    )  # fmt: skip
    for (row, machine), (column, batch) in itertools.product(enumerate(MACHINES), enumerate(BATCHES)):
        panel = axes[row, column]
        panel.axhline(0, color="gray", linewidth=0.8)
        for masks, mark in zip(MASKS, "os^", strict=True):
            percent = [100 * loss for loss in found[machine, batch, masks]]
            panel.plot(list(SECONDS)[: len(percent)], percent, marker=mark, label=f"masks {masks}")
        panel.set_title(f"{machine}, {batch} sequence{'s' if batch > 1 else ''}", fontsize=10)
        panel.set(xscale="log")
        panel.set_xticks(list(SECONDS), ["2 s", "10 s", "60 s", "10 min"])
        panel.minorticks_off()
        panel.grid(alpha=0.3)
    figure.supxlabel("length of the job")
    figure.supylabel("loss to the best fixed window (%)")
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=len(MASKS))
    figure.savefig(picture, metadata={"Date": None})
    plt.close(figure)


def main() -> None:
    """Simulate all points; write the table and the plot."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=positive, default=2)
    args = parser.parse_args()
    points: list[Point] = list(itertools.product(MACHINES, BATCHES, MASKS))
    with ProcessPoolExecutor(args.processes) as pool:
        found = dict(zip(points, pool.map(losses, points), strict=True))
    picture = RESULTS / "data" / f"{_NAME}.svg"
    plot(found, picture)
    rows = [
        (*point, *(f"{100 * loss:.1f}%" for loss in found[point]), *("-" for _ in list(SECONDS)[len(found[point]) :]))
        for point in points
    ]
    body = (
        "**This is a simulation**: no model is involved. The loss is against the best of the fixed windows "
        f"{', '.join(map(str, _WINDOWS))} (each with 0 to all of its stale drafts kept), known beforehand; "
        "negative: drafting is faster than it. Right, poor and worthless masks"
        f" are accepted with {', '.join(map(str, MASKS.values()))}. Seeds: "
        f"{', '.join(map(str, SECONDS.values()))}, by length of the job.\n\n"
        f"![loss by length of the job](data/{picture.name})\n\n"
    )
    header = ("machine", "sequences", "masks", "2 s", "10 s", "60 s", "10 min")
    write_result(_NAME, "Loss of learning by length of the job", "python -m benchmarks.decode.learning",
                 body + table(header, rows))  # fmt: skip


if __name__ == "__main__":
    main()
