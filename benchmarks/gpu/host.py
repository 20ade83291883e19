"""GPU suite: the share of a step that the device waits for the host."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from benchmarks.gpu.decoding import AUTO, AUTOREGRESSIVE, Subject, open_subject, regimes
from benchmarks.gpu.section import Report, Scene, goal, seconds_in, synchronise

_WITHIN = 1.05
_STEPS = 30
_GAP = 10e-6  # consecutive kernels are a few microseconds apart


def host(scene: Scene) -> Report:
    """Measure the time of a step with and without the host's share, all sequences decoding."""
    scale, subject = scene.scale, open_subject(scene)
    medium = regimes(scene, subject)[1]
    context, rows, shares = scale.contexts[0], [], []
    count = min(scale.host_batch, subject.capacity(context))
    for name, settings in (("autoregressive", AUTOREGRESSIVE), ("auto", AUTO)):
        with subject.running(count, context, settings, medium.temperature) as ids:
            whole = subject.slice(ids, 0.0, steps=_STEPS)
            seconds, without = _apart(scene, subject)
        shares.append((whole.step_seconds / without, name))
        rows.append({
            "decoding": name, "sequences": count, "step ms": f"{whole.step_seconds * 1e3:.3f}",
            "watched step ms": f"{seconds * 1e3:.3f}", "without the host ms": f"{without * 1e3:.3f}",
            "with / without": f"{whole.step_seconds / without:.3f}",
        })  # fmt: skip
    worst, where = max(shares)
    notes = (
        f"Mean of {_STEPS} engine steps at context {context} (auto at T = {medium.temperature:.3g}). On CUDA a step "
        f"without the host is the time that the profiler sees the device work in: gaps between kernels of over "
        f"{_GAP * 1e6:.0f} us are left out. `watched` is the same steps by the wall clock under the profiler, which "
        "slows the host down; the ratio is of the step without it. On a CPU it is the time of the decoder, the logits "
        "and the sampler."
    )
    goals = [goal(f"step with / without the host at {count}", _WITHIN, worst, where, at_most=True)]
    return Report(title="Host overhead", notes=notes, rows=rows, goals=goals)


def _apart(scene: Scene, subject: Subject) -> tuple[float, float]:
    """Seconds per step, and seconds of the device's work per step."""
    return _with_profiler(scene, subject) if scene.device.type == "cuda" else _with_stopwatch(subject)


def _with_profiler(scene: Scene, subject: Subject) -> tuple[float, float]:
    with profile(activities=[ProfilerActivity.CUDA]):  # the first profile loads CUPTI
        subject.engine.step()
    synchronise(scene.device)
    with profile(activities=[ProfilerActivity.CUDA]) as watched:
        begin = time.perf_counter()
        for _ in range(_STEPS):
            subject.engine.step()
        torch.cuda.synchronize(scene.device)
        seconds = time.perf_counter() - begin
    spans = [
        (event.time_range.start * 1e-6, event.time_range.end * 1e-6)
        for event in watched.events()
        if event.device_type == DeviceType.CUDA
    ]
    if not spans:
        raise RuntimeError("the profiler saw no kernel: CUPTI may be missing on this machine")
    first, last = min(s for s, _ in spans), max(e for _, e in spans)
    return seconds / _STEPS, (last - first - idle_seconds(spans, _GAP)) / _STEPS


def idle_seconds(spans: Sequence[tuple[float, float]], gap: float) -> float:
    """Total seconds of the gaps longer than ``gap`` between the spans."""
    idle, covered = 0.0, None
    for begin, end in sorted(spans):
        if covered is not None and begin - covered > gap:
            idle += begin - covered
        covered = end if covered is None else max(covered, end)
    return idle


def _with_stopwatch(subject: Subject) -> tuple[float, float]:
    engine: Any = subject.engine
    with seconds_in({"forward": (engine._runner, "forward")}) as found:
        begin = time.perf_counter()
        for _ in range(_STEPS):
            engine.step()
        seconds = time.perf_counter() - begin
    return seconds / _STEPS, found["forward"] / _STEPS
