"""Which field of ``SamplingParams`` goes where: to the device as a column by slot, or to the host.

A field that is in neither table is an error as soon as this module is imported: an engine would take the field and
ignore it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import cast

import torch

from wedlm_core.decoding.adjustments import ADJUSTMENTS, Adjustment
from wedlm_core.decoding.filters import FILTERS, Filter
from wedlm_core.errors import IntegrityError
from wedlm_core.types import Request, SamplingParams


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """A number that a request fixes for all its forwards; the device keeps it as a column by slot.

    Attributes:
        field: of ``SamplingParams``; also names the column.
        dtype: of the column: int64 or float32.
        of: a request's value.
        unused: value of slots without a request.
        own: whether requests with the same parameters have values of their own.
    """

    field: str
    dtype: torch.dtype
    of: Callable[[Request], float]
    unused: float = 0
    own: bool = False


def _threshold(request: Request) -> float:
    """-inf stands for None: no entropy is below it."""
    threshold = request.params.entropy_threshold
    return -math.inf if threshold is None else threshold


PARAMETERS: tuple[Parameter, ...] = (
    Parameter(field="max_tokens", dtype=torch.int64, of=lambda r: r.params.max_tokens),
    Parameter(field="temperature", dtype=torch.float32, of=lambda r: r.params.temperature),
    Parameter(field="seed", dtype=torch.int64, of=lambda r: r.seed, own=True),  # of this sample
    Parameter(field="entropy_threshold", dtype=torch.float32, of=_threshold),
    Parameter(field="position_penalty", dtype=torch.float32, of=lambda r: r.params.position_penalty),
    *(
        Parameter(field=one.field, dtype=one.dtype, of=attrgetter(f"params.{one.field}"), unused=one.off)
        for one in FILTERS
    ),
    *(
        Parameter(field=one.field, dtype=one.dtype, of=attrgetter(f"params.{one.field}"), unused=cast(float, one.off))
        for one in ADJUSTMENTS
        if one.dtype is not None
    ),
)
"""Columns of the device, by slot."""

OPTIONAL: tuple[Filter | Adjustment, ...] = (*FILTERS, *ADJUSTMENTS)
"""Parameters that most requests do not use: columns and lists of these are written only for slots that do."""

LIST_FIELDS = frozenset(one.field for one in ADJUSTMENTS if one.dtype is None)
"""Fields that the device keeps as lists (:data:`wedlm_core.decoding.adjustments.LISTS`)."""

HOST_FIELDS = frozenset(
    {"stop", "stop_token_ids", "ignore_eos", "n", "logprobs", "structured_outputs", "strategy", "window_size"}
)
"""Fields that the host reads: stops, grammar, samples and output by request; strategy and window by the slot table."""


def _check_all_fields() -> None:
    known = [p.field for p in PARAMETERS] + sorted(LIST_FIELDS) + sorted(HOST_FIELDS)
    wrong = {f.name for f in fields(SamplingParams)} ^ set(known)
    if wrong or len(set(known)) < len(known):
        raise IntegrityError(
            f"fields of SamplingParams that no table, or two, or only a table has: {sorted(wrong) or known}. "
            "A filter belongs in decoding.filters, an adjustment in decoding.adjustments, another number on the "
            "device in decoding.parameters.PARAMETERS, a field that only the host reads in HOST_FIELDS."
        )


_check_all_fields()
