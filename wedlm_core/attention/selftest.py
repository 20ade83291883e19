"""Self-test of an attention backend: one small random forward on the user's device, compared with the oracle."""

from __future__ import annotations

import numpy as np
import torch

from wedlm_core.attention.oracle import OracleAttention
from wedlm_core.attention.problem import AttentionProblem
from wedlm_core.attention.protocol import AttentionBackend, PackedRows
from wedlm_core.config import ModelConfig
from wedlm_core.kv.pool import KVPool

__all__ = ["disagreement"]

_TOLERANCE = {torch.float32: 1e-3, torch.float16: 1e-2, torch.bfloat16: 5e-2}  # absolute; results are below about 5


@torch.inference_mode()
def disagreement(backend: AttentionBackend, problem: AttentionProblem) -> str | None:
    """How a backend's result differs from the oracle's; None if they agree.

    The forward has three sequences: one row, rows across a page boundary, and rows without cached KV. A kernel that
    fails is reported in the result, not raised.
    """
    page, random = problem.page_size, torch.Generator().manual_seed(0)
    counts, cached = np.array([1, 5, 9]), np.array([2 * page + 1, page - 2 if page > 2 else page, 0])
    try:
        config = ModelConfig(
            vocab_size=1, hidden_size=1, intermediate_size=1, num_hidden_layers=1,
            num_attention_heads=problem.num_heads, num_key_value_heads=problem.num_kv_heads,
            head_dim=problem.head_dim,
        )  # fmt: skip
        deepest = int((cached + counts).max() - 1) // page + 1
        pages = 3 * deepest
        pool = KVPool(config, pages, page, device=problem.device, dtype=problem.dtype, kv_dtype=problem.kv_dtype)
        shape = (2, pages * page, problem.num_kv_heads, problem.head_dim)
        k, v = torch.randn(shape, generator=random).to(problem.device, problem.dtype)
        pool.write_entries(0, torch.arange(pages * page, device=problem.device), k, v)
        q = torch.randn(int(counts.sum()), problem.num_heads, problem.head_dim, generator=random)
        q_THD = q.to(problem.device, problem.dtype)
        table = torch.randperm(pages, generator=random).view(3, deepest).to(problem.device)
        rows = PackedRows(counts_S=counts, cached_S=cached, starts_S=np.cumsum(counts) - counts, pages_SP=table)
        found, expected = (
            each.plan(rows, pool, problem.num_heads).attend(0, q_THD)[: rows.total].float()
            for each in (backend, OracleAttention())
        )
        worst = float((found - expected).abs().max())
    except Exception as error:
        return f"its self-test failed ({type(error).__name__}: {error})"
    # With this comparison a NaN counts as a disagreement.
    if not worst <= _TOLERANCE[problem.dtype]:
        return f"its self-test is off by {worst:.3g}"
    return None
