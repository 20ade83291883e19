"""Backend ``varlen``: torch's variable-length attention with block tables (``torch.nn.attention.varlen``, torch 2.11).

It runs FlashAttention-2 unless the process has activated another implementation
(``torch.nn.attention.activate_flash_attention_impl``). Version 2 needs a page size that is a multiple of 256. Its
automatic KV splits gave NaN with pages (pytorch/torchtitan#3235), so it runs with one split, which torch documents as
batch invariant. Block tables came first with version 3 (pytorch/pytorch#175924); the self-test finds out whether this
torch has them for version 2 too.
"""

from __future__ import annotations

import inspect

import torch
import torch.nn.functional as F
from torch import Tensor

from wedlm_core.attention.attention_protocol import DeviceRows, PackedRows
from wedlm_core.attention.problem import AttentionProblem, version_of
from wedlm_core.kv.pool import KVPool

_MIN_VERSION = (2, 11)


def _implementation() -> str:
    """The FlashAttention that torch will call: "FA2" (its own), or the one that the process activated."""
    from torch.nn.attention import current_flash_attention_impl

    return current_flash_attention_impl() or "FA2"


class _Plan:
    def __init__(self, rows: DeviceRows, pool: KVPool, num_heads: int, implementation: str) -> None:
        self.rows, self.pool, self.shared = rows, pool, num_heads != pool.heads
        # Version 2 reads key offsets, though with pages they mean nothing; version 3 refuses them.
        own = implementation == "FA2"
        self.cu_keys_Z = F.pad(rows.kv_lengths_S.cumsum(0, dtype=torch.int32), (1, 0)) if own else None
        self.splits = 1 if own else None
        # With max_rows=1 version 2 takes a path that requires exactly one row per sequence.
        self.max_rows = max(2, rows.max_rows) if own else rows.max_rows

    def attend(self, layer: int, q_THD: Tensor) -> Tensor:
        from torch.nn.attention.varlen import varlen_attn

        rows, (k, v) = self.rows, self.pool.paged(layer)
        found = varlen_attn(
            q_THD, k, v, rows.cu_rows_Z, self.cu_keys_Z, self.max_rows, rows.max_kv,
            window_size=(-1, 0), enable_gqa=self.shared, seqused_k=rows.kv_lengths_S, block_table=rows.pages_SP,
            num_splits=self.splits,
        )  # fmt: skip
        assert isinstance(found, Tensor)
        return found


class VarlenAttention:
    """``varlen_attn``. The padding rows of a result are undefined and may be NaN."""

    name = "varlen"
    on_device = True
    cpu_decoder = False
    transposed_keys = False

    def __init__(self) -> None:
        self._implementation = _implementation()
        self.batch_invariant = self._implementation == "FA2"

    @staticmethod
    def why_not(problem: AttentionProblem) -> str | None:
        """Why this backend cannot be used; None if it can."""
        if version_of(torch.__version__) < _MIN_VERSION:
            return f"it needs torch 2.11, not {torch.__version__}"
        if why := problem.why_no_flash():
            return why
        from torch.nn.attention.varlen import varlen_attn

        missing = {"seqused_k", "block_table", "num_splits", "enable_gqa"} - set(
            inspect.signature(varlen_attn).parameters
        )
        if missing:
            return f"this torch's varlen_attn has no {', '.join(sorted(missing))}"
        implementation = _implementation()
        if implementation == "FA2" and problem.page_size % 256:
            return f"FlashAttention-2 needs a page_size of a multiple of 256, not {problem.page_size}"
        if implementation != "FA2" and problem.batch_invariant:
            return f"{implementation}, which this process has activated, is not batch invariant"
        return None

    def plan(self, rows: PackedRows, pool: KVPool, num_heads: int) -> _Plan:
        """Copy the description of the rows to the device and prepare one forward."""
        return self.plan_device(DeviceRows.of(rows, pool.k[0].device), pool, num_heads)

    def plan_device(self, rows: DeviceRows, pool: KVPool, num_heads: int) -> _Plan:
        """Prepare one forward: host work and one small sum on the device."""
        return _Plan(rows, pool, num_heads, self._implementation)
