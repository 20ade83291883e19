"""Self-test of an attention backend: small random forwards on the user's device, compared with the oracle."""

from __future__ import annotations

import numpy as np
import torch

from wedlm_core.attention.attention_protocol import AttentionBackend, PackedRows
from wedlm_core.attention.oracle import OracleAttention
from wedlm_core.attention.problem import AttentionProblem
from wedlm_core.config import ModelConfig
from wedlm_core.kv.pool import KVPool

IntArray = np.ndarray[tuple[int, ...], np.dtype[np.int64]]

_TOLERANCE = {torch.float32: 1e-3, torch.float16: 1e-2, torch.bfloat16: 5e-2}  # absolute; results are below about 5


def _forwards(page: int) -> dict[str, tuple[list[int], list[int]]]:
    """Rows and cached entries of each sequence: kernels divide windows, decoding and prefill in ways of their own."""
    across = [2 * page + 1, page - 2 if page > 2 else page, 0]  # the second one's rows cross the border of a page
    return {
        "windows": ([1, 5, 9], across),
        "decoding": ([1] * 40, [number * page // 13 for number in range(40)]),
        "prefill": ([1, 70, 9], across),
    }


@torch.inference_mode()
def disagreement(backend: AttentionBackend, problem: AttentionProblem) -> str | None:
    """How a backend's results differ from the oracle's; None if they agree.

    A kernel that fails is reported in the result, not raised. On a CPU, where no kernel tells forwards apart, one is
    enough.
    """
    forwards = list(_forwards(problem.page_size).items())
    for name, (counts, cached) in forwards if problem.device.type == "cuda" else forwards[:1]:
        try:
            worst = _difference(backend, problem, np.array(counts), np.array(cached))
        except Exception as error:
            return f"its self-test of {name} failed ({type(error).__name__}: {error})"
        # With this comparison a NaN counts as a disagreement.
        if not worst <= _TOLERANCE[problem.dtype]:
            return f"its self-test of {name} is off by {worst:.3g}"
    return None


def _difference(backend: AttentionBackend, problem: AttentionProblem, counts_S: IntArray, cached_S: IntArray) -> float:
    """The largest difference in one forward of random numbers."""
    page, random, sequences = problem.page_size, torch.Generator().manual_seed(0), len(counts_S)
    config = ModelConfig(
        vocab_size=1, hidden_size=1, intermediate_size=1, num_hidden_layers=1, num_attention_heads=problem.num_heads,
        num_key_value_heads=problem.num_kv_heads, head_dim=problem.head_dim,
    )  # fmt: skip
    deepest = int((cached_S + counts_S).max() - 1) // page + 1
    pages = sequences * deepest
    pool = KVPool(config, pages, page, device=problem.device, dtype=problem.dtype, kv_dtype=problem.kv_dtype)
    shape = (2, pages * page, problem.num_kv_heads, problem.head_dim)
    k, v = torch.randn(shape, generator=random).to(problem.device, problem.dtype)
    pool.write_entries(0, torch.arange(pages * page, device=problem.device), k, v)
    q = torch.randn(int(counts_S.sum()), problem.num_heads, problem.head_dim, generator=random)
    q_THD = q.to(problem.device, problem.dtype)
    table = torch.randperm(pages, generator=random).view(sequences, deepest).to(problem.device)
    rows = PackedRows(
        counts_S=counts_S, cached_S=cached_S, starts_S=np.cumsum(counts_S) - counts_S, pages_SP=table
    )  # fmt: skip
    found, expected = (
        each.plan(rows, pool, problem.num_heads).attend(0, q_THD)[: rows.total].float()
        for each in (backend, OracleAttention())
    )
    return float((found - expected).abs().max())
