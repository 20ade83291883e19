"""KVPool: the key and value tensors of the paged KV cache, and how a forward writes and reads them."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from wedlm_core.config import EngineConfig, ModelConfig
from wedlm_core.errors import ConfigError, explain
from wedlm_core.kernels.gpu.support import why_no_triton
from wedlm_core.kernels.rounding import rounded

_KEY_BLOCK = 16  # entries: a vector of the kernels, so that no key after the last is read
_WIDE = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_EIGHT_BITS = (8, 9)  # lowest compute capability that converts 8-bit floats


def kv_dtype_of(config: EngineConfig, dtype: torch.dtype, device: torch.device) -> torch.dtype:
    """The pool's dtype for ``config.kv_numbers``, a model of this dtype and this device.

    Raises:
        ConfigError: no attention backend of the device could read the pool: it does not convert 8-bit floats, or it is
            a GPU and the pool would hold int8.
    """
    numbers = config.kv_numbers(str(dtype).removeprefix("torch."))
    if numbers in _WIDE:
        return _WIDE[numbers]
    if numbers == "int8":
        if device.type != "cpu":
            rule = f"keys and values in int8 are read on CPUs only, and the device is {device}"
            raise ConfigError(explain("kv_cache_dtype", numbers, rule, 'Use "fp8_e4m3", or "auto".'))
        return torch.int8
    if device.type == "cuda" and (capability := torch.cuda.get_device_capability(device)) < _EIGHT_BITS:
        has = f"{torch.cuda.get_device_name(device)} has {capability[0]}.{capability[1]}"
        rule = f"8-bit floats need a device of compute capability {_EIGHT_BITS[0]}.{_EIGHT_BITS[1]}, {has}"
        raise ConfigError(explain("kv_cache_dtype", numbers, rule, 'Use kv_cache_dtype="auto".'))
    return torch.float8_e4m3fn


class KVPool:
    """Keys and values of all layers, head-major, so that a run of tokens of a KV head is one slice.

    An *entry* is the place of one token: entry = page * page_size + offset, in ``0 .. num_entries - 1``. ``k[layer]``
    and ``v[layer]`` are ``[Hkv * num_entries, Dh]``; entry e of KV head h is at the flat index ``h * num_entries + e``.
    With ``transposed_keys`` the memory of ``k`` is ``[Hkv, num_entries / B, Dh, B]`` instead, in blocks of
    B = ``key_block`` entries, so that the scores of a block of keys are sums of whole vectors.

    A pool may hold bfloat16 for float32: written values are rounded to the nearest, to even where two are equally near.
    A pool of 8-bit floats stores values rounded and clamped to the format's largest number (448). No scale follows the
    data: outputs would depend on the first values written. ``k`` and ``v`` are then the stored bytes; :meth:`keys` and
    :meth:`values` return the values.

    A pool of int8 stores ``round(value / scale)`` with a scale of its own for each entry and KV head, which depends on
    nothing else (:func:`wedlm_core.kernels.rounding.rounded`).

    Attributes:
        dtype: stored dtype.
        compute_dtype: dtype of the keys and values that are written and read.
        key_scales: float32 ``[Hkv, num_entries]`` of each layer if it holds int8, else ``[0, num_entries]``.
        value_scales: the same of values.
        num_entries: tokens that the pool holds.
        on_gpu: whether Triton kernels read and write it.
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
        self.page_size, self.num_entries = page_size, num_pages * page_size
        shape = (self.heads * self.num_entries, self.head_dim)
        layers = range(config.num_hidden_layers)
        # Zeroed: a masked entry is multiplied by a weight of exactly 0, and 0 * NaN is NaN.
        self.dtype, self.compute_dtype = kv_dtype or dtype, dtype
        self.k = [_zeros(shape, self.dtype, device) for _ in layers]
        self.v = [_zeros(shape, self.dtype, device) for _ in layers]
        self.quantised = self.dtype == torch.float8_e4m3fn
        self.scaled_rows = self.dtype == torch.int8
        scaled = (self.heads if self.scaled_rows else 0, self.num_entries)
        self.key_scales = [_zeros(scaled, torch.float32, device) for _ in layers]
        self.value_scales = [_zeros(scaled, torch.float32, device) for _ in layers]
        self.on_gpu = device.type == "cuda" and why_no_triton(device) is None
        self.transposed_keys, self.key_block = transposed_keys, min(_KEY_BLOCK, page_size)
        self._head_base_H1 = torch.arange(self.heads, device=device)[:, None] * self.num_entries

    @staticmethod
    def bytes_per_page(config: ModelConfig, page_size: int, dtype: torch.dtype) -> int:
        """Bytes of one page: keys and values of all layers."""
        return page_size * config.kv_bytes_per_token(dtype.itemsize, scaled_rows=dtype == torch.int8)

    def widened(self, layer: int, page_N: Tensor) -> KVPool:
        """A copy of some pages (int64) of one layer, in float32; of a pool whose entries have no scales."""
        found = copy.copy(self)
        found.dtype, found.quantised, found.num_entries = torch.float32, False, len(page_N) * self.page_size
        found.k, found.v = ([self._pages(cache[layer], page_N)] for cache in (self.k, self.v))
        found.key_scales = found.value_scales = [torch.empty(0, found.num_entries)]
        return found

    def _pages(self, cache: Tensor, page_N: Tensor) -> Tensor:
        """Pages of keys, transposed as they are, or of values, in float32."""
        bytes_HPB = cache.view(torch.uint8).view(self.heads, self.num_entries // self.page_size, -1)
        return bytes_HPB.index_select(1, page_N).view(cache.dtype).float()

    def copy(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copy the content of pages to others."""
        for cache in (*self.k, *self.v, *(self.key_scales + self.value_scales if self.scaled_rows else ())):
            page_HP = cache.view(torch.uint8).view(self.heads, self.num_entries // self.page_size, -1)
            for source, target in zip(sources, targets, strict=True):
                page_HP[:, target] = page_HP[:, source]

    def clear(self, pages: Sequence[int]) -> None:
        """Zero these pages."""
        for cache in (*self.k, *self.v, *(self.key_scales + self.value_scales if self.scaled_rows else ())):
            page_HP = cache.view(self.heads, self.num_entries // self.page_size, -1)  # true for transposed keys too
            for page in pages:
                page_HP[:, page].zero_()

    def flat_index(self, entry_T: Tensor) -> Tensor:
        """int64 ``[Hkv * T]``: where these entries are in ``k[layer]`` and ``v[layer]``, head after head."""
        return (self._head_base_H1 + entry_T).flatten()

    def paged(self, layer: int) -> tuple[Tensor, Tensor]:
        """Keys and values as views ``[pages, page_size, Hkv, Dh]``, the layout of paged attention libraries."""
        shape = (self.heads, -1, self.page_size, self.head_dim)
        return self.k[layer].view(shape).permute(1, 2, 0, 3), self.v[layer].view(shape).permute(1, 2, 0, 3)

    def keys(self, layer: int, flat_N: Tensor) -> Tensor:
        """A copy of keys in the compute dtype, ``[N, Dh]``; ``flat_N``: int64, as of :meth:`flat_index`."""
        return self._read(self.k[layer], self.key_scales[layer], flat_N)

    def values(self, layer: int, flat_N: Tensor) -> Tensor:
        """A copy of values; see :meth:`keys`."""
        return self._read(self.v[layer], self.value_scales[layer], flat_N)

    def _read(self, cache: Tensor, scale_HE: Tensor, flat_N: Tensor) -> Tensor:
        entries_ND = cache.index_select(0, flat_N)
        if self.scaled_rows:
            entries_ND = entries_ND * scale_HE.view(-1, 1).index_select(0, flat_N)
        return entries_ND.to(self.compute_dtype)

    def write(self, layer: int, flat_HT: Tensor, k_THD: Tensor, v_THD: Tensor) -> None:
        """Store keys and values ``[T, Hkv, Dh]`` at ``flat_HT``, the :meth:`flat_index` of T entries."""
        k_ND = k_THD.transpose(0, 1).reshape(-1, self.head_dim)
        v_ND = v_THD.transpose(0, 1).reshape(-1, self.head_dim)
        k, v = self.held(layer)
        if self.quantised:  # 8-bit floats have no index_copy_ on CPU; their bytes have
            k_ND, v_ND = _rounded(k_ND), _rounded(v_ND)
        elif self.scaled_rows:
            k_ND, self.key_scales[layer].view(-1)[flat_HT] = rounded(k_ND)
            v_ND, self.value_scales[layer].view(-1)[flat_HT] = rounded(v_ND)
        else:
            k_ND, v_ND = k_ND.to(self.dtype), v_ND.to(self.dtype)
        if self.transposed_keys:
            block, place = flat_HT // self.key_block, flat_HT % self.key_block
            k.view(-1, self.head_dim, self.key_block)[block, :, place] = k_ND
        else:
            k.index_copy_(0, flat_HT, k_ND)
        v.index_copy_(0, flat_HT, v_ND)

    def write_entries(self, layer: int, entry_T: Tensor, k_THD: Tensor, v_THD: Tensor) -> None:
        """Store the keys and values ``[T, Hkv, Dh]`` of T token rows.

        A CUDA graph can capture this: it never waits for the device.

        Args:
            layer: index of the layer.
            entry_T: int64, the entry of each row. A negative one marks a padding row, which is not stored. The first
                row must not be padding.
            k_THD: keys in the compute dtype.
            v_THD: values in the compute dtype.
        """
        # Padding rows write the first row again: the order of the two equal writes does not matter.
        source_T = torch.where(entry_T < 0, 0, torch.arange(entry_T.shape[0], device=entry_T.device))
        self.write(layer, self.flat_index(entry_T[source_T]), k_THD[source_T], v_THD[source_T])

    def held(self, layer: int) -> tuple[Tensor, Tensor]:
        """``k`` and ``v`` of a layer as kernels see them: 8-bit floats are bytes."""
        k, v = self.k[layer], self.v[layer]
        return (k.view(torch.uint8), v.view(torch.uint8)) if self.quantised else (k, v)


def _rounded(x: Tensor) -> Tensor:
    """Bytes of 8-bit floats, clamped to their range."""
    largest = torch.finfo(torch.float8_e4m3fn).max
    return x.float().clamp(-largest, largest).to(torch.float8_e4m3fn).view(torch.uint8)


def _zeros(shape: tuple[int, int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros. On a CPU they take memory, and the time to zero it, when they are first used: a pool is seldom full."""
    if device.type != "cpu" or 0 in shape:  # torch sees no array of no bytes in another dtype
        return torch.zeros(shape, device=device, dtype=dtype)
    empty = np.zeros((shape[0], shape[1] * dtype.itemsize), dtype=np.uint8)
    return torch.from_numpy(empty).view(dtype)
