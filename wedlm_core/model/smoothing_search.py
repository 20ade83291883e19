"""Chooses the powers of two of :mod:`wedlm_core.model.smoothing` from rows of a sample, layer by layer.

The wide weights of one layer are in memory at a time, whatever the size of the model. For every site a few strengths
are tried on rows of the sample, no smoothing among them. The strength with the rounded products nearest to the wide
ones is taken, so no site is worse than without, on these rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from wedlm_core.model.checkpoint import Checkpoint, TensorPlace, expected_tensors, opened
from wedlm_core.model.decoder import DecoderLayer, RMSNorm
from wedlm_core.model.int4 import Int4Linear
from wedlm_core.model.int8 import Int8Linear
from wedlm_core.model.placing import place
from wedlm_core.model.quantised import EXACT_DTYPES
from wedlm_core.model.rotary import rope_tables
from wedlm_core.model.smoothing import MOST, Smoothing, to_queries

_STRENGTHS = (0.25, 0.5, 0.75)  # share of a channel's size that moves from the rows to the weights
_COMPARED = 128  # rows of the sample for comparing strengths
_SMALLEST = 1e-12

_Rounding = type[Int8Linear] | type[Int4Linear]


@torch.no_grad()
def search(
    found: Checkpoint,
    sequences: Sequence[Sequence[int]],
    weight_dtype: str,
    *,
    head: bool = True,
    device: torch.device | str = "cpu",
) -> Smoothing:
    """The smoothing of a checkpoint for a dtype of weights.

    Args:
        found: the checkpoint.
        sequences: token ids of the sample's rows, none empty.
        weight_dtype: a name of :data:`~wedlm_core.model.quantised.EXACT_DTYPES`.
        head: whether the output head is rounded too.
        device: to compute on, in float32.
    """
    config, rounding = found.config, EXACT_DTYPES[weight_dtype]
    edges = [0, *torch.tensor([len(each) for each in sequences]).cumsum(0).tolist()]
    position_T = torch.cat([torch.arange(b - a) for a, b in pairwise(edges)])
    tables = rope_tables(config, int(position_T.max()) + 1)
    cos_T1J, sin_T1J = (table[position_T].unsqueeze(-2).to(device) for table in tables)

    def attend(_: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.cat([_causal(q[a:b], k[a:b], v[a:b]) for a, b in pairwise(edges)])

    x_TD = _embedded(found, [token for each in sequences for token in each]).to(device)
    with torch.device("meta"):
        layer = DecoderLayer(config, 0)
    layer = layer.to_empty(device=device).float().requires_grad_(False)
    linears = {"input": layer.qkv_proj, "value": layer.o_proj, "post": layer.gate_up_proj, "hidden": layer.down_proj}
    seen: dict[str, Tensor] = {}
    for name, linear in linears.items():
        linear.register_forward_pre_hook(_keeper(seen, name))
    exponents: dict[str, Tensor] = {}
    for i in range(config.num_hidden_layers):
        _fill(found, layer, f"layers.{i}.")
        x_TD = layer(x_TD, cos_T1J, sin_T1J, attend)
        for name, linear in linears.items():
            group = config.num_attention_heads // config.num_key_value_heads if name == "value" else 1
            dim = config.head_dim if name == "value" else linear.in_features
            exponents[f"layers.{i}.{name}"] = _best(seen[name], linear, rounding, group, dim)
    if head and not config.tie_word_embeddings:
        exponents["head"] = _best(*_head_problem(found, x_TD), Int8Linear, 1, config.hidden_size)
    return Smoothing(config, {name: each.cpu() for name, each in exponents.items()})


def _causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention of one sequence: ``q [T, H, Dh]``, ``k, v [T, Hkv, Dh]`` -> ``[T, H, Dh]``."""
    q, k, v = (each.transpose(0, 1) for each in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True).transpose(0, 1)


def _keeper(seen: dict[str, Tensor], name: str):  # type: ignore[no-untyped-def]
    """A hook that keeps the input of a layer."""
    return lambda _, given: seen.update({name: given[0]})


def _embedded(found: Checkpoint, tokens: Sequence[int]) -> Tensor:
    """The embeddings of tokens, float32 ``[T, D]``; only their rows of the table are read."""
    name = "model.embed_tokens.weight"
    distinct = sorted(set(tokens))
    with opened(found.files[name]) as handle:
        table = handle.get_slice(name)
        rows = torch.cat([table[token : token + 1].float() for token in distinct])
    return rows[torch.tensor([distinct.index(token) for token in tokens])]


def _fill(found: Checkpoint, module: nn.Module, prefix: str) -> None:
    """Read the parameters of a part of the decoder, those whose names begin with ``prefix``."""
    own = {
        name: TensorPlace(parameter=each.parameter.removeprefix(prefix), start=each.start, shape=each.shape)
        for name, each in expected_tensors(found.config).items()
        if each.parameter.startswith(prefix)
    }
    place({name: found.files[name] for name in own}, own, module, adapter=found.adapter)


def _head_problem(found: Checkpoint, x_TD: Tensor) -> tuple[Tensor, nn.Linear]:
    """The inputs of the output head, and the head."""
    config, device = found.config, x_TD.device
    norm = RMSNorm(config.hidden_size, config.rms_norm_eps).to(device).requires_grad_(False)
    _fill(found, norm, "norm.")
    linear = nn.Linear(config.hidden_size, config.vocab_size, bias=False, device="meta")
    linear = linear.to_empty(device=device).requires_grad_(False)
    _fill(found, linear, "lm_head.")
    return norm(x_TD), linear


def _best(x_TI: Tensor, linear: nn.Linear, rounding: _Rounding, group: int, dim: int) -> Tensor:
    """The exponents, int8 ``[I / group]``, that bring the rounded layer nearest to the wide one.

    Args:
        x_TI: inputs of the layer over the sample.
        linear: the layer.
        rounding: the class of the rounded layer.
        group: channels that share an exponent: ``group`` blocks of ``dim`` follow each other.
        dim: see ``group``.
    """

    def largest(each_I: Tensor) -> Tensor:
        return each_I.unflatten(0, (-1, group, dim)).amax(dim=1).flatten().clamp_min(_SMALLEST).log2()

    row_C, weight_C = largest(x_TI.abs().amax(dim=0)), largest(linear.weight.abs().amax(dim=0))
    some_RI = x_TI[:: max(1, len(x_TI) // _COMPARED)]
    wide_RO = F.linear(some_RI, linear.weight)
    best_C, least = torch.zeros_like(row_C, dtype=torch.int8), None
    for strength in (0.0, *_STRENGTHS):
        raw_C = strength * row_C - (1 - strength) * weight_C if strength else torch.zeros_like(row_C)
        exponent_C = (raw_C - raw_C.median()).round().clamp(-MOST, MOST)
        scale_I = to_queries(exponent_C, group, dim).exp2()
        smooth = nn.Linear(linear.in_features, linear.out_features, bias=False, device="meta")
        smooth.weight = nn.Parameter(linear.weight * scale_I, requires_grad=False)
        error = float((rounding.of(smooth)(some_RI / scale_I) - wide_RO).square().sum())
        if least is None or error < least:
            best_C, least = exponent_C.to(torch.int8), error
    return best_C
