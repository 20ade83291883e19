"""GPU minutes: every attention backend, timed alone on one layer; unavailable ones are listed with the reason."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from typing import Any

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
    flash = "is installed" if importlib.util.find_spec("flash_attn") else "is absent here"
    notes = (
        f'"auto" means `{chosen}` for {scale.dtype} here. The package flash-attn {flash}. One layer of '
        f"{scale.config.num_attention_heads} query and {scale.config.num_key_value_heads} KV heads of "
        f"{scale.config.head_dim}; pages in random order; `plan` is not timed. Medians of 20 replays of a CUDA "
        "graph; slow ones run eagerly, 3 times (lowest-highest). KV bytes count each sequence's keys and values "
        "once."
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


def _short(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:160].replace("|", "/")
