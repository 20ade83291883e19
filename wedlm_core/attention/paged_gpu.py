"""Backend ``triton``: this package's paged attention for GPUs; any dtype, page size and head count, 8-bit KV too."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from wedlm_core.attention.problem import AttentionProblem
from wedlm_core.attention.protocol import DeviceRows, PackedRows
from wedlm_core.kernels.gpu.support import why_no_triton
from wedlm_core.kv.pool import KVPool

__all__ = ["TritonAttention", "TritonPlan"]

_TILE = 64  # query rows (times query heads per KV head) of a tile if batch invariant
_MAX_SPLITS = 16
_WAVES = 2  # programs per multiprocessor beyond which splitting the KV further gains nothing


def _power(number: int) -> int:
    """The next power of two."""
    return 1 << (number - 1).bit_length()


class TritonPlan:
    """Tile sizes and grid of one forward; see :mod:`wedlm_core.kernels.gpu.attention`.

    Args:
        splits: number of ranges each sequence's KV is cut into; None: as many as keep the device busy.
    """

    def __init__(
        self, rows: DeviceRows, pool: KVPool, num_heads: int, *, batch_invariant: bool, splits: int | None = None
    ) -> None:
        self.rows, self.pool, self.heads, self.invariant = rows, pool, num_heads, batch_invariant
        self.group = num_heads // pool.heads
        wide = pool.compute_dtype == torch.float32
        group_p = _power(self.group)
        tile = _TILE if batch_invariant else min(128, max(16, _power(rows.max_rows * group_p)))
        large = wide and pool.head_dim > 64  # float32 sums without tensor cores: more registers per row and key
        if wide or pool.head_dim > 128:
            tile = min(tile, 16 if large else 32 if wide else 64)
        self.block_q = max(1, tile // group_p)
        self.tile = self.block_q * group_p
        self.block_n = 16 if large else 32 if wide or self._narrow_blocks() else 64
        self.sequences = rows.cu_rows_Z.shape[0] - 1
        if splits is None:
            tiles = min(rows.total, rows.total // self.block_q + self.sequences)  # upper bound of tiles with rows
            splits = 1 if batch_invariant else self._useful_splits(tiles)
        self.splits = max(1, min(splits, -(-rows.max_kv // self.block_n)))
        self.launch = {"num_warps": 8 if self.tile >= 128 or large else 4, "num_stages": self._stages()}

    def _useful_splits(self, tiles: int) -> int:
        device = self.pool.k[0].device
        if device.type != "cuda":
            return 1
        processors = torch.cuda.get_device_properties(device).multi_processor_count
        return min(_MAX_SPLITS, _WAVES * processors // max(1, tiles * self.pool.heads))

    def _narrow_blocks(self) -> bool:
        """Whether a block of 64 keys does not fit in the registers beside a tile of more than 16 rows.

        Tensor cores read both operands from registers before compute capability 9.0, and later if a tile has fewer
        than 64 rows.
        """
        device = self.pool.k[0].device
        if device.type != "cuda" or self.tile <= 16:
            return False
        return self.tile < 64 or torch.cuda.get_device_properties(device).major < 9

    def _stages(self) -> int:
        """Software pipeline stages: as many KV blocks as fit in shared memory beside the queries, at most 3."""
        device = self.pool.k[0].device
        if device.type != "cuda":
            return 1
        # A thread block may use all shared memory of its multiprocessor but 1 KiB.
        memory = torch.cuda.get_device_properties(device).shared_memory_per_multiprocessor - 1024
        size, dim = self.pool.compute_dtype.itemsize, _power(self.pool.head_dim)
        queries, block = self.tile * dim * size, 2 * self.block_n * dim * size
        return max(1, min(3, (memory - 2 * queries) // block))

    def attend(self, layer: int, q_THD: Tensor) -> Tensor:
        """See :class:`wedlm_core.attention.AttentionPlan`; padding rows are zeros."""
        from wedlm_core.kernels.gpu.attention import attend_tiles, join_splits

        rows, pool, heads = self.rows, self.pool, self.heads
        q_THD = q_THD if q_THD.stride(-1) == 1 else q_THD.contiguous()
        total, dim = q_THD.shape[0], pool.head_dim
        out_THD = torch.empty(q_THD.shape, dtype=q_THD.dtype, device=q_THD.device)
        k, v = pool.k[layer], pool.v[layer]
        if pool.quantised:
            k, v = k.view(torch.uint8), v.view(torch.uint8)
        key_scale, value_scale = pool.scales[layer]
        split = self.splits > 1
        parts = tops = totals = out_THD  # unused without splits
        if split:
            parts = torch.empty(total, heads, self.splits, dim, dtype=torch.float32, device=q_THD.device)
            tops, totals = torch.empty(2, total, heads, self.splits, dtype=torch.float32, device=q_THD.device).unbind()
        shape = {"HEADS": heads, "DIM": dim, "DIM_P": max(16, _power(dim)), "BLOCK_N": self.block_n}
        tiles = total // self.block_q + self.sequences + 1
        attend_tiles[(tiles, pool.heads, self.splits)](
            q_THD, k, v, out_THD, parts, tops, totals, rows.cu_rows_Z, rows.kv_lengths_S, rows.pages_SP,
            dim**-0.5 * math.log2(math.e) * key_scale, value_scale, self.sequences, total, self.splits,
            rows.pages_SP.stride(0), q_THD.stride(0), q_THD.stride(1), pool.num_entries,
            GROUP=self.group, GROUP_P=_power(self.group), PAGE=pool.page_size, BLOCK_Q=self.block_q,
            SEQ_P=max(128, _power(self.sequences + 1)), SPLIT=split, SKIP_MASK=not self.invariant, FP8=pool.quantised,
            **shape, **self.launch,
        )  # fmt: skip
        if split:
            join_splits[(total, heads)](
                parts, tops, totals, out_THD, rows.cu_rows_Z, rows.kv_lengths_S, value_scale, self.sequences,
                self.splits, SEQ_P=max(128, _power(self.sequences + 1)), num_warps=1, **shape,
            )  # fmt: skip
        return out_THD


class TritonAttention:
    """The Triton kernels as an attention backend.

    With ``batch_invariant``, a row's result does not depend on the rest of the forward, because:

    - tile size, block size, warps and masking are the same in every forward;
    - a row reads its KV in order from index 0, without splits;
    - a KV block that a row cannot see adds exactly nothing (weights of 0 and a factor of 1);
    - a row of a matrix product depends on that row alone, wherever it is in the tile. Tensor cores and the compiler
      behave so in practice; no manual guarantees it, so a test checks it.

    Without it, the tile size follows the number of rows, and the KV is split if there are few tiles.
    """

    name = "triton"
    on_device = True
    cpu_decoder = False
    transposed_keys = False

    def __init__(self, *, batch_invariant: bool) -> None:
        self.batch_invariant = batch_invariant

    @staticmethod
    def why_not(problem: AttentionProblem) -> str | None:
        """Why this backend cannot be used; None if it can."""
        if why := why_no_triton(problem.device):
            return why
        if problem.device.type == "cuda":
            capability = torch.cuda.get_device_capability(problem.device)
            if problem.kv_dtype == torch.float8_e4m3fn and capability < (8, 9):
                return f"8-bit floats need compute capability 8.9, this device has {capability[0]}.{capability[1]}"
            if problem.dtype == torch.bfloat16 and capability < (8, 0):
                return f"bfloat16 needs compute capability 8.0, this device has {capability[0]}.{capability[1]}"
        if problem.head_dim > 256:
            return f"head_dim {problem.head_dim} is above 256"
        return None

    def plan(self, rows: PackedRows, pool: KVPool, num_heads: int) -> TritonPlan:
        """Copy the description of the rows to the device and prepare one forward."""
        return self.plan_device(DeviceRows.of(rows, pool.k[0].device), pool, num_heads)

    def plan_device(self, rows: DeviceRows, pool: KVPool, num_heads: int) -> TritonPlan:
        """Prepare one forward: host work only."""
        return TritonPlan(rows, pool, num_heads, batch_invariant=self.batch_invariant)
