"""GPU suite: the ceilings of the device (a large copy, a large matrix product), and the sampler against the copy."""

from __future__ import annotations

import torch
from torch import nn

from benchmarks.gpu.section import Report, Scene, Spread, device_seconds, goal, replayed
from wedlm_core.decoding.sampling import SamplingRows
from wedlm_core.decoding.sampling_gpu import Chooser, chooser
from wedlm_core.kernels.rounding import rounded
from wedlm_core.model.int8 import Int8Linear
from wedlm_core.model.quantised import Fp8Linear

_SHARE = 0.7


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
    """A product in the numbers that quantised layers multiply. Those of int4 are int8 numbers when they are used."""
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


def sampler(scene: Scene) -> Report:
    """Measure the sampler: bytes of logits per second."""
    scale, device = scene.scale, scene.device
    choose, vocab = chooser(device), scale.config.vocab_size
    rows, shares = [], []
    for dtype in (torch.float32, torch.bfloat16):
        for count in scale.sampler_rows:
            logits = torch.randn(count, vocab, device=device).mul_(4).to(dtype)
            for temperature in (0.0, 1.0):
                spread = _choosing(choose, logits, _inputs(count, temperature, device))
                rate = logits.numel() * logits.element_size() / spread.median
                share = rate / scene.bandwidth
                shares.append((share, f"{count} rows, {dtype}, temperature {temperature:g}"))
                rows.append({
                    "logits": str(dtype).removeprefix("torch."), "rows": count, "temperature": temperature,
                    "us": spread.text(1e-6), "GB/s": f"{rate / 1e9:.0f}",
                    "share of the copy's bandwidth": f"{share:.2f}",
                })  # fmt: skip
    notes = (
        f"`{getattr(choose, '__name__', choose)}` over a vocabulary of {vocab}: token, entropy and log-probability of "
        "each row. Counted: each logit read once. Compared with the copy's bandwidth, read and write together; small "
        "row counts may be served from the cache. Replays of a CUDA graph on a GPU, medians of 20 (lowest-highest)."
    )
    most = max(scale.sampler_rows)
    large = [(s, w) for s, w in shares if w.startswith(f"{most} rows")]
    least, where = min(large)
    goals = [goal(f"sampler / measured bandwidth at {most} rows", _SHARE, least, where)]
    return Report(title="Sampler", notes=notes, rows=rows, goals=goals)


def _choosing(choose: Chooser, logits: torch.Tensor, inputs: SamplingRows) -> Spread:
    vocab = logits.shape[1]
    work = replayed(lambda: choose(logits, inputs, mask_token_id=vocab - 1, vocab_limit=vocab), logits.device)
    return device_seconds(work, logits.device)


def _inputs(count: int, temperature: float, device: torch.device) -> SamplingRows:
    whole = torch.arange(count, device=device)
    return SamplingRows(
        temperature_R=torch.full((count,), temperature, device=device),
        seed_R=whole,
        position_R=whole,
        suppress_R=torch.zeros_like(whole, dtype=torch.bool),
        sampled=temperature > 0,
        suppressing=False,
    )
