"""GPU suite: the matrix products of a model, in the model's dtype and in fewer bits, each timed alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu.section import Report, Scene, Spread, device_seconds, goal, replayed
from wedlm_core import ModelConfig
from wedlm_core.kernels.gpu.support import why_no_triton
from wedlm_core.kernels.rounding import RoundedRows
from wedlm_core.model.int4 import Int4Linear, expanded
from wedlm_core.model.int8 import Int8Linear, exact_sums, scaled

__all__ = ["products", "shapes_of"]

_NO_SLOWER = 1.0
_FEWEST_ROWS = 32  # of torch._int_mm
_OURS = ("int8", "int4")


def shapes_of(config: ModelConfig) -> dict[str, tuple[int, int]]:
    """Outputs and inputs of each matrix that a forward multiplies with."""
    width, heads = config.hidden_size, config.num_attention_heads
    return {
        "qkv": ((heads + 2 * config.num_key_value_heads) * config.head_dim, width),
        "o": (width, heads * config.head_dim),
        "gate_up": (2 * config.intermediate_size, width),
        "down": (width, config.intermediate_size),
        "head": (config.vocab_size, width),
    }


def products(scene: Scene) -> Report:
    """Measure each product at several row counts, and compare the bits of ours with those of torch."""
    rows: list[dict[str, Any]] = []
    ratios: list[tuple[float, str]] = []
    refusals: dict[str, str] = {}
    wrong = 0
    for name, (outputs, inputs) in shapes_of(scene.scale.config).items():
        matrices: _Matrices | None = None
        for count in scene.scale.product_rows:
            row: dict[str, Any] = {"product": name, "weights": f"{outputs} x {inputs}", "rows": count}
            if scene.clock.left < 0:
                rows.append({**row, "note": "not measured: the section's time was over"})
                continue
            matrices = matrices or _Matrices.drawn(scene, outputs, inputs)
            figures = _figures(scene, matrices, count, refusals)
            ratio, different = figures.pop("ratio"), figures.pop("different")
            wrong += different
            if ratio is not None:
                ratios.append((ratio, f"{name}, {count} rows"))
            rows.append({**row, **figures})
            print(*rows[-1].values(), sep=" | ", flush=True)
    columns = dict.fromkeys(name for row in rows for name in row)
    worst, where = max(ratios, default=(float("nan"), "nothing was measured"))
    goals = [
        goal("int8 product / fastest of the others", _NO_SLOWER, worst, where, at_most=True),
        goal("int8 and int4 products that failed or whose bits are not torch's", 0, wrong, at_most=True),
    ]
    return Report(
        title="Products of few bits",
        notes=_notes(scene, refusals),
        rows=[{name: row.get(name, "") for name in columns} for row in rows],
        goals=goals,
    )


def _notes(scene: Scene, refusals: Mapping[str, str]) -> str:
    dtype = str(scene.scale.dtype).removeprefix("torch.")
    why = why_no_triton(scene.device) if scene.device.type == "cuda" else "no GPU"
    return (
        f"Microseconds of one product. {dtype}: `torch.mm`; fp8: `torch._scaled_mm` with a scale per row and output; "
        f"_int_mm: `torch._int_mm` alone, {_FEWEST_ROWS} rows at least, its sums not scaled; int8 and int4: ours, "
        f"scaled, in {dtype}. Rows are rounded before, outside of the timed part. Each time is of a CUDA graph that "
        f"multiplies with copies of the weights, {scene.scale.product_bytes / 1e6:.3g} MB or more together, one after "
        "the other, so that no cache holds them; medians of 20 (lowest-highest). Share of bandwidth: bytes of the int8 "
        f"weights per second / {scene.bandwidth / 1e12:.3f} TB/s, the copy's bytes read and written. Bits: whether "
        "ours are those of `torch._int_mm`, scaled by torch."
        + (f" Our kernels do not run here ({why}): these are the layers' plain operations." if why else "")
        + "".join(f" {name} is not available: {reason}." for name, reason in refusals.items())
    )


@dataclass(frozen=True, kw_only=True)
class _Matrices:
    """Copies of one random matrix ``[O, I]`` in each form, so many that no cache holds them.

    Attributes:
        wide: in the model's dtype.
        fp8: float8_e4m3fn, and the scales of the outputs, float32 ``[1, O]``.
        int8, int4: our layers.
    """

    wide: Sequence[Tensor]
    fp8: Sequence[tuple[Tensor, Tensor]]
    int8: Sequence[Int8Linear]
    int4: Sequence[Int4Linear]

    @classmethod
    def drawn(cls, scene: Scene, outputs: int, inputs: int) -> _Matrices:
        """Draw them on the device."""

        def copies(make: Callable[[], Any], bits: int) -> list[Any]:
            return [make() for _ in range(-(-8 * scene.scale.product_bytes // (bits * outputs * inputs)))]

        def wide() -> Tensor:
            return torch.empty(outputs, inputs, dtype=scene.scale.dtype, device=scene.device).normal_()

        def fp8() -> tuple[Tensor, Tensor]:
            return wide().to(torch.float8_e4m3fn), torch.rand(1, outputs, device=scene.device)

        def int8() -> Int8Linear:
            layer = Int8Linear(outputs, inputs, device=scene.device)
            layer.weight.copy_(_bytes(wide()))
            layer.scale_O.uniform_()
            return layer

        def int4() -> Int4Linear:
            layer = Int4Linear(outputs, inputs, device=scene.device)
            low, high = wide().mul_(2.5).round_().clamp_(-7, 7).add_(8).to(torch.uint8).chunk(2, dim=1)
            layer.weight.copy_(low | (high << 4))
            layer.multiplier_OG.random_(1, 19)
            layer.scale_O.uniform_()
            return layer

        return cls(
            wide=copies(wide, 8 * scene.scale.dtype.itemsize),
            fp8=copies(fp8, 8),
            int8=copies(int8, 8),
            int4=copies(int4, 4),
        )


def _bytes(x: Tensor) -> Tensor:
    """Normally distributed numbers in int8."""
    return x.mul_(40).round_().clamp_(-127, 127).to(torch.int8)


def _figures(scene: Scene, matrices: _Matrices, count: int, refusals: dict[str, str]) -> dict[str, Any]:
    """The columns of a row; and "ratio", int8 to the fastest of the others, and "different", ours with wrong bits."""
    dtype, device, inputs = scene.scale.dtype, scene.device, matrices.wide[0].shape[1]
    x_RI = torch.empty(count, inputs, dtype=dtype, device=device).normal_()
    fp8_RI, scale_R = x_RI.to(torch.float8_e4m3fn), torch.rand(count, device=device)
    rows = RoundedRows(_bytes(x_RI.clone()), scale_R)
    padded_RI = torch.nn.functional.pad(rows.byte_RI, (0, 0, 0, max(0, _FEWEST_ROWS - count)))

    def scaled_mm(weight: tuple[Tensor, Tensor]) -> Tensor:
        return torch._scaled_mm(fp8_RI, weight[0].t(), scale_a=scale_R[:, None], scale_b=weight[1],
                                out_dtype=torch.bfloat16, use_fast_accum=False)  # fmt: skip

    forms: Mapping[str, tuple[Callable[[Any], object], Sequence[Any]]] = {
        str(dtype).removeprefix("torch."): (lambda weight: torch.mm(x_RI, weight.t()), matrices.wide),
        "fp8": (scaled_mm, matrices.fp8),
        "_int_mm": (lambda layer: torch._int_mm(padded_RI, layer.weight.t()), matrices.int8),
        "int8": (lambda layer: layer.multiply(rows, dtype), matrices.int8),
        "int4": (lambda layer: layer.multiply(rows, dtype), matrices.int4),
    }
    found: dict[str, float] = {}
    row: dict[str, Any] = {}
    for name, (multiply, copies) in forms.items():
        spread = _seconds(scene, multiply, copies, name, refusals)
        row[f"{name} us"] = "not available" if spread is None else spread.text(1e-6 * len(copies))
        if spread is not None:
            found[name] = spread.median / len(copies)
    others = [seconds for name, seconds in found.items() if name not in _OURS]
    ratio = found["int8"] / min(others) if "int8" in found and others else None
    rate = matrices.int8[0].weight.nbytes / found["int8"] if "int8" in found else 0.0
    first: Mapping[str, Int8Linear | Int4Linear] = {"int8": matrices.int8[0], "int4": matrices.int4[0]}
    different = [name for name, layer in first.items() if name not in found or not _same_bits(layer, rows, dtype)]
    row |= {
        "int8 / fastest other": "" if ratio is None else f"{ratio:.2f}",
        "int8 GB/s": f"{rate / 1e9:.0f}",
        "share of bandwidth": f"{rate / scene.bandwidth:.2f}",
        "bits": f"not of {', '.join(different)}" if different else "equal",
    }
    return {**row, "ratio": ratio, "different": len(different)}


def _seconds(
    scene: Scene, multiply: Callable[[Any], object], copies: Sequence[Any], name: str, refusals: dict[str, str]
) -> Spread | None:
    """Seconds of the products with all copies; None, and a line in ``refusals``, where they fail."""

    @torch.inference_mode()
    def work() -> object:
        result = None
        for one in copies:
            result = multiply(one)
        return result

    try:
        return device_seconds(replayed(work, scene.device), scene.device)
    except Exception as error:  # a product that fails here is a result; the suite goes on
        refusals.setdefault(name, f"{type(error).__name__}: {' '.join(str(error).split())}"[:200].replace("|", "/"))
        return None


def _same_bits(layer: Int8Linear | Int4Linear, rows: RoundedRows, dtype: torch.dtype) -> bool:
    """Whether a layer's product is the sums of ``torch._int_mm``, scaled by torch."""
    weight_OI = layer.weight if isinstance(layer, Int8Linear) else expanded(layer.weight, layer.multiplier_OG)
    want = scaled(exact_sums(rows.byte_RI, weight_OI), rows.scale_R, layer.scale_O, None, dtype)
    return torch.equal(layer.multiply(rows, dtype), want)
