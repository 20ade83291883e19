"""The tensors of the paged KV pool: where a forward's keys and values are written and read from."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from wedlm_core.config import ModelConfig

__all__ = ["KVPool"]

_KEY_BLOCK = 64


class KVPool:
    """Keys and values of all layers, head-major so that any run of tokens of a head is one slice.

    ``k[layer]`` and ``v[layer]`` are ``[Hkv * num_slots, Dh]``; the entry of head h and slot s is row
    ``h * num_slots + s``; slot = page * page_size + offset. With ``transposed_keys`` the memory of ``k`` holds
    ``[Hkv, num_slots / B, Dh, B]`` instead, in blocks of B = ``key_block`` slots (:meth:`blocks`), so that scores
    against a block of keys are sums of whole vectors.
    """

    def __init__(
        self,
        config: ModelConfig,
        num_pages: int,
        page_size: int,
        *,
        device: torch.device,
        dtype: torch.dtype,
        transposed_keys: bool = False,
    ) -> None:
        self.heads, self.head_dim = config.num_key_value_heads, config.head_dim
        self.page_size, self.num_slots = page_size, num_pages * page_size
        shape = (self.heads * self.num_slots, self.head_dim)
        layers = range(config.num_hidden_layers)
        # Zeros, not garbage: a masked slot is multiplied by a weight of exactly 0, and 0 * NaN is NaN.
        self.k = [torch.zeros(shape, device=device, dtype=dtype) for _ in layers]
        self.v = [torch.zeros(shape, device=device, dtype=dtype) for _ in layers]
        self.transposed_keys, self.key_block = transposed_keys, min(_KEY_BLOCK, page_size)
        self._head_base_H1 = torch.arange(self.heads, device=device)[:, None] * self.num_slots

    @staticmethod
    def bytes_per_page(config: ModelConfig, page_size: int, dtype: torch.dtype) -> int:
        """Bytes one page takes over all layers, keys and values."""
        per_token = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim
        return per_token * page_size * dtype.itemsize

    def blocks(self, layer: int) -> tuple[np.ndarray, np.ndarray]:
        """Transposed keys ``[Hkv, num_slots / B, Dh, B]`` and values ``[Hkv, num_slots, Dh]``, views on the host."""
        keys = self.k[layer].view(self.heads, -1, self.head_dim, self.key_block)
        return keys.numpy(), self.v[layer].view(self.heads, -1, self.head_dim).numpy()

    def rows_of(self, slots_T: Tensor) -> Tensor:
        """int64 ``[Hkv * T]``: the pool rows of these slots, head after head."""
        return (self._head_base_H1 + slots_T).flatten()

    def write(self, layer: int, rows_HT: Tensor, k_THD: Tensor, v_THD: Tensor) -> None:
        """Store keys and values ``[T, Hkv, Dh]`` at ``rows_of(slots)``."""
        if self.transposed_keys:
            number, place = rows_HT // self.key_block, rows_HT % self.key_block
            blocks = self.k[layer].view(-1, self.head_dim, self.key_block)
            blocks[number, :, place] = k_THD.transpose(0, 1).reshape(-1, self.head_dim)
        else:
            self.k[layer].index_copy_(0, rows_HT, k_THD.transpose(0, 1).reshape(-1, self.head_dim))
        self.v[layer].index_copy_(0, rows_HT, v_THD.transpose(0, 1).reshape(-1, self.head_dim))
