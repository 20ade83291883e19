"""GPU suite: the time of the random model's engine steps, against the roofline."""

from __future__ import annotations

from typing import Any

from benchmarks.gpu.decoding import AUTOREGRESSIVE, Subject, eagerly, open_subject
from benchmarks.gpu.section import Report, Scene, Spread, goal

_WITHIN = 1.25
_FIRST_STEP_MS = 5.0


def steps(scene: Scene) -> Report:
    """Measure steady engine steps of ``autoregressive``, one row per sequence, by row count and context."""
    scale, subject = scene.scale, open_subject(scene)
    points = [(rows, scale.short_context) for rows in scale.row_counts]
    points += [(scale.host_batch, context) for context in scale.contexts]
    rows, ratios, first = [], [], None
    for count, context in points:
        row: dict[str, Any] = {"rows": count, "context": context}
        if count > subject.capacity(context):
            rows.append({**row, "note": f"does not fit: the pool holds {subject.capacity(context)}"})
            continue
        if scene.clock.left < 0:
            rows.append({**row, "note": "not measured: the section's time was over"})
            continue
        spread, eager = _measure(subject, count, context, scale.slice_seconds, scale.slices)
        floor, bound = _floor(scene, subject, count, count * context)
        first = spread.median if count == 1 and first is None else first
        if context == scale.short_context:
            ratios.append((spread.median / floor, f"{count} rows"))
        rows.append({**row, "ms": spread.text(1e-3), "roofline ms": f"{floor * 1e3:.3f}", "bound by": bound,
                     "measured / roofline": f"{spread.median / floor:.2f}",
                     "nothing captured around forwards, ms": "" if eager is None else eager.text(1e-3)})  # fmt: skip
        print(*rows[-1].values(), sep=" | ", flush=True)
    goals = []
    if ratios:
        worst, where = max(ratios)
        goals.append(goal("step / larger term of the roofline, every row count", _WITHIN, worst, where, at_most=True))
    if first is not None:
        goals.append(goal("batch-1 step (ms)", _FIRST_STEP_MS, first * 1e3, at_most=True))
    pool = subject.engine.pages
    notes = (
        f"{scale.name}: {subject.weights / 1e9:.3f}G weights are read by a forward ({subject.weight_bytes / 1e9:.2f} GB"
        f"), {subject.kv_bytes / 1024:.4g} KiB of KV per token, pool of {pool.num_pages} pages of {pool.page_size} "
        f"tokens; model and engine were built in {subject.seconds:.1f} s. Wall-clock time of whole engine steps "
        "(scheduling, forward, logits, sampling, results), median of slices (lowest-highest), in turns with steps "
        "around whose forwards no work is captured in CUDA graphs. Roofline: the larger of "
        f"(weights + KV bytes) / {scene.bandwidth / 1e12:.3f} TB/s and arithmetic / {scene.gemm_rate / 1e12:.1f} "
        "TFLOP/s, both as measured above."
    )
    return Report(title="Step time against the roofline", notes=notes, rows=rows, goals=goals)


def _measure(subject: Subject, count: int, context: int, seconds: float, slices: int) -> tuple[Spread, Spread | None]:
    """Seconds of a step, and of one around whose forward nothing is captured; None where nothing is anyway."""

    def step() -> float:
        return subject.slice(ids, seconds / slices).step_seconds

    with subject.running(count, context, AUTOREGRESSIVE, 0.0) as ids:
        found = [(step(), eagerly(subject.engine, step)) for _ in range(slices)]
    plain = [seconds for _, seconds in found if seconds is not None]
    return Spread.of([seconds for seconds, _ in found]), Spread.of(plain) if plain else None


def _floor(scene: Scene, subject: Subject, rows: int, kv_tokens: int) -> tuple[float, str]:
    """Seconds of the larger term of the roofline, and its name."""
    memory = (subject.weight_bytes + kv_tokens * subject.kv_bytes) / scene.bandwidth
    arithmetic = 2 * subject.weights * rows / scene.gemm_rate
    return max((memory, "memory"), (arithmetic, "arithmetic"))
