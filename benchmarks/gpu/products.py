"""GPU minutes: the matrix products of a layer by number of rows, our kernels against torch's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu.section import Report, Scene, device_seconds, replayed
from testing.engine.published_models import product_shapes
from wedlm_core.kernels.rounding import rounded
from wedlm_core.model.int8 import Int8Linear

_FP8 = torch.float8_e4m3fn
_FP8_LARGEST = 448.0


def products(scene: Scene) -> Report:
    """Time each product alone. If torch refuses a product, the reason stands in place of its time."""
    rows = []
    for name, (outputs, inputs) in product_shapes(scene.scale.config).items():
        for count in scene.scale.product_rows:
            row: dict[str, Any] = {"product": name, "rows": count}
            if scene.clock.left < 0:
                rows.append({**row, "note": "not measured: the part's time was over"})
                continue
            floor = max(outputs * inputs / scene.bandwidth, 2 * outputs * inputs * count / scene.gemm_rate)
            row["floor us"] = f"{floor * 1e6:.1f}"
            for kind, work in _kinds(scene, count, outputs, inputs).items():
                row[f"{kind} us"] = _micros(work, scene.device)
            rows.append(row)
            print(*row.values(), sep=" | ", flush=True)
    notes = (
        "Replays of a CUDA graph on a GPU, medians of 20 (lowest-highest); rows are rounded before. Floor: the larger "
        "of the int8 weights' bytes over the copy's bandwidth, and the arithmetic over the rate of the ceilings. A "
        "cache that holds a product's weights makes few rows faster here than in a model."
    )
    return Report(title="Products by rows", notes=notes, rows=rows)


def _kinds(scene: Scene, count: int, outputs: int, inputs: int) -> Mapping[str, Callable[[], object]]:
    device, dtype = scene.device, scene.scale.dtype
    x, weight = (torch.randn(size, inputs, device=device) for size in (count, outputs))
    rows, ours = rounded(x), Int8Linear(outputs, inputs, device=device)
    whole = rounded(weight)
    ours.weight.copy_(whole.byte_RI)
    ours.scale_O.copy_(whole.scale_R)
    wide, wide_weight, one = x.to(dtype), weight.to(dtype), torch.ones((), device=device)
    narrow, narrow_weight = (t.clamp(-_FP8_LARGEST, _FP8_LARGEST).to(_FP8) for t in (x, weight))

    def scaled() -> Tensor:
        return torch._scaled_mm(narrow, narrow_weight.t(), scale_a=one, scale_b=one, out_dtype=dtype)

    return {
        "ours int8": lambda: ours.multiply(rows, dtype),
        "torch._int_mm": lambda: torch._int_mm(rows.byte_RI, ours.weight.t()),
        "torch._scaled_mm": scaled,
        str(dtype).removeprefix("torch."): lambda: wide @ wide_weight.t(),
    }


def _micros(work: Callable[[], object], device: torch.device) -> str:
    try:
        with torch.inference_mode():
            return device_seconds(replayed(work, device), device).text(1e-6)
    except Exception as error:  # a refusal at some number of rows is a result
        return f"refused: {' '.join(str(error).split())}"[:80].replace("|", "/")
