"""GPU minutes: where the device's time of a step goes, by kind of kernel."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from benchmarks.gpu.decoding import AUTO, AUTOREGRESSIVE, Subject, open_subject, regimes
from benchmarks.gpu.section import Report, Scene, synchronise

_STEPS = 20
_KINDS = (
    ("products", re.compile(r"^multiply_|nvjet|gemm|gemv|cutlass|cublas|splitK|xmma", re.IGNORECASE)),
    ("attention", re.compile(r"attend_tiles|join_splits|place_tiles|flash|fmha")),
    ("layers", re.compile(r"_add_rms_norm|_norm_rope|_silu_mul|^round_rows|^_write$")),
    ("sampler", re.compile(r"reduce_tiles|combine_tiles")),
    ("copies", re.compile(r"^Memcpy|^Memset")),
)
_OTHER = "windows, packing"


def kind_of(name: str) -> str:
    """The kind of a kernel, by its name."""
    return next((kind for kind, pattern in _KINDS if pattern.search(name)), _OTHER)


@dataclass(frozen=True, kw_only=True)
class _Kernels:
    """Kernels of one kind: microseconds of the device, and launches, per step."""

    micros: float
    launches: float


def kernels(scene: Scene) -> Report:
    """Profile steady steps at a few batch sizes. The device is idle for the rest of a step."""
    scale, subject = scene.scale, open_subject(scene)
    context, rows = scale.contexts[0], []
    for batch in (min(scale.batches), scale.host_batch, max(scale.batches)):
        count = min(batch, subject.capacity(context))
        for name, settings in (("autoregressive", AUTOREGRESSIVE), ("auto", AUTO)):
            if scene.clock.left < 0:
                continue
            temperature = regimes(scene, subject)[1].temperature
            with subject.running(count, context, settings, temperature) as ids:
                whole = subject.slice(ids, 0.0, steps=_STEPS)
                found = _profiled(scene, subject)
            busy = sum(one.micros for one in found.values())
            row: dict[str, Any] = {
                "decoding": name, "sequences": count, "step ms": f"{whole.step_seconds * 1e3:.2f}",
                "tokens/forward": f"{whole.tokens_per_forward:.2f}", "kernels ms": f"{busy / 1e3:.2f}",
            }  # fmt: skip
            row |= {f"{kind} us": f"{one.micros:.0f} ({one.launches:.0f})" for kind, one in sorted(found.items())}
            rows.append(row)
            print(*row.values(), sep=" | ", flush=True)
    columns = dict.fromkeys(name for row in rows for name in row)
    rows = [{name: row.get(name, "") for name in columns} for row in rows]
    notes = (
        f"Steady steps at context {context}, medium entropy, mean of {_STEPS}. In brackets: launches per step. "
        "`kernels` is the sum of the kernels' times on the device, by the profiler. `step` is the wall-clock time of "
        "a step without the profiler; the device is idle for the difference."
    )
    return Report(title="Where a step's time goes", notes=notes, rows=rows)


def _profiled(scene: Scene, subject: Subject) -> Mapping[str, _Kernels]:
    activity = ProfilerActivity.CUDA if scene.device.type == "cuda" else ProfilerActivity.CPU
    kept = DeviceType.CUDA if scene.device.type == "cuda" else DeviceType.CPU
    with profile(activities=[activity]):  # the first profile loads its modules
        subject.engine.step()
    synchronise(scene.device)
    with profile(activities=[activity]) as watched:
        for _ in range(_STEPS):
            subject.engine.step()
        synchronise(scene.device)
    micros: dict[str, float] = {}
    launches: dict[str, int] = {}
    by_name: dict[str, list[float]] = {}
    for event in watched.events():
        if event.device_type != kept:
            continue
        kind, span = kind_of(event.name), event.time_range.end - event.time_range.start
        micros[kind] = micros.get(kind, 0.0) + span
        launches[kind] = launches.get(kind, 0) + 1
        by_name.setdefault(event.name, []).append(span)
    for name, spans in sorted(by_name.items(), key=lambda item: -sum(item[1]))[:14]:
        print(f"    {sum(spans) / _STEPS:9.1f} us {len(spans) / _STEPS:7.1f} x {name[:110]}", flush=True)
    return {kind: _Kernels(micros=total / _STEPS, launches=launches[kind] / _STEPS) for kind, total in micros.items()}
