"""GPU minutes: the ceilings of the device (a large copy, a large matrix product)."""

from __future__ import annotations

import torch
from torch import nn

from benchmarks.gpu.section import Report, Scene, Spread, device_seconds
from wedlm_core.kernels.rounding import rounded
from wedlm_core.model.int8 import Int8Linear
from wedlm_core.model.quantised import Fp8Linear


def ceilings(scene: Scene) -> Report:
    """Measure copy bandwidth and matrix product rate on random data; other sections are compared with them."""
    scale = scene.scale
    copy, product = _copy(scene), _product(scene)
    edge = scale.gemm
    bandwidth, rate = 2 * scale.copy_bytes / copy.median, 2 * edge**3 / product.median
    narrow = None if scene.weight_dtype == "auto" else _narrow_product(scene)
    rows = [
        {"what": f"copy of {scale.copy_bytes / 2**30:.3g} GiB", "ms": copy.text(1e-3),
         "rate": f"{bandwidth / 1e12:.3f} TB/s"},
        {"what": f"product of {edge} x {edge} matrices, {scale.dtype}", "ms": product.text(1e-3),
         "rate": f"{rate / 1e12:.1f} TFLOP/s"},
    ]  # fmt: skip
    if narrow is not None:
        rate = 2 * edge**3 / narrow.median
        rows.append({"what": f"product of {edge} x {edge} matrices, {scene.weight_dtype}: of its layers",
                     "ms": narrow.text(1e-3), "rate": f"{rate / 1e12:.1f} TFLOP/s"})  # fmt: skip
    notes = "Bytes read and bytes written are both counted. Medians of 20 (lowest-highest); random data."
    return Report(
        title="Ceilings of the device", notes=notes, rows=rows, facts={"bandwidth": bandwidth, "gemm_rate": rate}
    )


def _copy(scene: Scene) -> Spread:
    source = torch.empty(scene.scale.copy_bytes // 4, dtype=torch.float32, device=scene.device).normal_()
    target = torch.empty_like(source)
    return device_seconds(lambda: target.copy_(source), scene.device)


def _product(scene: Scene) -> Spread:
    edge = scene.scale.gemm
    a, b = (torch.randn(edge, edge, device=scene.device).to(scene.scale.dtype) for _ in range(2))
    out = torch.empty_like(a)
    return device_seconds(lambda: torch.mm(a, b, out=out), scene.device)


def _narrow_product(scene: Scene) -> Spread:
    """A product in the dtype that quantised layers multiply in; int4 weights are multiplied as int8."""
    edge = scene.scale.gemm
    a, b = (torch.randn(edge, edge, device=scene.device) for _ in range(2))
    if scene.weight_dtype == "fp8_e4m3":
        linear = nn.Linear(edge, edge, bias=False, device="meta")
        linear.weight = nn.Parameter(b, requires_grad=False)
        layer, x = Fp8Linear(linear), a.to(scene.scale.dtype)
        return device_seconds(lambda: layer(x), scene.device)
    rows, weight = rounded(a), rounded(b)
    ours = Int8Linear(edge, edge, device=scene.device)
    ours.weight.copy_(weight.byte_RI)
    ours.scale_O.copy_(weight.scale_R)
    return device_seconds(lambda: ours.multiply(rows, scene.scale.dtype), scene.device)
