"""GPU minutes: every attention backend, timed alone on one layer; unavailable ones are listed with the reason."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from benchmarks.gpu.section import Report, Scene, Spread, device_seconds, replayed
from wedlm_core import EngineConfig
from wedlm_core.attention import AttentionBackend, AttentionProblem, PackedRows, backend_names, resolve_backend
from wedlm_core.kv.pool import KVPool

_SLOW = ("oracle", "sdpa", "compiled")
_TOO_SLOW = 0.05  # seconds: a backend with a slower call skips larger shapes
_PAGE_SIZES = (EngineConfig().page_size, 256)


def attention(scene: Scene) -> Report:
    """Measure ``attend`` for decode, window and prefill shapes, and the KV bytes that it reads per second."""
    scale = scene.scale
    problem = _problem(scene, EngineConfig().page_size)
    chosen = resolve_backend("auto", problem).name
    rows: list[dict[str, Any]] = []
    names = sorted(backend_names(), key=lambda n: (n != chosen, n in _SLOW, n))
    for name, kv_dtype in ((chosen, None), (chosen, torch.float8_e4m3fn), *((name, None) for name in names[1:])):
        backend, page_size, why = _backend(scene, name, kv_dtype)
        label = name if kv_dtype is None else f"{name}, fp8 keys and values"
        if backend is None:
            rows.append({"backend": label, "shape": "not available", "note": why})
            print(*rows[-1].values(), sep=" | ", flush=True)
            continue
        slowest = 0.0
        for shape in scale.attention:
            row, seconds = _row(scene, backend, shape, page_size, slowest, kv_dtype)
            slowest = max(slowest, seconds)
            rows.append({"backend": label + " (auto)" * (name == chosen), **row, "note": why})
            print(*rows[-1].values(), sep=" | ", flush=True)
    if scene.device.type != "cpu":
        rows += [*(_rotation(scene, count) for count in (1, 64, 1024)), _launches(scene)]
    flash = "is installed" if importlib.util.find_spec("flash_attn") else "is absent here"
    notes = (
        f'"auto" means `{chosen}` for {scale.dtype} here. The package flash-attn {flash}. One layer of '
        f"{scale.config.num_attention_heads} query and {scale.config.num_key_value_heads} KV heads of "
        f"{scale.config.head_dim}; pages in random order; `plan` is not timed. Medians of 20 replays of a CUDA "
        "graph; slow ones run eagerly, 3 times (lowest-highest). KV bytes count each sequence's keys and values "
        "once. Rotation: norm and rotation of heads and the write of KV, in one kernel or in two. Launches: "
        "a norm of one row 64 times, each begun while the one before still runs, or not."
    )
    return Report(title="Attention backends", notes=notes, rows=rows, facts={"auto": chosen})


def _problem(scene: Scene, page_size: int, kv_dtype: torch.dtype | None = None) -> AttentionProblem:
    config, dtype = scene.scale.config, scene.scale.dtype
    return AttentionProblem(
        device=scene.device, dtype=dtype, kv_dtype=kv_dtype or dtype, num_heads=config.num_attention_heads,
        num_kv_heads=config.num_key_value_heads, head_dim=config.head_dim, page_size=page_size, batch_invariant=False,
    )  # fmt: skip


def _backend(scene: Scene, name: str, kv_dtype: torch.dtype | None) -> tuple[AttentionBackend | None, int, str]:
    """The backend with its first supported page size, or None; that size; and the refusals of earlier sizes."""
    refused: dict[str, None] = {}
    for page_size in dict.fromkeys(_PAGE_SIZES):
        try:
            return resolve_backend(name, _problem(scene, page_size, kv_dtype)), page_size, "; ".join(refused)
        except Exception as error:  # a backend that fails here is a result; the suite goes on
            refused[_short(error)] = None
    return None, 0, "; ".join(refused)


def _row(
    scene: Scene,
    backend: AttentionBackend,
    shape: tuple[int, ...],
    page_size: int,
    slowest: float,
    kv_dtype: torch.dtype | None,
) -> tuple[dict[str, Any], float]:
    """The row of a shape, and the seconds of a call (0 if it was not measured)."""
    (sequences, each, context, *prompt), scale = shape, scene.scale
    row: dict[str, Any] = {
        "shape": f"{sequences} x {each} rows" + f" and {sum(prompt)}" * bool(prompt) + f", {context} cached",
        "page": page_size,
    }
    if scene.clock.left < 0:
        return {**row, "us": "not measured: the section's time was over"}, 0.0
    if slowest > _TOO_SLOW:
        return {**row, "us": f"not measured: a smaller shape took {slowest:.2g} s"}, 0.0
    try:
        spread = _time(scene, backend, shape, page_size, kv_dtype)
    except Exception as error:  # see above
        return {**row, "us": f"failed: {_short(error)}"}, 0.0
    entries = sequences * (context + each) + sum(context + rows for rows in prompt)
    read = entries * 2 * scale.config.num_key_value_heads * scale.config.head_dim
    rate = read * (kv_dtype or scale.dtype).itemsize / spread.median
    row |= {
        "us": spread.text(1e-6),
        "KV GB/s": f"{rate / 1e9:.0f}",
        "share of bandwidth": f"{rate / scene.bandwidth:.2f}",
    }
    return row, spread.median


def _time(
    scene: Scene, backend: AttentionBackend, shape: tuple[int, ...], page_size: int, kv_dtype: torch.dtype | None
) -> Spread:
    (sequences, each, context, *prompt), device = shape, scene.device
    config = replace(scene.scale.config, num_hidden_layers=1)
    counts_S = np.array([each] * sequences + prompt, dtype=np.int64)
    sequences = len(counts_S)
    pages = -(-(context + int(counts_S.max())) // page_size)
    pool = KVPool(
        config, sequences * pages, page_size, device=device, dtype=scene.scale.dtype, kv_dtype=kv_dtype,
        transposed_keys=backend.transposed_keys,
    )  # fmt: skip
    for cache in (pool.k[0], pool.v[0]):
        cache.copy_(torch.randn(cache.shape, device=device))
    order = np.random.default_rng(0).permutation(sequences * pages).reshape(sequences, pages)
    rows = PackedRows(
        counts_S=counts_S,
        cached_S=np.full(sequences, context, dtype=np.int64),
        starts_S=np.cumsum(counts_S) - counts_S,
        pages_SP=torch.from_numpy(order).to(device),
    )
    query = torch.randn(int(counts_S.sum()), config.num_attention_heads, config.head_dim, device=device)
    q_THD = query.to(scene.scale.dtype)
    plan = backend.plan(rows, pool, config.num_attention_heads)
    slow = backend.name in _SLOW

    @torch.inference_mode()
    def attend() -> object:
        return plan.attend(0, q_THD)

    return device_seconds(
        attend if slow else replayed(attend, device), device, repeats=3 if slow else 20, warm=1 if slow else 3
    )


def _rotation(scene: Scene, count: int) -> dict[str, Any]:
    """The row of the kernel in front of attention, which writes keys and values, and of the two that it replaces."""
    from wedlm_core.kernels.gpu.layer_gpu import Rotation, norm_rope, norm_rope_write

    config, device = replace(scene.scale.config, num_hidden_layers=1), scene.device
    heads, kv_heads, dim = config.num_attention_heads, config.num_key_value_heads, config.head_dim

    def some(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device=device).to(scene.scale.dtype)

    pool = KVPool(config, count, EngineConfig().page_size, device=device, dtype=scene.scale.dtype)
    entry_T, qkv_TC = torch.arange(count, device=device), some(count, (heads + 2 * kv_heads) * dim)
    rotation = Rotation(
        position_T=entry_T, cos=some(count, dim // 2), sin=some(count, dim // 2), weights=(some(dim), some(dim)),
        eps=1e-6, heads=heads, kv_heads=kv_heads, head_dim=dim,
    )  # fmt: skip

    def two() -> None:
        pool.write_entries_gpu(0, entry_T, *norm_rope(qkv_TC, rotation)[1:])

    def one() -> None:
        norm_rope_write(qkv_TC, rotation, *pool.held(0), entry_T)

    times = [device_seconds(replayed(work, device), device).text(1e-6) for work in (one, two)]
    return {"backend": "rotation", "shape": f"{count} rows", "us": times[0], "note": f"two kernels: {times[1]}"}


def _launches(scene: Scene) -> dict[str, Any]:
    """The row of kernels that are prepared while the kernel before them still runs."""
    from wedlm_core.kernels.gpu import dependent_launch
    from wedlm_core.kernels.gpu.layer_gpu import add_rms_norm

    width, device = scene.scale.config.hidden_size, scene.device
    x, weight = (torch.ones(*shape, device=device, dtype=scene.scale.dtype) for shape in ((1, width), (width,)))

    def chain() -> None:
        for _ in range(64):
            add_rms_norm(x, None, weight, 1e-6)

    taken = dependent_launch.takes_dependents(device)
    overlapped = device_seconds(replayed(chain, device), device).text(1e-6)
    with patch.object(dependent_launch, "takes_dependents", return_value=False):
        apart = device_seconds(replayed(chain, device), device).text(1e-6)
    return {
        "backend": "launches" + " (this device takes no dependent ones)" * (not taken), "shape": "64 of 1 row",
        "us": overlapped, "note": f"one after the other: {apart}",
    }  # fmt: skip


def _short(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:160].replace("|", "/")
