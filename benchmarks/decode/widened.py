"""A trained model in a larger shape: it chooses the tokens of the small one, at the cost of the large one.

The shipped model is so small that a forward of it is bound by arithmetic, and every row costs. Models that are in use
are bound by reading their weights where sequences are few. So its weights are put into a corner of larger ones, and the
rest is zero: results stay the same, but for rounding, and a forward costs as much as a forward of the large shape.
Layers that the small model has not got add zero.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from wedlm_core import ModelConfig
from wedlm_core.model.decoder import Decoder, DecoderLayer
from wedlm_core.model.placing import empty_decoder


@torch.no_grad()
def widened(model: Decoder, shape: ModelConfig, *, seed: int = 0) -> Decoder:
    """The function of ``model`` by a decoder of another shape, in float32 on the CPU.

    Args:
        model: a decoder with norms of queries and keys, and without biases.
        shape: sizes to take; all that is no size is the model's.
        seed: of weights without an effect: the inputs of spare layers, which multiply them with zero.

    Raises:
        ValueError: the model does not fit into the shape.
    """
    own, config = model.config, _config(model.config, shape)
    found = empty_decoder(config, device="cpu", dtype=torch.float32)
    generator = torch.Generator().manual_seed(seed)
    _fill(found.embed.weight, model.embed.weight)
    if found.lm_head.weight is not found.embed.weight:
        _fill(found.lm_head.weight, model.lm_head.weight)
    _fill(found.norm.weight, _norm(model.norm.weight, config.hidden_size))
    for index, large in enumerate(found.layers):
        assert isinstance(large, DecoderLayer)
        if index < own.num_hidden_layers:
            small = model.layers[index]
            assert isinstance(small, DecoderLayer)
            _widen(large, small, config)
        else:
            _add_nothing(large, generator)
    found.set_max_positions(model.cos.shape[0])
    return found.eval()


def _config(own: ModelConfig, shape: ModelConfig) -> ModelConfig:
    """The sizes of a shape with everything else of a model."""
    sizes = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
             "head_dim")  # fmt: skip
    config = replace(own, **{name: getattr(shape, name) for name in sizes})
    small = [name for name in sizes if getattr(config, name) < getattr(own, name)]
    if small:
        raise ValueError(f"{small[0]}={getattr(config, small[0])}: the model has {getattr(own, small[0])}. Give more")
    if config.head_dim % own.head_dim:
        raise ValueError(f"head_dim={config.head_dim}: angles of {own.head_dim} are not among its. Give a multiple")
    groups = [one.num_attention_heads // one.num_key_value_heads for one in (own, config)]
    if groups[0] != groups[1]:
        raise ValueError(f"{groups[1]} heads for each head of keys: the model has {groups[0]}. Give as many")
    if own.attention_bias or not own.qk_norm:
        raise ValueError("a model with biases, or without norms of queries and keys, is not widened")
    return config


def _fill(large: Tensor, small: Tensor) -> None:
    """Zeros with ``small`` at their beginning."""
    large.zero_()
    large[tuple(slice(size) for size in small.shape)] = small


def _norm(weight_D: Tensor, size: int) -> Tensor:
    """The weight of a norm over ``size`` elements, those to spare zero: their mean square is smaller."""
    return weight_D * (weight_D.shape[0] / size) ** 0.5


def _places(small: int, large: int) -> Tensor:
    """Where the elements of a head go: each half of a head has angles, and a longer head has them more densely."""
    first = torch.arange(small // 2) * (large // small)
    return torch.cat([first, first + large // 2])


def _widen(large: DecoderLayer, small: DecoderLayer, config: ModelConfig) -> None:
    """Fill a layer so that it computes the same as a smaller one."""
    width = config.hidden_size
    for name in ("input_norm", "post_norm"):
        _fill(getattr(large, name).weight, _norm(getattr(small, name).weight, width))
    at, own = _places(small.head_dim, large.head_dim), small.qkv_proj.weight.shape[1]
    wide = large.qkv_proj.weight.zero_().view(-1, large.head_dim, width)
    heads = small.qkv_proj.weight.view(-1, small.head_dim, own).split((small.heads, small.kv_heads, small.kv_heads))
    starts = (0, large.heads, large.heads + large.kv_heads)
    for start, weight_HDI in zip(starts, heads, strict=True):
        wide[start : start + len(weight_HDI), at, :own] = weight_HDI
    # Scores are divided by the root of the longer head. The norm of the queries, over zeros besides, makes up for it.
    for name, longer in (("q_norm", 1.0), ("k_norm", small.head_dim / large.head_dim)):
        getattr(large, name).weight.fill_(0.0)[at] = getattr(small, name).weight * longer**0.5
    context = large.o_proj.weight.zero_().view(width, -1, large.head_dim)
    context[:own, : small.heads, at] = small.o_proj.weight.view(own, small.heads, small.head_dim)
    gates = large.gate_up_proj.weight.zero_().view(2, -1, width)
    inner = small.down_proj.weight.shape[1]
    gates[:, :inner, :own] = small.gate_up_proj.weight.view(2, inner, own)
    _fill(large.down_proj.weight, small.down_proj.weight)


def _add_nothing(layer: DecoderLayer, generator: torch.Generator) -> None:
    """Make a layer that computes as any, and adds zero."""
    for name, parameter in layer.named_parameters():
        if "norm" in name:
            parameter.fill_(1.0)
        elif name in ("o_proj.weight", "down_proj.weight"):
            parameter.zero_()
        else:
            parameter.normal_(std=parameter.shape[1] ** -0.5, generator=generator)
