"""Draws a recorded time line: nodes and actors above, units done below, numbered events across both."""

from __future__ import annotations

from pathlib import Path

from testing.pipeline.timeline import Timeline

__all__ = ["draw"]


def draw(line: Timeline, path: Path) -> None:
    """Write the drawing as PNG."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    seconds = [sample.seconds for sample in line.samples]
    figure, (above, below) = plt.subplots(
        2, 1, sharex=True, figsize=(12, 7.5), height_ratios=(3, 2), layout="constrained"
    )
    nodes, actors = [sample.nodes for sample in line.samples], [sample.actors for sample in line.samples]
    above.fill_between(seconds, nodes, step="post", color="tab:blue", alpha=0.15)
    above.step(seconds, nodes, where="post", color="tab:blue", linewidth=1.5, label="nodes that run")
    above.step(seconds, actors, where="post", color="tab:orange", linewidth=2.0, label="actors that run or start")
    top = max(nodes) + 1
    above.set_ylim(0, top + 1.2)
    above.set_yticks(range(top + 1))
    above.set_ylabel("count")
    figure.legend(*above.get_legend_handles_labels(), loc="outside upper right", ncols=2)
    below.plot(seconds, [sample.units for sample in line.samples], color="tab:green", linewidth=2.0)
    below.set_ylabel("units done")
    below.set_xlabel("seconds")
    below.set_ylim(bottom=0)
    for axis in (above, below):
        axis.grid(axis="y", alpha=0.25)
        axis.set_xlim(0, seconds[-1])
        for event in line.events:
            axis.axvline(event.seconds, color="0.45", linewidth=0.9, linestyle=":")
    nearest, level = -1e9, 0
    for number, event in enumerate(line.events, 1):
        level = (level + 1) % 3 if event.seconds - nearest < 0.022 * seconds[-1] else 0
        nearest = event.seconds
        above.text(event.seconds, top + 0.95 - 0.42 * level, str(number), ha="center", va="center", fontsize=9,
                   bbox={"boxstyle": "circle,pad=0.18", "facecolor": "white", "edgecolor": "0.45"})  # fmt: skip
    gaps = [(a.seconds, b.seconds) for a, b in zip(line.samples, line.samples[1:], strict=False) if not a.head]
    for begin, end in gaps:
        above.axvspan(begin, end, color="tab:red", alpha=0.12, linewidth=0)
    names = [f"{number}  {event.what} ({event.seconds:.0f} s)" for number, event in enumerate(line.events, 1)]
    third = -(-len(names) // 3)
    for column in range(3):
        figure.text(0.07 + 0.31 * column, -0.02, "\n".join(names[column * third : (column + 1) * third]), va="top",
                    fontsize=9.5)  # fmt: skip
    above.set_title("One job: nodes by Ray's autoscaler, losses on purpose (red: no head)")
    figure.savefig(path, dpi=110, bbox_inches="tight")
    plt.close(figure)
