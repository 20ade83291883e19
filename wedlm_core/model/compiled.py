"""The decoder on CPU with compiled kernels between the matrix products; :class:`Decoder` is its oracle.

A small model's step on CPU is bound by the dispatch of hundreds of small operations. Here a layer is four
matrix products (torch's own, with preallocated outputs) and five kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from wedlm_core.attention.compiled import CompiledPlan
from wedlm_core.kernels import layer as kernels
from wedlm_core.kv.pool import KVPool
from wedlm_core.model.decoder import Decoder, DecoderLayer

__all__ = ["CompiledDecoder"]

_ROWS_PER_THREAD = 32  # fewer than this are not worth handing to another thread

Array = np.ndarray[Any, np.dtype[np.float32]]


@dataclass(frozen=True, kw_only=True)
class _Both:
    """A buffer as tensor and as numpy view of the same memory."""

    tensor: Tensor
    array: Array

    @classmethod
    def zeros(cls, *shape: int) -> _Both:
        tensor = torch.zeros(shape)
        return cls(tensor=tensor, array=tensor.numpy())


class _Layer:
    """Transposed weights for products into a buffer, and the kernels' arrays."""

    def __init__(self, layer: DecoderLayer) -> None:
        def array(parameter: Tensor | None) -> Array:
            return np.zeros(0, dtype=np.float32) if parameter is None else parameter.detach().numpy()

        self.qkv, self.bias = layer.qkv_proj.weight.detach().t(), layer.qkv_proj.bias
        self.o = layer.o_proj.weight.detach().t()
        self.gate_up, self.down = layer.gate_up_proj.weight.detach().t(), layer.down_proj.weight.detach().t()
        self.input_norm, self.post_norm = array(layer.input_norm.weight), array(layer.post_norm.weight)
        self.q_norm = array(None if layer.q_norm is None else layer.q_norm.weight)
        self.k_norm = array(None if layer.k_norm is None else layer.k_norm.weight)


class CompiledDecoder:
    """Runs a float32 CPU :class:`Decoder`; rotary tables are read from it, so extending them is seen.

    Args:
        model: the decoder; its weights must not be replaced afterwards (changing them in place is fine).
    """

    def __init__(self, model: Decoder) -> None:
        self._model, self._config = model, model.config
        self._layers = [_Layer(layer) for layer in model.layers]  # type: ignore[arg-type]
        self._eps = np.float32(model.config.rms_norm_eps)
        self._final_norm = model.norm.weight.detach().numpy()
        self._rows = 0
        self._pool: ThreadPoolExecutor | None = None

    def _reserve(self, rows: int) -> None:
        """Buffers for ``rows`` rows; they only grow."""
        if rows <= self._rows:
            return
        config = self._config
        heads, kv_heads, dim = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        self._rows = rows
        self._normed = _Both.zeros(rows, config.hidden_size)
        self._delta = _Both.zeros(rows, config.hidden_size)
        self._qkv = _Both.zeros(rows, (heads + 2 * kv_heads) * dim)
        self._q, self._context = _Both.zeros(rows, heads * dim), _Both.zeros(rows, heads * dim)
        self._gate_up = _Both.zeros(rows, 2 * config.intermediate_size)
        self._hidden = _Both.zeros(rows, config.intermediate_size)

    def __call__(
        self, ids: Tensor, positions: Tensor, slots: Tensor, pool: KVPool, plan: CompiledPlan, quantum: int
    ) -> Tensor:
        """Packed rows -> hidden states after the final norm.

        Args:
            ids: int64 ``[T]`` tokens.
            positions: int64 ``[T]`` logical positions.
            slots: int64 ``[T]`` KV slots.
            pool: KV pool with keys in blocks.
            plan: attention of this forward.
            quantum: matrix products run over T rounded up to a multiple of this.

        Returns:
            float32 ``[T', D]``, T' the rounded row count; valid until the next call, padding is any value.
        """
        rows, config = ids.shape[0], self._config
        padded = -(-rows // quantum) * quantum
        self._reserve(padded)
        x = torch.empty(padded, config.hidden_size)
        x[rows:] = 0
        torch.index_select(self._model.embed.weight, 0, ids, out=x[:rows])
        stream, cos, sin = x.numpy(), self._model.cos.numpy(), self._model.sin.numpy()
        where, place = positions.numpy(), slots.numpy()
        eps, share = self._eps, self._share
        normed, delta, qkv = self._normed.array, self._delta.array, self._qkv.array
        q, context, gate_up, hidden = self._q.array, self._context.array, self._gate_up.array, self._hidden.array
        last = len(self._layers) - 1
        share(rows, lambda a, b: kernels.rms_norm(stream, self._layers[0].input_norm, eps, normed, a, b))
        for number, layer in enumerate(self._layers):
            self._product(self._normed, layer.qkv, self._qkv, padded, layer.bias)
            keys, values = pool.blocks(number)
            arguments = (qkv, layer.q_norm, layer.k_norm, eps, cos, sin, where, place, config.num_attention_heads)
            share(rows, _bound(kernels.place_qkv, *arguments, q, keys, values))
            share(plan.sequences, _bound(plan.run, number, q, context), rows)
            self._product(self._context, layer.o, self._delta, padded)
            share(rows, _bound(kernels.add_rms_norm, stream, delta, layer.post_norm, eps, normed))
            self._product(self._normed, layer.gate_up, self._gate_up, padded)
            share(rows, _bound(kernels.silu_mul, gate_up, hidden))
            self._product(self._hidden, layer.down, self._delta, padded)
            following = self._final_norm if number == last else self._layers[number + 1].input_norm
            share(rows, _bound(kernels.add_rms_norm, stream, delta, following, eps, normed))
        return self._normed.tensor[:padded]

    @staticmethod
    def _product(x: _Both, weight: Tensor, out: _Both, rows: int, bias: Tensor | None = None) -> None:
        if bias is None:
            torch.mm(x.tensor[:rows], weight, out=out.tensor[:rows])
        else:
            torch.addmm(bias, x.tensor[:rows], weight, out=out.tensor[:rows])

    def _share(self, count: int, part: Callable[[int, int], None], rows: int | None = None) -> None:
        """Run ``part(first, last)`` over ``count`` items, in as many threads as torch has where that pays."""
        threads = min(torch.get_num_threads(), (count if rows is None else rows) // _ROWS_PER_THREAD, count)
        if threads < 2:
            part(0, count)
            return
        if self._pool is None:
            self._pool = ThreadPoolExecutor(torch.get_num_threads(), thread_name_prefix="kernels")
        edges = [count * i // threads for i in range(threads + 1)]
        waiting = [self._pool.submit(part, a, b) for a, b in pairwise(edges[1:])]
        part(edges[0], edges[1])
        for future in waiting:
            future.result()


def _bound(kernel: Callable[..., None], *arguments: Any) -> Callable[[int, int], None]:
    return lambda first, last: kernel(*arguments, first, last)
