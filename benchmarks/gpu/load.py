"""GPU minutes: tokens per second of ``verified`` and autoregressive decoding, over load, context and regime."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.gpu.decoding import AUTO, AUTOREGRESSIVE, Regime, Slice, Subject, open_subject, regimes
from benchmarks.gpu.section import Clock, Report, Scene, Spread


def load(scene: Scene) -> Report:
    """Race the contenders in rounds, in rotating order; ratios are between slices of the same round."""
    scale, subject = scene.scale, open_subject(scene)
    found = regimes(scene, subject)
    # One regime after the other: jobs have one regime, and drafting notices another one only by its trials.
    points = [(context, batch, regime) for context in scale.contexts for regime in found
              for batch in sorted(scale.batches, reverse=True)]  # fmt: skip
    rows: list[dict[str, Any]] = []
    longest = 0.0  # seconds of the longest round: a section that is ended within a round has no result
    for number, (context, batch, regime) in enumerate(points):
        row: dict[str, Any] = {"context": context, "batch": batch, "regime": regime.name}
        if scene.clock.left < longest:
            rows.append({**row, "note": "not measured: the section's time was over"})
            continue
        fitting = min(batch, subject.capacity(context))
        if fitting < 1:
            rows.append({**row, "note": "does not fit: the pool holds not one such sequence"})
            continue
        if fitting < batch:
            row["note"] = f"measured at {fitting}: more do not fit in the pool"
        clock = Clock(scene.clock.left / (len(points) - number))
        begin = scene.clock.left
        rounds = _race(scene, subject, fitting, context, regime, clock)
        longest = max(longest, (begin - scene.clock.left) / len(rounds))
        gain = _ratio(rounds, "auto", "autoregressive")
        rows.append({**row, **_figures(rounds, gain)})
        print(*rows[-1].values(), sep=" | ", flush=True)
    notes = (
        "Simulated acceptance: random weights, whose drafts are right as often as the temperature makes them ("
        + "; ".join(f"{r.name}: {r.described()}" for r in found)
        + "). The real engine; in the timed steps all sequences decode, without prefill; slices of "
        f"at least {scale.slice_seconds:g} s and {scale.race_steps} steps, median (lowest-highest) of up to "
        f"{scale.slices} rounds. Prefill before that: "
        + ", ".join(f"{n} x {context} tokens at {rate:.0f} tokens/s" for n, context, rate in subject.prefills)
        + "."
    )
    return Report(title="Load: tokens per second", notes=notes, rows=rows)


def _race(
    scene: Scene, subject: Subject, batch: int, context: int, regime: Regime, clock: Clock
) -> list[Mapping[str, Slice]]:
    """Run at least one round, and more until the time of the point is over."""
    contenders = {"auto": AUTO, "autoregressive": AUTOREGRESSIVE}
    rounds: list[Mapping[str, Slice]] = []
    while not rounds or (len(rounds) < scene.scale.slices and clock.left > 0):
        order = list(contenders)[:: 1 if len(rounds) % 2 == 0 else -1]
        one = {}
        for name in order:
            with subject.running(batch, context, contenders[name], regime.temperature) as ids:
                one[name] = subject.slice(ids, scene.scale.slice_seconds, least=scene.scale.race_steps)
        rounds.append(one)
    return rounds


def _ratio(rounds: list[Mapping[str, Slice]], name: str, other: str) -> Spread:
    return Spread.of([r[name].rate / r[other].rate for r in rounds])


def _figures(rounds: list[Mapping[str, Slice]], gain: Spread) -> dict[str, Any]:
    def rate(name: str) -> str:
        return f"{Spread.of([r[name].rate for r in rounds]).median:.0f}"

    auto = rounds[0]["auto"]
    return {
        "autoregressive tokens/s": rate("autoregressive"),
        "auto tokens/s": rate("auto"),
        "auto / autoregressive": gain.text(),
        "auto tokens/forward": f"{auto.tokens_per_forward:.2f}",
        "auto step ms": f"{auto.step_seconds * 1e3:.2f}",
        "rounds": len(rounds),
    }
