"""The tensors of the paged KV pool: where a forward's keys and values are written and read from."""

from __future__ import annotations

import torch
from torch import Tensor

from wedlm_core.config import ModelConfig

__all__ = ["KVPool"]


class KVPool:
    """Keys and values of all layers, head-major so that any run of tokens of a head is one slice.

    ``k[layer]`` and ``v[layer]`` are ``[Hkv * num_slots, Dh]``; the entry of head h and slot s is row
    ``h * num_slots + s``; slot = page * page_size + offset.
    """

    def __init__(
        self, config: ModelConfig, num_pages: int, page_size: int, *, device: torch.device, dtype: torch.dtype
    ) -> None:
        self.heads, self.head_dim = config.num_key_value_heads, config.head_dim
        self.page_size, self.num_slots = page_size, num_pages * page_size
        shape = (self.heads * self.num_slots, self.head_dim)
        layers = range(config.num_hidden_layers)
        # Zeros, not garbage: a masked slot is multiplied by a weight of exactly 0, and 0 * NaN is NaN.
        self.k = [torch.zeros(shape, device=device, dtype=dtype) for _ in layers]
        self.v = [torch.zeros(shape, device=device, dtype=dtype) for _ in layers]
        self._head_base_H1 = torch.arange(self.heads, device=device)[:, None] * self.num_slots

    @staticmethod
    def bytes_per_page(config: ModelConfig, page_size: int, dtype: torch.dtype) -> int:
        """Bytes one page takes over all layers, keys and values."""
        per_token = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim
        return per_token * page_size * dtype.itemsize

    def rows_of(self, slots_T: Tensor) -> Tensor:
        """int64 ``[Hkv * T]``: the pool rows of these slots, head after head."""
        return (self._head_base_H1 + slots_T).flatten()

    def write(self, layer: int, rows_HT: Tensor, k_THD: Tensor, v_THD: Tensor) -> None:
        """Store keys and values ``[T, Hkv, Dh]`` at ``rows_of(slots)``."""
        self.k[layer].index_copy_(0, rows_HT, k_THD.transpose(0, 1).reshape(-1, self.head_dim))
        self.v[layer].index_copy_(0, rows_HT, v_THD.transpose(0, 1).reshape(-1, self.head_dim))
