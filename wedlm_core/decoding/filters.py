"""Filters: which tokens sampling leaves out, one record each.

A filter is a field of :class:`wedlm_core.types.SamplingParams`, a record in :data:`FILTERS`, and its rule for one row
in the oracle's ``choose_token``. The rest follows from the table: the columns on the device, the bound of filtered
rows for forwards that the host does not wait for, and the pass over rows that a kernel cannot choose.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["FILTERS", "Filter", "filter_logits", "is_filtered"]

_UNITS = 2.0**44  # of the most likely token: 2 ** 18 tokens sum to less than 2 ** 63


@dataclass(frozen=True, kw_only=True)
class Filter:
    """One way of leaving tokens out.

    Attributes:
        field: of ``SamplingParams``.
        dtype: of the values of rows: int64 or float32.
        off: the value that keeps every token.
        example: a value that leaves tokens out, for measurements and tests.
        apply: from temperature-scaled logits float32 ``[R, V]`` and the value of each row ``[R]`` to the logits with
            -inf for what is left out. A row whose value is ``off`` stays as it is, whatever the other rows are.
    """

    field: str
    dtype: torch.dtype
    off: float
    example: float
    apply: Callable[[Tensor, Tensor], Tensor]


def _top_k(scaled_RV: Tensor, top_k_R: Tensor) -> Tensor:
    """Keep the k most likely tokens, and every token that ties with the k-th; 0 keeps all."""
    vocab = scaled_RV.shape[-1]
    keep_R = torch.where(top_k_R > 0, top_k_R, vocab).clamp(max=vocab)
    sorted_RV = scaled_RV.sort(dim=-1, descending=True).values
    floor_R1 = sorted_RV.gather(-1, keep_R[:, None] - 1)
    return scaled_RV.masked_fill(scaled_RV < floor_R1, -torch.inf)


def _top_p(scaled_RV: Tensor, top_p_R: Tensor) -> Tensor:
    """Keep the smallest set of most likely tokens whose probability reaches p; the token that crosses p is kept.

    Probabilities are whole units, so that their sum is the same in any order and on any device.
    """
    sorted_RV, token_RV = scaled_RV.sort(dim=-1, descending=True, stable=True)
    unit_RV = ((sorted_RV - sorted_RV[:, :1]).exp().double() * _UNITS).nan_to_num(0.0).long()
    sum_RV = unit_RV.cumsum(dim=-1)
    enough_R = (sum_RV[:, -1].double() * top_p_R.double()).ceil().long().clamp(min=1)
    drop_RV = (sum_RV - unit_RV >= enough_R[:, None]) & (top_p_R[:, None] < 1)
    return scaled_RV.masked_fill(torch.zeros_like(drop_RV).scatter_(-1, token_RV, drop_RV), -torch.inf)


def _min_p(scaled_RV: Tensor, min_p_R: Tensor) -> Tensor:
    """Keep the tokens that are at least this share as likely as the most likely one; 0 keeps all."""
    floor_R = scaled_RV.max(dim=-1).values + min_p_R.double().log().float()
    return scaled_RV.masked_fill(scaled_RV < floor_R[:, None], -torch.inf)


FILTERS: tuple[Filter, ...] = (
    Filter(field="min_p", dtype=torch.float32, off=0.0, example=0.2, apply=_min_p),
    Filter(field="top_k", dtype=torch.int64, off=0, example=20, apply=_top_k),
    Filter(field="top_p", dtype=torch.float32, off=1.0, example=0.9, apply=_top_p),
)
"""Every filter, in the order in which they are applied."""


def filter_logits(scaled_RV: Tensor, values: Mapping[str, Tensor]) -> Tensor:
    """Apply filters, one after the other, to temperature-scaled logits; what is left out becomes -inf.

    Args:
        scaled_RV: float32 ``[R, V]``.
        values: of the filters that any row uses, the value of each row, ``[R]``; by the field's name.
    """
    for one in FILTERS:
        if one.field in values:
            scaled_RV = one.apply(scaled_RV, values[one.field])
    return scaled_RV


def is_filtered(values: Mapping[str, Tensor]) -> Tensor:
    """Bool ``[R]``: rows to which a filter applies; ``values``, one at least, as for :func:`filter_logits`."""
    off = {one.field: one.off for one in FILTERS}
    return functools.reduce(torch.logical_or, [value_R != off[field] for field, value_R in values.items()])
