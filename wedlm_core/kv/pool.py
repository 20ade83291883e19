"""The tensors of the paged KV pool: where a forward's keys and values are written and read from."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from wedlm_core.config import ModelConfig
from wedlm_core.errors import ConfigError, explain
from wedlm_core.kernels.gpu.support import why_no_triton

__all__ = ["KVPool", "kv_dtype_of"]

_KEY_BLOCK = 64
_EIGHT_BITS = (8, 9)  # compute capability from which a GPU converts 8-bit floats


def kv_dtype_of(kv_cache_dtype: str, dtype: torch.dtype, device: torch.device) -> torch.dtype:
    """What ``EngineConfig.kv_cache_dtype`` means for a model of this dtype on this device.

    Raises:
        ConfigError: the device does not convert 8-bit floats. No attention backend could run: all read one pool.
    """
    if kv_cache_dtype == "auto":
        return dtype
    if device.type == "cuda" and (capability := torch.cuda.get_device_capability(device)) < _EIGHT_BITS:
        has = f"{torch.cuda.get_device_name(device)} has {capability[0]}.{capability[1]}"
        rule = f"8-bit floats need a device of compute capability {_EIGHT_BITS[0]}.{_EIGHT_BITS[1]}, {has}"
        raise ConfigError(explain("kv_cache_dtype", kv_cache_dtype, rule, 'Use kv_cache_dtype="auto".'))
    return torch.float8_e4m3fn


class KVPool:
    """Keys and values of all layers, head-major so that any run of tokens of a head is one slice.

    ``k[layer]`` and ``v[layer]`` are ``[Hkv * num_slots, Dh]``; the entry of head h and slot s is row
    ``h * num_slots + s``; slot = page * page_size + offset. With ``transposed_keys`` the memory of ``k`` holds
    ``[Hkv, num_slots / B, Dh, B]`` instead, in blocks of B = ``key_block`` slots (:meth:`blocks`), so that scores
    against a block of keys are sums of whole vectors.

    A pool of 8-bit floats holds ``value / scale``, rounded and held within the format's largest number (448).
    Scales are constants of a layer, 1 unless :meth:`set_scales` gave others: one that followed the data would make
    an output depend on what came first. ``k`` and ``v`` are then the raw entries; :meth:`keys` and :meth:`values`
    read them back.

    Attributes:
        dtype: of the entries.
        compute_dtype: of the keys and values written and read.
        scales: ``(key scale, value scale)`` of each layer; 1 where entries are not quantised.
    """

    def __init__(
        self,
        config: ModelConfig,
        num_pages: int,
        page_size: int,
        *,
        device: torch.device,
        dtype: torch.dtype,
        kv_dtype: torch.dtype | None = None,
        transposed_keys: bool = False,
    ) -> None:
        self.heads, self.head_dim = config.num_key_value_heads, config.head_dim
        self.page_size, self.num_slots = page_size, num_pages * page_size
        shape = (self.heads * self.num_slots, self.head_dim)
        layers = range(config.num_hidden_layers)
        # Zeros, not garbage: a masked slot is multiplied by a weight of exactly 0, and 0 * NaN is NaN.
        self.dtype, self.compute_dtype = kv_dtype or dtype, dtype
        self.k = [torch.zeros(shape, device=device, dtype=self.dtype) for _ in layers]
        self.v = [torch.zeros(shape, device=device, dtype=self.dtype) for _ in layers]
        self.quantised = self.dtype == torch.float8_e4m3fn
        self.scales = [(1.0, 1.0) for _ in layers]
        self._on_gpu = device.type == "cuda" and why_no_triton(device) is None
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

    def clear(self, pages: Sequence[int]) -> None:
        """Zero these pages. Memory that was never written is no memory yet: reading it costs next to nothing."""
        for cache in (*self.k, *self.v):
            page_HP = cache.view(self.heads, self.num_slots // self.page_size, -1)  # whichever way keys lie
            for page in pages:
                page_HP[:, page].zero_()

    def rows_of(self, slots_T: Tensor) -> Tensor:
        """int64 ``[Hkv * T]``: the pool rows of these slots, head after head."""
        return (self._head_base_H1 + slots_T).flatten()

    def set_scales(self, layer: int, key: float, value: float) -> None:
        """What one unit of a layer's 8-bit entries stands for; only while the pool holds nothing of that layer."""
        assert self.quantised
        self.scales[layer] = (key, value)

    def paged(self, layer: int) -> tuple[Tensor, Tensor]:
        """Keys and values as views ``[pages, page_size, Hkv, Dh]``, the layout that paged attention libraries take."""
        shape = (self.heads, -1, self.page_size, self.head_dim)
        return self.k[layer].view(shape).permute(1, 2, 0, 3), self.v[layer].view(shape).permute(1, 2, 0, 3)

    def keys(self, layer: int, rows_R: Tensor, chunk: int = 1) -> Tensor:
        """A copy of keys in the compute dtype, ``[R, chunk * Dh]``: the pool's rows, counted in chunks of rows."""
        return self._read(self.k[layer], self.scales[layer][0], rows_R, chunk)

    def values(self, layer: int, rows_R: Tensor, chunk: int = 1) -> Tensor:
        """A copy of values; see :meth:`keys`."""
        return self._read(self.v[layer], self.scales[layer][1], rows_R, chunk)

    def _read(self, cache: Tensor, scale: float, rows_R: Tensor, chunk: int) -> Tensor:
        entries = cache.view(-1, chunk * self.head_dim).index_select(0, rows_R)
        return entries.to(self.compute_dtype).mul_(scale) if self.quantised else entries

    def write(self, layer: int, rows_HT: Tensor, k_THD: Tensor, v_THD: Tensor) -> None:
        """Store keys and values ``[T, Hkv, Dh]`` at ``rows_of(slots)``."""
        k_RD = k_THD.transpose(0, 1).reshape(-1, self.head_dim)
        v_RD = v_THD.transpose(0, 1).reshape(-1, self.head_dim)
        k, v = self.k[layer], self.v[layer]
        if self.quantised:  # 8-bit floats have no index_copy_ on CPU; their bytes have
            key_scale, value_scale = self.scales[layer]
            k_RD, v_RD = _rounded(k_RD, key_scale), _rounded(v_RD, value_scale)
            k, v = k.view(torch.uint8), v.view(torch.uint8)
        if self.transposed_keys:
            number, place = rows_HT // self.key_block, rows_HT % self.key_block
            k.view(-1, self.head_dim, self.key_block)[number, :, place] = k_RD
        else:
            k.index_copy_(0, rows_HT, k_RD)
        v.index_copy_(0, rows_HT, v_RD)

    def write_slots(self, layer: int, slot_T: Tensor, k_THD: Tensor, v_THD: Tensor) -> None:
        """Store keys and values at int64 slots; rows with a negative slot are padding and are not stored.

        The first row must be real. Nothing here waits for the device, so a CUDA graph can hold it: one kernel
        where Triton runs, a handful of torch's otherwise.
        """
        if self._on_gpu:
            self.write_slots_gpu(layer, slot_T, k_THD, v_THD)
            return
        # Padding repeats the first row: the same entries written twice, whichever comes last.
        source_T = torch.where(slot_T < 0, 0, torch.arange(slot_T.shape[0], device=slot_T.device))
        self.write(layer, self.rows_of(slot_T[source_T]), k_THD[source_T], v_THD[source_T])

    def write_slots_gpu(self, layer: int, slot_T: Tensor, k_THD: Tensor, v_THD: Tensor) -> None:
        """:meth:`write_slots` by one Triton kernel, which must run on this device."""
        from wedlm_core.kernels.gpu.kv import write_kv

        assert not self.transposed_keys
        k, v = self.k[layer], self.v[layer]
        if self.quantised:
            k, v = k.view(torch.uint8), v.view(torch.uint8)
        write_kv(k, v, self.scales[layer], self.heads, slot_T, k_THD, v_THD)


def _rounded(x: Tensor, scale: float) -> Tensor:
    """Bytes of ``x / scale`` as 8-bit floats, out-of-range values at the largest."""
    largest = torch.finfo(torch.float8_e4m3fn).max
    return (x.float() / scale).clamp(-largest, largest).to(torch.float8_e4m3fn).view(torch.uint8)
