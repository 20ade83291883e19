"""DecoderGpu: the decoder with one Triton kernel between two matrix products. :class:`Decoder` is its oracle.

As torch operations, the norms, rotary embedding, residuals and activation of a layer are about 45 kernels. In a small
forward they take longer than reading the weights, in a CUDA graph too. Here they are five kernels per layer.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import cast

import torch
from torch import Tensor

from wedlm_core.kernels.gpu.support import why_no_triton
from wedlm_core.model.decoder import Attend, Decoder, DecoderLayer

__all__ = ["DecoderGpu", "use_gpu_decoder"]

logger = logging.getLogger(__name__)

_TOLERANCE = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}  # relative to the largest hidden state


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
        from wedlm_core.kernels.gpu.layer import add_rms_norm, norm_rope, silu_mul

        model, config = self._model, self._model.config
        layers = [cast(DecoderLayer, layer) for layer in list(model.layers)[: self._count]]
        following = [*(layer.input_norm for layer in layers[1:]), model.norm]
        x_TD = model.embed(id_T)
        y_TD = add_rms_norm(x_TD, None, layers[0].input_norm.weight, layers[0].input_norm.eps)
        for layer, norm in zip(layers, following, strict=True):
            weights = None
            if layer.q_norm is not None and layer.k_norm is not None:
                weights = (layer.q_norm.weight, layer.k_norm.weight)
            q, k, v = norm_rope(
                layer.qkv_proj(y_TD), position_T, model.cos, model.sin, weights, config.rms_norm_eps,
                heads=layer.heads, kv_heads=layer.kv_heads, head_dim=layer.head_dim,
            )  # fmt: skip
            context_TC = attend(layer.index, q, k, v).flatten(-2)
            y_TD = add_rms_norm(x_TD, layer.o_proj(context_TC), layer.post_norm.weight, layer.post_norm.eps)
            hidden_TI = silu_mul(layer.gate_up_proj(y_TD))
            y_TD = add_rms_norm(x_TD, layer.down_proj(hidden_TI), norm.weight, norm.eps)
        return y_TD


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
    if not off <= _TOLERANCE[model.dtype]:
        return f"the GPU layer is off by {off:.3g} of its largest value"
    return None
