"""Plot the loss curves of a run from its CSV as a PNG. Needs matplotlib (the ``train`` extra)."""

from __future__ import annotations

import csv
from pathlib import Path

_WIDTH = 10  # logged points of the trailing mean


def smoothed(values: list[float], width: int) -> list[float]:
    """Trailing mean over ``width`` values (fewer at the start)."""
    return [sum(part) / len(part) for i in range(len(values)) if (part := values[max(0, i - width + 1) : i + 1])]


def plot_curves(curve: Path, picture: Path, title: str) -> None:
    """Plot both loss terms, raw and smoothed, and the learning-rate factor over the steps."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    with curve.open(newline="", encoding="utf-8") as file:
        rows = [{name: float(value) for name, value in row.items()} for row in csv.DictReader(file)]
    steps = [row["step"] for row in rows]
    figure, axes = plt.subplots(figsize=(8, 4.5), layout="constrained")
    for name, label, color in (
        ("next_token", "next-token loss (memory stream)", "tab:blue"),
        ("masked", "masked loss (prediction stream)", "tab:orange"),
    ):
        values = [row[name] for row in rows]
        axes.plot(steps, values, color=color, alpha=0.25, linewidth=0.8)
        axes.plot(steps, smoothed(values, _WIDTH), color=color, label=f"{label}, mean of {_WIDTH}")
    axes.set(xlabel="optimiser step", ylabel="nats per weighted token", yscale="log", title=title)
    axes.grid(alpha=0.3, which="both")
    rates = axes.twinx()
    rates.plot(steps, [row["lr_factor"] for row in rows], color="gray", linestyle="--", linewidth=1)
    rates.set(ylabel="learning rate / peak (dashed)", ylim=(0, 1.05))
    axes.legend(loc="upper right")
    figure.savefig(picture, dpi=120)
    plt.close(figure)
