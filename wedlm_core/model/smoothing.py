"""Smoothing: channels between matrices are scaled so that rows and weights round to few bits with smaller errors.

A channel that is large in a row leaves few steps to the others, since a row has one scale. Dividing a channel by s and
multiplying the next matrix's inputs by s changes nothing but the rounding (SmoothQuant, arXiv 2211.10438). Here s is
a power of two, so in floating point nothing changes at all: the smoothed wide model has the bits of the plain one.

The division is folded into the source of the channel: into a norm, the rows of the value projection, or those of
``up``. :mod:`wedlm_core.model.smoothing_search` chooses the powers, :mod:`wedlm_core.model.smoothing_files` keeps them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from wedlm_core.config import ModelConfig

MOST = 12
"""Largest exponent: beyond it, a channel that is nearly always 0 would leave no bits of its weights."""


def expected_sites(config: ModelConfig) -> dict[str, int]:
    """Every place whose channels can be scaled, and its number of channels.

    ``input`` and ``post`` are a layer's norms, ``value`` its value vectors, ``hidden`` the inputs of its down
    projection; ``head`` is the final norm. A head that is tied to the embedding has no inputs of its own to scale.
    """
    sites = {}
    for i in range(config.num_hidden_layers):
        sites[f"layers.{i}.input"] = sites[f"layers.{i}.post"] = config.hidden_size
        sites[f"layers.{i}.value"] = config.num_key_value_heads * config.head_dim
        sites[f"layers.{i}.hidden"] = config.intermediate_size
    if not config.tie_word_embeddings:
        sites["head"] = config.hidden_size
    return sites


def to_queries(value_C: Tensor, group: int, head_dim: int) -> Tensor:
    """Numbers of the value channels ``[Hkv * Dh]`` as those of the attention's output, ``[Hkv * group * Dh]``."""
    return value_C.unflatten(0, (-1, 1, head_dim)).expand(-1, group, -1).flatten()


@dataclass(frozen=True, kw_only=True)
class _Fold:
    """Exponents of the factors of a parameter's inputs; its rows are divided by the same factors; None: not at all."""

    inputs: Tensor | None = None
    rows: Tensor | None = None


class Smoothing:
    """The powers of two of a model, folded into its parameters while they are read.

    Args:
        config: of the model.
        exponents: int8 by site, as many as :func:`expected_sites` says; sites that are left out are not scaled.

    Attributes:
        exponents: as given.
    """

    def __init__(self, config: ModelConfig, exponents: Mapping[str, Tensor]) -> None:
        self.exponents = dict(exponents)
        self._folds: dict[str, _Fold] = {}
        group, dim = config.num_attention_heads // config.num_key_value_heads, config.head_dim
        unscaled = (config.num_attention_heads + config.num_key_value_heads) * dim  # queries and keys
        for i in range(config.num_hidden_layers):
            enter, value, post, hidden = (
                self.exponents.get(f"layers.{i}.{name}") for name in ("input", "value", "post", "hidden")
            )
            rows = None if value is None else torch.cat([value.new_zeros(unscaled), value])
            up = None if hidden is None else torch.cat([hidden.new_zeros(len(hidden)), hidden])
            context = None if value is None else to_queries(value, group, dim)
            own = {
                "input_norm.weight": _Fold(rows=enter),
                "qkv_proj.weight": _Fold(inputs=enter, rows=rows),
                "qkv_proj.bias": _Fold(rows=rows),
                "o_proj.weight": _Fold(inputs=context),
                "post_norm.weight": _Fold(rows=post),
                "gate_up_proj.weight": _Fold(inputs=post, rows=up),
                "down_proj.weight": _Fold(inputs=hidden),
            }
            self._folds |= {f"layers.{i}.{name}": fold for name, fold in own.items()}
        head = self.exponents.get("head")
        self._folds |= {"norm.weight": _Fold(rows=head), "lm_head.weight": _Fold(inputs=head)}

    def folded(self, parameter: str, start: int, rows: Tensor) -> Tensor:
        """Rows of a parameter as the smoothed model has them.

        Args:
            parameter: its name in :class:`~wedlm_core.model.decoder.Decoder`.
            start: the first of them.
            rows: ``[R]`` or ``[R, I]``, any floating dtype.

        Returns:
            The same shape; float32 where anything is scaled.
        """
        fold = self._folds.get(parameter, _Fold())
        if fold.rows is not None:
            own = torch.exp2(-fold.rows[start : start + len(rows)].float()).to(rows.device)
            rows = rows.float() * (own if rows.dim() == 1 else own[:, None])
        if fold.inputs is not None:
            rows = rows.float() * torch.exp2(fold.inputs.float()).to(rows.device)
        return rows
