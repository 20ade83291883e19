"""The attention interface: the description of a forward's rows, and the functions of a backend."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from wedlm_core.kv.pool import KVPool

IntArray = np.ndarray[tuple[int, ...], np.dtype[np.int64]]


@dataclass(frozen=True, kw_only=True)
class PackedRows:
    """The rows of one forward: S sequences one after the other, T rows in total.

    Sequence s has the rows ``starts_S[s] : starts_S[s] + counts_S[s]``. Its row r is stored at KV index
    ``cached_S[s] + r`` of the sequence and attends to the KV indices up to and including its own. So the order in the
    forward is the causal order; logical positions do not matter.

    Attributes:
        counts_S: rows of each sequence, at least 1.
        cached_S: KV entries of each sequence from earlier forwards.
        starts_S: exclusive cumulative sum of ``counts_S``.
        pages_SP: int64 page table; cells after a sequence's last page hold any valid page (they are masked).
    """

    counts_S: IntArray
    cached_S: IntArray
    starts_S: IntArray
    pages_SP: Tensor

    @property
    def total(self) -> int:
        """T, the rows of the forward."""
        return int(self.counts_S.sum())


@dataclass(frozen=True, kw_only=True)
class DeviceRows:
    """:class:`PackedRows` as device tensors, so that planning needs no host work.

    The tensors may be the static inputs of a CUDA graph. A captured plan reads their contents at each replay, so
    lengths and pages may change within the same shapes and bounds. An unused index s has no rows (two equal values in
    ``cu_rows_Z``) and a KV length of 0. The rows from ``cu_rows_Z[-1]`` to ``total`` are padding.

    Attributes:
        cu_rows_Z: int32 ``[S + 1]``, exclusive cumulative row counts, from 0.
        kv_lengths_S: int32, cached entries plus own rows.
        pages_SP: int32 page table, row-contiguous; cells after a sequence's last page hold any valid page.
        max_rows: upper bound of rows per sequence, known on the host (grids depend on it).
        max_kv: upper bound of KV entries per sequence; at most ``P * page_size``.
        total: T, rows of the padded forward.
    """

    cu_rows_Z: Tensor
    kv_lengths_S: Tensor
    pages_SP: Tensor
    max_rows: int
    max_kv: int
    total: int

    @classmethod
    def of(cls, rows: PackedRows, device: torch.device) -> DeviceRows:
        """Copy packed rows to the device. Lengths and offsets go in one asynchronous transfer."""
        sequences, lengths_S = len(rows.counts_S), rows.cached_S + rows.counts_S
        facts = torch.empty(2 * sequences + 1, dtype=torch.int32, pin_memory=device.type == "cuda")
        view = facts.numpy()
        view[0] = 0
        np.cumsum(rows.counts_S, out=view[1 : sequences + 1])
        view[sequences + 1 :] = lengths_S
        moved = facts.to(device, non_blocking=True)
        return cls(
            cu_rows_Z=moved[: sequences + 1],
            kv_lengths_S=moved[sequences + 1 :],
            pages_SP=rows.pages_SP.to(device, torch.int32, non_blocking=True).contiguous(),
            max_rows=int(rows.counts_S.max()),
            max_kv=int(lengths_S.max()),
            total=rows.total,
        )


class AttentionPlan(Protocol):
    """The prepared attention of one forward, used by all layers."""

    def attend(self, layer: int, q_THD: Tensor) -> Tensor:
        """Queries ``[T', H, Dh]`` (T' >= T, padding last) -> context of the same shape; padding rows are undefined.

        The keys and values of the forward's own rows are already in the pool.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class PagedAttend:
    """The attention of a forward's layers: store the keys and values of its rows in the pool, then attend.

    Attributes:
        plan: of this forward.
        pool: that ``plan`` reads.
        entry_T: int64, the pool's entry of each row; a negative one marks a padding row.
    """

    plan: AttentionPlan
    pool: KVPool
    entry_T: Tensor

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """See :class:`wedlm_core.model.decoder.Attend`."""
        self.pool.write_entries(layer, self.entry_T, k, v)
        return self.plan.attend(layer, q)


class AttentionBackend(Protocol):
    """A way to compute attention.

    Attributes:
        name: as in ``EngineConfig.attention``.
        batch_invariant: a row's result is bitwise the same in any batch.
        on_device: it plans from device tensors too: it is a :class:`DeviceAttentionBackend`.
        transposed_keys: it reads keys in transposed blocks (:class:`wedlm_core.kv.pool.KVPool`).
    """

    name: str
    batch_invariant: bool
    on_device: bool
    transposed_keys: bool

    def plan(self, rows: PackedRows, pool: KVPool, num_heads: int) -> AttentionPlan:
        """Prepare one forward. Called once per forward."""
        ...


class DeviceAttentionBackend(AttentionBackend, Protocol):
    """A backend that plans from device tensors, so that a CUDA graph can capture the forward."""

    def plan_device(self, rows: DeviceRows, pool: KVPool, num_heads: int) -> AttentionPlan:
        """Prepare one forward without reading a device tensor on the host."""
        ...
