"""The decoder over packed rows: token ids in, hidden states out, keys and values written to the pool.

Knows the model, attention and the KV pool; knows nothing of windows, slots or sampling.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from wedlm_core.attention import (
    AttentionBackend,
    DeviceAttentionBackend,
    DeviceRows,
    PackedRows,
    PagedAttend,
)
from wedlm_core.attention.paged_cpu import PagedCpuPlan, is_read
from wedlm_core.kv.pool import KVPool
from wedlm_core.model.decoder import BLOCK_ROWS, Decoder, InBlocks, check_not_packed, in_blocks
from wedlm_core.model.draw import Draw, Drawn, StepRows

if TYPE_CHECKING:
    from wedlm_core.model.decoder_team import DecoderTeam

_LOG = logging.getLogger(__name__)


class ModelRunner:
    """Runs a decoder with an attention backend over a KV pool.

    Args:
        model: the decoder, in evaluation mode, its rotary tables long enough for every window.
        pool: KV tensors.
        backend: attention.

    Raises:
        ConfigError: the weights were packed while they were read, and no decoder for such runs here.

    Attributes:
        head: hidden states ``[R, D]`` to logits ``[R, V]``.
        padding: the rows of a forward, and of the head, are filled up to a multiple of this.
        device: of the model.
        draw: :meth:`run`, the head and the choice of tokens in one call; None where no decoder has that.
        draws: whether :attr:`draw` is to be called where it can be.
        skips: whether rows that are not read are left out after the last layer's keys and values.
        unread_row: cost of a row that is not read after the last layer, as a share of the cost of a row that chooses a
            token; 1 where that saves nothing, or little.
    """

    def __init__(self, model: Decoder, pool: KVPool, backend: AttentionBackend) -> None:
        self.model, self.pool, self.backend = model, pool, backend
        self.device = model.device
        on_cpu = self.device.type == "cpu"
        self._products: AbstractContextManager[Any] = InBlocks() if on_cpu else nullcontext()
        self.head: Callable[[Tensor], Tensor] = partial(in_blocks, model.lm_head) if on_cpu else model.lm_head
        self.padding = BLOCK_ROWS if on_cpu else 8  # a GPU pads tiles anyway
        self._team = _team_of(model, pool)
        self.skips = self._team is not None
        self.draws, self.unread_row = False, 1.0
        self.draw: Callable[[StepRows, Draw], Drawn] | None = None
        if self._team is not None:
            self.head, self.padding, self.unread_row = self._team.head, 1, self._team.unread_row
            self.draws = self._team.draws
            self.draw = partial(self._team.draw, pool=pool) if self.draws else None

    def run(
        self,
        id_T: Tensor,
        position_T: Tensor,
        kv_entry_T: Tensor,
        rows: PackedRows,
        read_R: Tensor | None = None,
    ) -> Tensor:
        """Hidden states after the final norm.

        Args:
            id_T: int64 tokens.
            position_T: int64 logical positions.
            kv_entry_T: int64 slots of the KV pool that the rows write.
            rows: for attention.
            read_R: int64, ascending, the rows whose states are wanted; None for all.

        Returns:
            ``[R, D]``, or ``[T', D]``, T' padded; padding is any value.
        """
        plan = self.backend.plan(rows, self.pool, self.model.config.num_attention_heads)
        if self._team is not None:
            return self._team(id_T, position_T, kv_entry_T, self.pool, cast(PagedCpuPlan, plan), read_R)
        total = id_T.shape[0]
        padding = (0, -total % self.padding)
        pool_rows = self.pool.flat_index(kv_entry_T)

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            self.pool.write(layer, pool_rows, k[:total], v[:total])
            return plan.attend(layer, q)

        with self._products:
            hidden_TD = self.model(F.pad(id_T, padding), F.pad(position_T, padding), attend)
        return hidden_TD if read_R is None else hidden_TD.index_select(0, read_R)

    def run_device_rows(self, id_T: Tensor, position_T: Tensor, kv_entry_T: Tensor, rows: DeviceRows) -> Tensor:
        """:meth:`run` without host work, for backends that plan on the device; padding rows have slot -1."""
        backend = cast(DeviceAttentionBackend, self.backend)
        plan = backend.plan_device(rows, self.pool, self.model.config.num_attention_heads)
        return self.model(id_T, position_T, PagedAttend(plan=plan, pool=self.pool, entry_T=kv_entry_T))


def _team_of(model: Decoder, pool: KVPool) -> DecoderTeam | None:
    """The decoder of a CPU's kernels, if it runs here.

    Raises:
        ConfigError: the weights were packed for it, and it does not.
    """
    if pool.transposed_keys and is_read(pool) and pool.compute_dtype == torch.float32:
        from wedlm_core.model.decoder_team import DecoderTeam, why_no_team

        why = why_no_team(model)
        if why is None:
            return DecoderTeam(model)
        _LOG.info("forwards are computed by torch, which takes longer: %s", why)
    check_not_packed(model)
    return None
