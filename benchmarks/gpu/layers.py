"""GPU suite: the decoder without attention, as torch operations and as Triton kernels, against the roofline."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu.decoding import Subject, open_subject
from benchmarks.gpu.section import Report, Scene, device_seconds, replayed

__all__ = ["layers"]


def layers(scene: Scene) -> Report:
    """Measure bare forwards on fixed inputs; on CUDA each is a CUDA graph."""
    scale, subject = scene.scale, open_subject(scene)
    model, rows = subject.model, []
    forms = (
        {"torch operations": None}
        if model.packed_forward is None
        else {"torch operations": None, "Triton kernels": model.packed_forward}
    )
    for count in scale.row_counts:
        arithmetic = 2 * subject.layer_weights * count / scene.gemm_rate
        floor = max(subject.layer_bytes / scene.bandwidth, arithmetic)
        row: dict[str, Any] = {"rows": count, "roofline ms": f"{floor * 1e3:.3f}"}
        if scene.clock.left < 0:
            rows.append({**row, "note": "not measured: the section's time was over"})
            continue
        for name, form in forms.items():
            with _with_form(subject, form):
                spread = device_seconds(_bare_forward(scene, subject, count), scene.device)
            row |= {f"{name} ms": spread.text(1e-3), f"{name} / roofline": f"{spread.median / floor:.2f}"}
        rows.append(row)
        print(*row.values(), sep=" | ", flush=True)
    notes = (
        f"Embedding, all layers and the final norm of {scale.name}, without attention (queries are passed on), without "
        "the output head, without the host: replays of a CUDA graph on a GPU. Medians of 20 (lowest-highest). "
        + ("" if model.packed_forward is not None else "The Triton kernels do not run on this device. ")
        + "Roofline: the larger of weights / bandwidth and arithmetic / rate."
    )
    return Report(title="Decoder without attention", notes=notes, rows=rows)


@contextmanager
def _with_form(subject: Subject, form: Callable[..., Tensor] | None) -> Iterator[None]:
    kept = subject.model.packed_forward
    subject.model.packed_forward = form
    try:
        yield
    finally:
        subject.model.packed_forward = kept


def _bare_forward(scene: Scene, subject: Subject, rows: int) -> Callable[[], object]:
    """A function that runs the decoder over ``rows`` rows, in the form that is set now."""
    ids = torch.randint(scene.scale.config.vocab_size, (rows,), device=scene.device)
    positions = torch.arange(rows, device=scene.device)

    @torch.inference_mode()
    def forward() -> Tensor:
        hidden: Tensor = subject.model(ids, positions, lambda layer, q, k, v: q)
        return hidden

    return replayed(forward, scene.device)
