"""Backend ``compiled``: Numba attention on CPU, computed in float32, bitwise batch invariant.

:class:`wedlm_core.model.decoder_team.DecoderTeam` calls its kernels itself, in several threads; any other decoder
attends through a plan. Keys are stored in transposed blocks.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from wedlm_core.attention.attention_protocol import PackedRows
from wedlm_core.attention.problem import AttentionProblem
from wedlm_core.kv.pool import KVPool

_READ = (torch.float32, torch.bfloat16, torch.int8)
_LANES = 16
_ENTRY = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 7)


def score_width(pool: KVPool, longest: int) -> int:
    """Scores per query where the longest sequence has so many KV entries: rounded up to whole blocks."""
    span = max(pool.key_block, _LANES)
    return -(-longest // span) * span


def numbers_of_pool(pool: KVPool) -> str:
    """The name of the pool's numbers, as kernels have it."""
    return str(pool.dtype).removeprefix("torch.")


def is_read(pool: KVPool) -> bool:
    """Whether the kernels read the numbers of a pool."""
    return pool.dtype in _READ


def describe_pool(pool: KVPool, task: Any, lines: np.ndarray) -> None:
    """Fill the fields of records :data:`wedlm_core.kernels.cpu.records.TASK` and ``LAYER`` that the pool decides."""
    for number, line in enumerate(lines):
        line["keys"], line["values"] = pool.k[number].data_ptr(), pool.v[number].data_ptr()
        scales = pool.key_scales[number], pool.value_scales[number]
        line["key_scales"], line["value_scales"] = (one.data_ptr() for one in scales)
    task["block"], task["blocks"] = pool.key_block, pool.num_entries // pool.key_block
    task["kv_entries"], task["page_size"] = pool.num_entries, pool.page_size


class PagedCpuPlan:
    """One forward's rows for the kernels.

    Attributes:
        width: scores per query: the longest context, rounded up to whole blocks.
        sequences: number of sequences in the forward.
    """

    def __init__(self, rows: PackedRows, pool: KVPool) -> None:
        self._rows, self._pool = rows, pool
        self.width = score_width(pool, int((rows.cached_S + rows.counts_S).max()))
        self.sequences = len(rows.counts_S)

    def describe(self, task: Any) -> Sequence[np.ndarray]:
        """Fill the fields of :data:`wedlm_core.kernels.cpu.records.TASK` that the rows decide.

        Returns:
            The arrays whose addresses it holds now.
        """
        given = self._rows.pages_SP.numpy(), self._rows.starts_S, self._rows.counts_S, self._rows.cached_S
        pages_SP, *lines = arrays = [np.ascontiguousarray(one, dtype=np.int64) for one in given]
        task["pages"], task["page_columns"] = pages_SP.ctypes.data, pages_SP.shape[1]
        task["starts"], task["counts"], task["cached"] = (one.ctypes.data for one in lines)
        task["sequences"], task["width"] = self.sequences, self.width
        return arrays

    def attend(self, layer: int, q_THD: Tensor) -> Tensor:
        """See :class:`wedlm_core.attention.AttentionPlan`; in this thread alone."""
        pool = self._pool
        if not is_read(pool):
            used_N, places = np.unique(self._rows.pages_SP.numpy(), return_inverse=True)
            rows = replace(self._rows, pages_SP=torch.from_numpy(places).view(self._rows.pages_SP.shape))
            return PagedCpuPlan(rows, pool.widened(layer, torch.from_numpy(used_N))).attend(0, q_THD)
        wide_THD = q_THD.float().contiguous()
        out_THD = torch.zeros_like(wide_THD)
        self._run(layer, wide_THD, out_THD)
        return out_THD.to(q_THD.dtype)

    def _run(self, layer: int, q_THD: Tensor, out_THD: Tensor) -> None:
        from wedlm_core.kernels.cpu.attention import space_size
        from wedlm_core.kernels.cpu.forward import attend_of
        from wedlm_core.kernels.cpu.records import LAYER, TASK
        from wedlm_core.kernels.cpu.team_kernels import STATE_SIZE

        pool, (_, heads, dim) = self._pool, q_THD.shape
        task, lines, state = np.zeros(1, dtype=TASK), np.zeros(len(pool.k), dtype=LAYER), np.zeros(STATE_SIZE, np.int64)
        arrays = self.describe(task)
        describe_pool(pool, task, lines)
        task["heads"], task["kv_heads"], task["dim"], task["scale"] = heads, pool.heads, dim, np.float32(dim**-0.5)
        task["q"], task["context"], task["state"] = q_THD.data_ptr(), out_THD.data_ptr(), state.ctypes.data
        space = np.empty(space_size(dim, self.width), dtype=np.float32)
        places = (one.ctypes.data for one in (task, lines[layer:], *arrays[1:], space))
        _ENTRY(attend_of(numbers_of_pool(pool)))(*places, 1)


class PagedCpuAttention:
    """The default on CPU. Needs Numba and a :class:`KVPool` with transposed keys."""

    name = "compiled"
    batch_invariant = True
    on_device = False
    transposed_keys = True

    @staticmethod
    def why_not(problem: AttentionProblem) -> str | None:
        """Why this backend cannot be used; None if it can."""
        return None if problem.device.type == "cpu" else f"it runs on CPU only, not on {problem.device}"

    def plan(self, rows: PackedRows, pool: KVPool, num_heads: int) -> PagedCpuPlan:
        """Prepare one forward."""
        return PagedCpuPlan(rows, pool)
