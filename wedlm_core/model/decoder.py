"""Decoder: a Qwen2.5- or Qwen3-style causal decoder for inputs with any leading dimensions.

The caller passes attention as an ``Attend`` callable. The engine's reads and writes a paged KV pool for packed rows
``[T]``; that of training has the dual-stream pattern for batches ``[B, T]``. Projections are fused: q, k and v are one
matrix, gate and up another. :mod:`wedlm_core.model.checkpoint` maps them to the Hugging Face names.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from wedlm_core.config import ModelConfig
from wedlm_core.errors import ConfigError, explain
from wedlm_core.model.rotary import apply_rope, rope_tables

BLOCK_ROWS = 32
"""Rows of each product of :func:`in_blocks`."""


class Attend(Protocol):
    """Attention over a context that the caller keeps."""

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """``q [..., H, Dh]``, ``k, v [..., Hkv, Dh]`` of this forward -> ``[..., H, Dh]``."""
        ...


class RMSNorm(nn.Module):
    """Root-mean-square norm, computed in float32 and out of place: the input is never changed."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last dimension; same shape and dtype as ``x``."""
        wide = x.float()
        scaled = wide * torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + self.eps)
        return self.weight * scaled.to(x.dtype)


class DecoderLayer(nn.Module):
    """One layer: pre-norm attention and a gated MLP."""

    def __init__(self, config: ModelConfig, index: int) -> None:
        super().__init__()
        self.index = index
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.head_dim = config.head_dim
        width, bias = config.hidden_size, config.attention_bias
        self.input_norm = RMSNorm(width, config.rms_norm_eps)
        self.qkv_proj = nn.Linear(width, (self.heads + 2 * self.kv_heads) * self.head_dim, bias=bias)
        self.q_norm = RMSNorm(self.head_dim, config.rms_norm_eps) if config.qk_norm else None
        self.k_norm = RMSNorm(self.head_dim, config.rms_norm_eps) if config.qk_norm else None
        self.o_proj = nn.Linear(self.heads * self.head_dim, width, bias=False)
        self.post_norm = RMSNorm(width, config.rms_norm_eps)
        self.gate_up_proj = nn.Linear(width, 2 * config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, attend: Attend) -> Tensor:
        """``x [..., D]`` -> ``[..., D]``; ``cos, sin [..., 1, Dh // 2]``."""
        qkv = self.qkv_proj(self.input_norm(x)).unflatten(-1, (-1, self.head_dim))
        q, k, v = qkv.split((self.heads, self.kv_heads, self.kv_heads), dim=-2)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        context = attend(self.index, apply_rope(q, cos, sin), apply_rope(k, cos, sin), v)
        x = x + self.o_proj(context.flatten(-2))
        gate, up = self.gate_up_proj(self.post_norm(x)).chunk(2, dim=-1)
        return x + self.down_proj(F.silu(gate) * up)


def _embedding(config: ModelConfig) -> nn.Embedding:
    """The embedding. On the meta device it is given a weight: torch would draw one, and import its compiler for that.

    The import takes longer than everything else that loading a small model does.
    """
    memory_VH = torch.empty(config.vocab_size, config.hidden_size)
    return nn.Embedding(config.vocab_size, config.hidden_size, _weight=memory_VH if memory_VH.is_meta else None)


class Decoder(nn.Module):
    """The network: token ids and logical positions in, final hidden states out. :meth:`logits` is a separate step.

    Args:
        config: shape of the model.
        max_positions: length of the rotary tables; None takes ``max_position_embeddings``. An engine needs
            more, since a window may extend past ``max_tokens`` (docs/design/decoding.md).

    Attributes:
        packed_forward: replaces the layers for packed rows without gradients, if set; see
            :func:`wedlm_core.model.decoder_gpu.use_gpu_decoder`.
    """

    cos: Tensor
    sin: Tensor

    def __init__(self, config: ModelConfig, max_positions: int | None = None) -> None:
        super().__init__()
        self.config = config
        self.packed_forward: Callable[[Tensor, Tensor, Attend], Tensor] | None = None
        self.embed = _embedding(config)
        self.layers = nn.ModuleList(DecoderLayer(config, i) for i in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        if config.tie_word_embeddings:
            self.lm_head.weight = self.embed.weight
        self.set_max_positions(max_positions or config.max_position_embeddings)

    @property
    def dtype(self) -> torch.dtype:
        """Of hidden states, keys and values; weights may be stored in fewer bits."""
        return self.norm.weight.dtype

    @property
    def device(self) -> torch.device:
        """Of all weights."""
        return self.norm.weight.device

    def set_max_positions(self, length: int) -> None:
        """Rebuild the rotary tables for positions below ``length`` on the model's device, in its dtype."""
        device = torch.device("cpu") if self.device.type == "meta" else self.device
        cos, sin = rope_tables(self.config, length)
        self.register_buffer("cos", cos.to(device=device, dtype=self.dtype), persistent=False)
        self.register_buffer("sin", sin.to(device=device, dtype=self.dtype), persistent=False)

    def forward(self, ids: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """Run all layers.

        Args:
            ids: int64 ``[...]`` token ids in physical order.
            positions: int64 ``[...]`` logical positions, each below the rotary tables' length.
            attend: attention over the caller's context.

        Returns:
            ``[..., D]``: hidden states after the final norm.
        """
        if self.packed_forward is not None and ids.dim() == 1 and not torch.is_grad_enabled():
            return self.packed_forward(ids, positions, attend)
        cos, sin = self.cos[positions].unsqueeze(-2), self.sin[positions].unsqueeze(-2)
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x, cos, sin, attend)
        return self.norm(x)

    def logits(self, hidden: Tensor) -> Tensor:
        """``[..., D]`` -> float32 ``[..., V]``."""
        return self.lm_head(hidden).float()


def in_blocks(product: Callable[[Tensor], Tensor], x_RI: Tensor) -> Tensor:
    """A product of torch on a CPU, a block of rows at a time, so that a row has the same bits among any other rows.

    Libraries choose kernels by row count and threads, and each adds in another order: measured with 1024 inputs and two
    threads, rows of 128 differ from those of 1024. So all products have one shape.
    """
    rows = x_RI.shape[0]
    padded_RI = F.pad(x_RI, (0, 0, 0, -rows % BLOCK_ROWS))
    return torch.cat([product(block_BI) for block_BI in padded_RI.split(BLOCK_ROWS)])[:rows]


class InBlocks(TorchFunctionMode):
    """Linear layers of torch in a ``with`` block multiply by :func:`in_blocks`."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """See :class:`torch.overrides.TorchFunctionMode`."""
        if func is not F.linear:
            return func(*args, **(kwargs or {}))
        x_RI, *others = args
        return in_blocks(lambda block_BI: func(block_BI, *others, **(kwargs or {})), x_RI)


def check_not_packed(model: nn.Module) -> None:
    """Check that torch can multiply by the weights of a model.

    Raises:
        ConfigError: they were packed while they were read (:mod:`wedlm_core.model.panel_layers`).
    """
    if any(hasattr(one, "panels") for one in model.modules()):
        refuse_packed(model)


def refuse_packed(module: nn.Module) -> NoReturn:
    """Refuse to compute with a model, or with a layer, whose weights were packed while they were read.

    Raises:
        ConfigError: always.
    """
    rule = "weights as they are stored; these were packed for an engine that runs the kernels of this CPU"
    raise ConfigError(explain("model", type(module).__name__, rule, "Load it with packed=False."))
