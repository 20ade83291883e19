"""GPU minutes: the time of the random model's engine steps, against the roofline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from benchmarks.gpu.decoding import AUTOREGRESSIVE, Subject, open_subject
from benchmarks.gpu.section import Report, Scene, Spread

_WINDOWS: Mapping[str, Any] = {"strategy": "verified", "window_size": 8}


def steps(scene: Scene) -> Report:
    """Measure steady engine steps of ``autoregressive``, one row per sequence, by row count and context."""
    scale, subject = scene.scale, open_subject(scene)
    points = [(rows, scale.short_context) for rows in scale.row_counts]
    points += [(scale.host_batch, context) for context in scale.contexts]
    rows = []
    for count, context in points:
        row: dict[str, Any] = {"rows": count, "context": context}
        if count > subject.capacity(context):
            rows.append({**row, "note": f"does not fit: the pool holds {subject.capacity(context)}"})
            continue
        if scene.clock.left < 0:
            rows.append({**row, "note": "not measured: the section's time was over"})
            continue
        spread = _measure(subject, count, context, AUTOREGRESSIVE, 0.0)
        floor, bound = _floor(scene, subject, count, count * context)
        rows.append({**row, "ms": spread.text(1e-3), "roofline ms": f"{floor * 1e3:.3f}", "bound by": bound,
                     "measured / roofline": f"{spread.median / floor:.2f}"})  # fmt: skip
        print(*rows[-1].values(), sep=" | ", flush=True)
    pool = subject.engine.pages
    notes = (
        f"{scale.name}: {subject.weights / 1e9:.3f}G weights are read by a forward ({subject.weight_bytes / 1e9:.2f} GB"
        f"), {subject.kv_bytes / 1024:.4g} KiB of KV per token, pool of {pool.num_pages} pages of {pool.page_size} "
        f"tokens; model and engine were built in {subject.seconds:.1f} s. Wall-clock time of whole engine steps "
        "(scheduling, forward, logits, sampling, results), median of slices (lowest-highest). "
        "Roofline: the products take the longer of two times, for "
        "reading their weights and for their arithmetic; reading keys and values is added; "
        f"{scene.bandwidth / 1e12:.3f} TB/s and {scene.gemm_rate / 1e12:.1f} TFLOP/s, both as measured above."
    )
    return Report(title="Step time against the roofline", notes=notes, rows=rows)


def _measure(subject: Subject, count: int, context: int, settings: Mapping[str, Any], temperature: float) -> Spread:
    """Seconds of a step."""
    scale = subject.scene.scale
    with subject.running(count, context, settings, temperature) as ids:
        each = scale.slice_seconds / scale.slices
        return Spread.of([subject.slice(ids, each).step_seconds for _ in range(scale.slices)])


def _floor(scene: Scene, subject: Subject, rows: int, kv_tokens: int) -> tuple[float, str]:
    """Seconds of the roofline, and the larger term of its products. Attention is added: it does not overlap them."""
    memory, attention = subject.weight_bytes / scene.bandwidth, kv_tokens * subject.kv_bytes / scene.bandwidth
    arithmetic = 2 * subject.weights * rows / scene.gemm_rate
    products, bound = max((memory, "memory"), (arithmetic, "arithmetic"))
    return products + attention, bound


def costs(scene: Scene) -> Report:
    """Build the engine and report its measured cost of forwards; drafting chooses windows by it."""
    subject = open_subject(scene)
    cost = subject.engine._drafting.cost
    rows = [{"rows": rows, "ms": f"{1e3 * seconds:.3f}"} for rows, seconds in zip(cost.rows, cost.seconds, strict=True)]
    notes = f"{scene.scale.name}: a forward by rows, without reading keys and values."
    return Report(title="Table of costs", notes=notes, rows=rows, facts=asdict(cost))


_FILTERS: Mapping[str, Mapping[str, Any]] = {
    "none": {}, "top_k 20, top_p 0.95": {"top_k": 20, "top_p": 0.95}, "min_p 0.05": {"min_p": 0.05},
}  # fmt: skip


def filters(scene: Scene) -> Report:
    """Compare steps with and without sampling filters, with one row per sequence and with windows of eight."""
    scale, subject = scene.scale, open_subject(scene)
    count, rows = min(scale.host_batch, subject.capacity(scale.short_context)), []
    for name, settings in (("autoregressive", AUTOREGRESSIVE), ("windows of 8", _WINDOWS)):
        plain = 0.0
        for filtered, given in _FILTERS.items():
            if scene.clock.left < 0:
                continue
            spread = _measure(subject, count, scale.short_context, {**settings, **given}, 0.7)
            plain = plain or spread.median
            rows.append({"decoding": name, "sequences": count, "filters": filtered, "ms": spread.text(1e-3),
                         "over none": f"{spread.median / plain:.3f}"})  # fmt: skip
            print(*rows[-1].values(), sep=" | ", flush=True)
    notes = f"{scale.name}, context {scale.short_context}, temperature 0.7."
    return Report(title="Filters", notes=notes, rows=rows)
