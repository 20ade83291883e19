"""Brings the commits of a forward from the device to the host, as one :class:`StepOutcome`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from wedlm_core.decoding.strategies import Commit
from wedlm_core.errors import IntegrityError
from wedlm_core.statistics import OUTCOME_KINDS, BoolArray, StepOutcome, TopTokens

_COUNTS = [name for name in OUTCOME_KINDS if name.endswith("_D")]
_PLACES = sorted((n for n in OUTCOME_KINDS if n.endswith("_DC")), key=lambda n: OUTCOME_KINDS[n] != np.int64)
COLUMN_OF = {name: place for place, name in enumerate(_COUNTS)}
"""Where words have each column per sequence."""
SHARE_OF = {name: place for place, name in enumerate(_PLACES)}
"""Which share of the words after them each column per place has."""
_WHOLE = [name for name in _PLACES if OUTCOME_KINDS[name] == np.int64]  # joined with the counts before all are narrowed


def words_of(commit: Commit, next_rows_S: Tensor) -> Tensor:
    """One group's commit as int32 ``[S, N + M C]``, to be copied to the host at once; floats travel as their bits.

    N and M are the columns of :data:`OUTCOME_KINDS` per sequence and per place.
    """

    def column(name: str) -> Tensor:
        return next_rows_S if name == "next_rows_D" else getattr(commit, name.replace("_D", "_S"))

    counts_SN = torch.stack([column(name).to(torch.int64) for name in _COUNTS], dim=1)
    whole = torch.cat([counts_SN, *(column(name) for name in _WHOLE)], dim=1).to(torch.int32)
    rest = [
        _bits(column(name)) if OUTCOME_KINDS[name] == np.float32 else column(name).to(torch.int32)
        for name in _PLACES[len(_WHOLE) :]
    ]
    return torch.cat([whole, *rest], dim=1)


def _bits(value: Tensor) -> Tensor:
    """Floats as the integers that have their bits; of another width they would be other columns."""
    if value.dtype != torch.float32:
        raise IntegrityError(f"float32 travels to the host as its bits, and this is {value.dtype}")
    return value.view(torch.int32)


def outcome_of(words: np.ndarray) -> StepOutcome:
    """Read the words of :func:`words_of`."""
    counts_DN, places_DX = words[:, : len(_COUNTS)], words[:, len(_COUNTS) :]
    width = places_DX.shape[1] // len(_PLACES)
    columns: dict[str, Any] = {name: _read(counts_DN[:, i], OUTCOME_KINDS[name]) for i, name in enumerate(_COUNTS)}
    for i, name in enumerate(_PLACES):
        columns[name] = _read(places_DX[:, i * width : (i + 1) * width], OUTCOME_KINDS[name])
    return StepOutcome(**columns)


def _read(words: np.ndarray, kind: np.dtype[Any]) -> np.ndarray:
    if kind == np.bool_:
        return words != 0
    return np.ascontiguousarray(words.view(np.float32)) if kind == np.float32 else words.astype(kind)


def fetch(commit: Commit, next_rows_S: Tensor) -> StepOutcome:
    """Bring one group's commit to the host in one copy, and wait for it."""
    return outcome_of(words_of(commit, next_rows_S).cpu().numpy())


def take(outcome: StepOutcome, keep_D: BoolArray) -> StepOutcome:
    """The sequences of ``keep_D``."""
    if keep_D.all():
        return outcome
    columns: dict[str, Any] = {name: getattr(outcome, name)[keep_D] for name in OUTCOME_KINDS}
    return StepOutcome(**columns, tops=None if outcome.tops is None else outcome.tops.only(keep_D))


def join(parts: list[StepOutcome], tops: TopTokens | None = None) -> StepOutcome:
    """Outcomes of several groups as one, places padded to the widest; ``tops`` of the whole."""
    if len(parts) == 1:
        return parts[0] if tops is None else replace(parts[0], tops=tops)
    places = max((part.token_DC.shape[1] for part in parts), default=1)
    columns = {
        name: _joined([getattr(part, name) for part in parts], kind, places if name.endswith("_DC") else None)
        for name, kind in OUTCOME_KINDS.items()
    }
    return StepOutcome(**columns, tops=tops)


def _joined(parts: list[np.ndarray], kind: np.dtype[Any], places: int | None) -> np.ndarray:
    """One part below the other; with ``places`` they are widened to so many by zeros."""
    if places is None:
        return np.concatenate([np.zeros(0, dtype=kind), *parts])
    widened = [np.pad(part, ((0, 0), (0, places - part.shape[1]))) for part in parts]
    return np.concatenate([np.zeros((0, places), dtype=kind), *widened])
