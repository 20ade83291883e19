"""Filters: which tokens sampling leaves out, one record each.

A filter is a field of :class:`wedlm_core.types.SamplingParams`, a record in :data:`FILTERS`, its rule for one row in
the oracle (``testing.engine.oracle.kept``), and that rule in two kernels: ``filtering.py`` for CPU and for GPU. Its
column on the device follows from the table.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, kw_only=True)
class Filter:
    """One way of leaving tokens out.

    Attributes:
        field: of ``SamplingParams``.
        dtype: of the values of rows: int64 or float32.
        off: the value that keeps every token.
        example: a value that leaves tokens out, for measurements and tests.
    """

    field: str
    dtype: torch.dtype
    off: float
    example: float


FILTERS: tuple[Filter, ...] = (
    Filter(field="min_p", dtype=torch.float32, off=0.0, example=0.2),
    Filter(field="top_k", dtype=torch.int64, off=0, example=20),
    Filter(field="top_p", dtype=torch.float32, off=1.0, example=0.9),
)
"""Every filter, in the order of application."""
