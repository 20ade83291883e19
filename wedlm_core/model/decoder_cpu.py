"""DecoderCpu: the decoder with Numba kernels between the matrix products. :class:`Decoder` is its oracle.

On CPU a small model spends most of a step in the dispatch of hundreds of small torch operations. Here a layer is four
matrix products (:mod:`wedlm_core.model.products`) and five kernels (:mod:`wedlm_core.kernels.cpu`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from wedlm_core.attention import CpuPlan
from wedlm_core.kernels.cpu import layer as kernels
from wedlm_core.kv.pool import KVPool
from wedlm_core.model.decoder import Decoder, DecoderLayer
from wedlm_core.model.int8 import Int8Embedding, Int8Linear
from wedlm_core.model.products import Product, Products, Weight, int8_padding, products_of
from wedlm_core.model.products_int8 import Int8Product, widened
from wedlm_core.model.rotary import rope_tables

_MIN_THREAD_SECONDS = 2e-4  # another thread pays off for so many seconds of work
# Rough cost of the kernels on one core, in seconds per element ...
_NORM, _GATE, _PLACE = 3e-10, 3e-10, 1e-9
_ATTEND = 4e-11  # ... and per query element and cached token
_SAME = np.empty(0, dtype=np.int64)  # rows of the stream: each its own

Array = np.ndarray[Any, np.dtype[np.float32]]


@dataclass(frozen=True, kw_only=True)
class _Both:
    """A buffer as a tensor and as a numpy view of the same memory."""

    tensor: Tensor
    array: Array

    @classmethod
    def zeros(cls, *shape: int) -> _Both:
        tensor = torch.zeros(shape)
        return cls(tensor=tensor, array=tensor.numpy())


class _Layer:
    """The matrix products of a layer, and its other parameters as arrays."""

    def __init__(self, layer: DecoderLayer, qkv: Product, o: Product, gate_up: Product, down: Product) -> None:
        def array(parameter: Tensor | None) -> Array:
            return np.zeros(0, dtype=np.float32) if parameter is None else parameter.detach().float().numpy()

        self.qkv, self.o, self.gate_up, self.down = qkv, o, gate_up, down
        self.input_norm, self.post_norm = array(layer.input_norm.weight), array(layer.post_norm.weight)
        self.q_norm = array(None if layer.q_norm is None else layer.q_norm.weight)
        self.k_norm = array(None if layer.k_norm is None else layer.k_norm.weight)


def _linears(layer: DecoderLayer) -> list[nn.Module]:
    """The layers of the products of a decoder layer, in the order of :class:`_Layer`'s arguments."""
    return [layer.qkv_proj, layer.o_proj, layer.gate_up_proj, layer.down_proj]


class DecoderCpu:
    """Runs a :class:`Decoder` of float32, bfloat16 or int8 weights on CPU; all else is computed in float32.

    The length of the rotary tables is that of the decoder at each call.

    Args:
        model: the decoder. Do not change its weights afterwards: the products hold copies.
        keep_weights: False empties weights that have packed copies; ``model`` itself can then run no more.

    Attributes:
        head: the matrix product of ``lm_head``: hidden states to logits.
        padding: how the row count of a forward, and of ``head``, is padded.
    """

    def __init__(self, model: Decoder, *, keep_weights: bool = True) -> None:
        self._model, self._config, self._keeps_weights = model, model.config, keep_weights
        self._pool: ThreadPoolExecutor | None = None
        layers = [cast(DecoderLayer, layer) for layer in model.layers]
        found = self._products([one for layer in layers for one in _linears(layer)] + [model.lm_head])
        *products, self.head = found.products
        self.padding = found.padding
        self._layers = [_Layer(layer, *products[4 * i : 4 * i + 4]) for i, layer in enumerate(layers)]
        self._eps = np.float32(model.config.rms_norm_eps)
        self._final_norm = model.norm.weight.detach().float().numpy()
        self._cos, self._sin = model.cos, model.sin
        self._qkv_width = (
            model.config.num_attention_heads + 2 * model.config.num_key_value_heads
        ) * model.config.head_dim
        self._rows = 0

    def _products(self, linears: Sequence[nn.Module]) -> Products:
        """The products of the layers; some may be in int8."""
        wide = [one for one in linears if isinstance(one, nn.Linear)]
        weights: list[Any] = [Weight(weight_OI=one.weight, bias_O=one.bias) for one in wide]

        def release(index: int) -> None:
            weights[index] = None
            wide[index].weight = nn.Parameter(torch.empty(0), requires_grad=False)

        if wide:
            found = products_of(weights, None if self._keeps_weights else release)
        else:
            found = Products(products=(), padding=int8_padding())
        products = iter(found.products)
        return Products(
            products=[self._exact(one) or next(products) for one in linears],
            padding=found.padding,
        )

    def _exact(self, linear: nn.Module) -> Product | None:
        """The product of a layer whose sums are of integers; None for any other."""
        return Int8Product(linear, self._share) if isinstance(linear, Int8Linear) else None

    def _reserve(self, rows: int) -> None:
        """Grow the buffers to hold ``rows`` rows; they never shrink."""
        if rows <= self._rows:
            return
        config = self._config
        heads, dim = config.num_attention_heads, config.head_dim
        self._rows = rows
        self._normed = _Both.zeros(rows, config.hidden_size)
        self._q, self._context = _Both.zeros(rows, heads * dim), _Both.zeros(rows, heads * dim)
        self._hidden = _Both.zeros(rows, config.intermediate_size)

    def __call__(
        self,
        ids: Tensor,
        positions: Tensor,
        entries: Tensor,
        pool: KVPool,
        plan: CpuPlan,
        read_R: Tensor | None = None,
    ) -> Tensor:
        """Packed rows -> hidden states after the final norm.

        Args:
            ids: int64 ``[T]`` tokens.
            positions: int64 ``[T]`` logical positions.
            entries: int64 ``[T]`` KV entry of each row.
            pool: KV pool with transposed keys.
            plan: the attention plan of this forward.
            read_R: int64, ascending, the rows whose states are wanted; None for all.

        Returns:
            float32 ``[R, D]``, or ``[T', D]``, T' the padded row count; valid until the next call; padding rows are
            undefined.
        """
        rows, config = ids.shape[0], self._config
        padded = self.padding(rows)
        self._reserve(padded)
        x = torch.empty(padded, config.hidden_size)
        x[rows:] = 0
        if isinstance(self._model.embed, Int8Embedding):
            widened(self._model.embed, ids, x[:rows])
        else:
            x[:rows] = self._model.embed.weight.index_select(0, ids)
        stream, (cos, sin) = x.numpy(), self._tables()
        where, place = positions.numpy(), entries.numpy()
        eps, share = self._eps, self._share
        normed, q, context, hidden = self._normed, self._q, self._context, self._hidden
        norming, gating = _NORM * rows * config.hidden_size, _GATE * rows * config.intermediate_size
        placing, attending = _PLACE * rows * self._qkv_width, _ATTEND * plan.pairs * q.array.shape[1]
        last = len(self._layers) - 1
        share(rows, norming, _bound(kernels.rms_norm, stream, self._layers[0].input_norm, eps, normed.array))
        for number, layer in enumerate(self._layers):
            qkv = layer.qkv(normed.tensor[:padded]).numpy()
            arguments = (qkv, layer.q_norm, layer.k_norm, eps, cos, sin, where, place, config.num_attention_heads)
            share(rows, placing, _bound(kernels.place_qkv, *arguments, q.array, *pool.blocks(number)))
            share(plan.sequences, attending, _bound(plan.run, number, q.array, context.array))
            delta = layer.o(context.tensor[:padded]).numpy()
            share(rows, norming, _bound(kernels.add_rms_norm, stream, delta, layer.post_norm, eps, normed.array, _SAME))
            gate_up = layer.gate_up(normed.tensor[:padded]).numpy()
            share(rows, gating, _bound(kernels.silu_mul, gate_up, hidden.array))
            delta = layer.down(hidden.tensor[:padded]).numpy()
            following = self._final_norm if number == last else self._layers[number + 1].input_norm
            share(rows, norming, _bound(kernels.add_rms_norm, stream, delta, following, eps, normed.array, _SAME))
        return normed.tensor[:padded] if read_R is None else normed.tensor.index_select(0, read_R)

    def _tables(self) -> tuple[Array, Array]:
        """The rotary tables in float32, as long as the decoder's."""
        if self._model.dtype == torch.float32:
            return self._model.cos.numpy(), self._model.sin.numpy()
        if len(self._cos) != len(self._model.cos) or self._cos.dtype != torch.float32:
            self._cos, self._sin = rope_tables(self._config, len(self._model.cos))
        return self._cos.numpy(), self._sin.numpy()

    def _share(self, count: int, seconds: float, part: Callable[[int, int], None]) -> None:
        """Run ``part(first, last)`` over ``count`` items, split over torch's number of threads if that pays off.

        Args:
            count: number of items.
            seconds: estimated time of all items on one core.
            part: computes the items ``first .. last - 1``.
        """
        threads = min(torch.get_num_threads(), int(seconds / _MIN_THREAD_SECONDS), count)
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
