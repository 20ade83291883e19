"""DecoderGpu: the decoder with one Triton kernel between two matrix products. :class:`Decoder` is its oracle.

As torch operations, the norms, rotary embedding, residuals and activation of a layer are about 45 kernels. In a small
forward they take longer than reading the weights, in a CUDA graph too. Here they are four per layer, with the write of
keys and values. Where the layers' weights are exact, those before a product round its rows too, except for
attention: a row's largest number is found over all heads, and a program of attention has the heads of one group.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import cast

import torch
from torch import Tensor, nn

from wedlm_core.attention import PagedAttend
from wedlm_core.kernels.gpu.support import why_no_triton
from wedlm_core.kernels.rounding import RoundedRows
from wedlm_core.model.decoder import Attend, Decoder, DecoderLayer, RMSNorm
from wedlm_core.model.quantised import ExactLinear

logger = logging.getLogger(__name__)

_TOLERANCE = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}  # relative to the largest hidden state
_HALVES = (torch.bfloat16, torch.float16)
_ROUNDED_TOLERANCE = 1e-2  # where inputs are rounded: the last bit of one may be a step of its rounding


class DecoderGpu:
    """Computes :meth:`Decoder.forward` for packed rows ``[T]``, without gradients.

    Args:
        model: the decoder; weights and rotary tables are read at each call.
        layers: how many layers to run; None runs all.
    """

    def __init__(self, model: Decoder, layers: int | None = None) -> None:
        self._model, self._count = model, layers

    def __call__(self, id_T: Tensor, position_T: Tensor, attend: Attend) -> Tensor:
        """Hidden states ``[T, D]`` after the final norm."""
        model = self._model
        layers = [cast(DecoderLayer, layer) for layer in list(model.layers)[: self._count]]
        following = [*((layer.input_norm, layer.qkv_proj) for layer in layers[1:]), (model.norm, None)]
        x_TD = model.embed(id_T)
        y = _norm(x_TD, None, layers[0].input_norm, layers[0].qkv_proj)
        for layer, (norm, reader) in zip(layers, following, strict=True):
            qkv_TC = _product(layer.qkv_proj, y, x_TD)
            context_TC = _attended(layer, qkv_TC, position_T, model, attend).flatten(-2)
            y = _norm(x_TD, _linear(layer.o_proj, context_TC), layer.post_norm, layer.gate_up_proj)
            y = _activation(_product(layer.gate_up_proj, y, x_TD), layer.down_proj)
            y = _norm(x_TD, _product(layer.down_proj, y, x_TD), norm, reader)
        assert isinstance(y, Tensor)
        return y


def _attended(layer: DecoderLayer, qkv_TC: Tensor, position_T: Tensor, model: Decoder, attend: Attend) -> Tensor:
    """The context of a layer's rows, ``[T, H, Dh]``; the kernel that rotates keys stores them if a pool is given."""
    from wedlm_core.kernels.gpu.layer_gpu import Rotation, norm_rope, norm_rope_write

    weights = None
    if layer.q_norm is not None and layer.k_norm is not None:
        weights = (layer.q_norm.weight, layer.k_norm.weight)
    rotation = Rotation(
        position_T=position_T, cos=model.cos, sin=model.sin, weights=weights, eps=model.config.rms_norm_eps,
        heads=layer.heads, kv_heads=layer.kv_heads, head_dim=layer.head_dim,
    )  # fmt: skip
    if isinstance(attend, PagedAttend) and attend.pool.on_gpu:
        q_THD = norm_rope_write(qkv_TC, rotation, *attend.pool.held(layer.index), attend.entry_T)
        return attend.plan.attend(layer.index, q_THD)
    return attend(layer.index, *norm_rope(qkv_TC, rotation))


def _norm(x_TD: Tensor, delta_TD: Tensor | None, norm: RMSNorm, reader: nn.Module | None) -> Tensor | RoundedRows:
    """Add ``delta`` to ``x`` in place; the norm of the sum, rounded where the layer that reads it would round it."""
    from wedlm_core.kernels.gpu.layer_gpu import add_rms_norm, add_rms_norm_int8

    form = add_rms_norm_int8 if isinstance(reader, ExactLinear) else add_rms_norm
    return form(x_TD, delta_TD, norm.weight, norm.eps)


def _activation(gate_up_TC: Tensor, reader: nn.Module) -> Tensor | RoundedRows:
    """The gated activation, rounded where the layer that reads it would round it."""
    from wedlm_core.kernels.gpu.layer_gpu import silu_mul, silu_mul_int8

    return (silu_mul_int8 if isinstance(reader, ExactLinear) else silu_mul)(gate_up_TC)


def _product(linear: nn.Module, y: Tensor | RoundedRows, x_TD: Tensor) -> Tensor:
    """The output of a layer, in the dtype of ``x``."""
    if isinstance(y, RoundedRows):
        assert isinstance(linear, ExactLinear)
        return linear.multiply(y, x_TD.dtype)
    return _linear(linear, y)


def _linear(linear: nn.Module, y_TI: Tensor) -> Tensor:
    """The layer's own operation, or a kernel for few rows of 16 bits where it is a plain product."""
    from wedlm_core.kernels.gpu.few_rows import multiply_few, takes_few

    if type(linear) is not nn.Linear or not y_TI.is_cuda or y_TI.dtype not in _HALVES or not takes_few(*y_TI.shape):
        return cast(Tensor, linear(y_TI))
    return multiply_few(y_TI.contiguous(), linear.weight, linear.bias)


def use_gpu_decoder(model: Decoder) -> bool:
    """Let ``model`` run as :class:`DecoderGpu` from now on, if that works on its device.

    On a GPU the first layer is first compared with the plain decoder's; if it is not used, the log says why.

    Returns:
        Whether it is used; never on CPU.
    """
    model.packed_forward = None
    device = model.device
    if device.type != "cuda":
        return False
    if why := why_no_triton(device) or disagreement(model, range(3)):
        logger.warning("decoder layers: torch operations, for %s", why)
        return False
    model.packed_forward = DecoderGpu(model)
    return True


@torch.no_grad()
def disagreement(model: Decoder, ids: Iterable[int]) -> str | None:
    """How the first layer of :class:`DecoderGpu` differs from the plain decoder's; None if they agree."""
    id_T = torch.tensor(list(ids), device=model.device)
    position_T = torch.arange(len(id_T), device=id_T.device).clamp_(max=model.cos.shape[0] - 1)

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        group = q.shape[-2] // k.shape[-2]
        return q + (k + v).repeat_interleave(group, dim=-2)

    try:
        found = DecoderGpu(model, 1)(id_T, position_T, attend).float()
    except Exception as error:  # a compiler or driver may raise anything
        return f"the GPU layer failed ({type(error).__name__}: {error})"
    cos, sin = model.cos[position_T].unsqueeze(-2), model.sin[position_T].unsqueeze(-2)
    expected = model.norm(model.layers[0](model.embed(id_T), cos, sin, attend)).float()
    off = (found - expected).abs().max() / expected.abs().max().clamp_min(1e-30)
    rounds = any(isinstance(module, ExactLinear) for module in model.layers[0].modules())
    if not off <= max(_TOLERANCE[model.dtype], _ROUNDED_TOLERANCE if rounds else 0.0):
        return f"the GPU layer is off by {off:.3g} of its largest value"
    return None
