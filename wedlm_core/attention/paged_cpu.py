"""Backend ``compiled``: Numba attention on CPU in float32, bitwise batch invariant.

Keys and values are float32, bfloat16 or int8, in a KV pool with transposed keys.
:class:`wedlm_core.model.decoder_cpu.DecoderCpu` runs it too.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from wedlm_core.attention.attention_protocol import PackedRows
from wedlm_core.attention.problem import AttentionProblem
from wedlm_core.kv.pool import KVPool

_LANES = 16


def score_width(pool: KVPool, longest: int) -> int:
    """Scores per query where the longest sequence has so many KV entries: rounded up to whole blocks."""
    span = max(pool.key_block, _LANES)
    return -(-longest // span) * span


class PagedCpuPlan:
    """One forward's rows for :func:`wedlm_core.kernels.cpu.attention.attend`.

    Attributes:
        width: scores per query: the longest context, rounded up to whole blocks.
        sequences: number of sequences in the forward.
        pairs: upper bound of (row, KV entry) pairs, to estimate the work.
    """

    def __init__(self, rows: PackedRows, pool: KVPool) -> None:
        self._pool = pool
        self._rows = (rows.pages_SP.numpy(), rows.starts_S, rows.counts_S, rows.cached_S)
        self._scale = np.float32(pool.head_dim**-0.5)
        self.width = score_width(pool, int((rows.cached_S + rows.counts_S).max()))
        self.sequences = len(rows.counts_S)
        self.pairs = int(rows.counts_S @ (rows.cached_S + rows.counts_S))

    def run(self, layer: int, q: np.ndarray, out: np.ndarray, first: int, last: int) -> None:
        """Compute the sequences ``first .. last - 1``. ``q`` and ``out``: float32 ``[T', heads * Dh]``."""
        from wedlm_core.kernels.cpu.attention import attend

        pool = self._pool
        attend(q, *pool.blocks(layer), *self._rows, pool.page_size, self._scale, out, self.width, first, last)

    def describe(self, task: Any) -> tuple[np.ndarray, ...]:
        """Fill the fields of :data:`wedlm_core.kernels.cpu.records.TASK` that attention needs.

        Returns:
            The arrays whose addresses it holds now.
        """
        pages_SP, *lines = arrays = tuple(np.ascontiguousarray(one, dtype=np.int64) for one in self._rows)
        task["pages"], task["page_columns"] = pages_SP.ctypes.data, pages_SP.shape[1]
        task["starts"], task["counts"], task["cached"] = (one.ctypes.data for one in lines)
        task["sequences"], task["width"] = self.sequences, self.width
        return arrays

    def attend(self, layer: int, q_THD: Tensor) -> Tensor:
        """See :class:`wedlm_core.attention.AttentionPlan`."""
        out = torch.zeros_like(q_THD)
        self.run(layer, q_THD.contiguous().flatten(1).numpy(), out.flatten(1).numpy(), 0, self.sequences)
        return out


class PagedCpuAttention:
    """The default on CPU in float32. Needs Numba and a :class:`KVPool` with transposed keys."""

    name = "compiled"
    batch_invariant = True
    on_device = False
    cpu_decoder = True
    transposed_keys = True

    @staticmethod
    def why_not(problem: AttentionProblem) -> str | None:
        """Why this backend cannot be used; None if it can."""
        if problem.device.type != "cpu" or problem.dtype != torch.float32:
            return f"it runs in float32 on CPU only, not in {problem.dtype} on {problem.device}"
        if problem.kv_dtype not in (torch.float32, torch.bfloat16, torch.int8):
            return f"it reads keys and values in float32, bfloat16 and int8 only, not in {problem.kv_dtype}"
        if problem.weight_dtype not in ("auto", "int8"):
            return f"the CPU decoder that it is part of needs float32 or int8 weights, not {problem.weight_dtype}"
        return None

    def plan(self, rows: PackedRows, pool: KVPool, num_heads: int) -> PagedCpuPlan:
        """Prepare one forward."""
        return PagedCpuPlan(rows, pool)
