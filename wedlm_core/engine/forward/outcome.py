"""From a forward's commits on the device to one outcome on the host."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import torch
from torch import Tensor

from wedlm_core.decoding.strategies import Commit
from wedlm_core.engine.forward.joining import join_arrays, join_tensors
from wedlm_core.engine.scheduling.slots import OUTCOME_KINDS, BoolArray, StepOutcome
from wedlm_core.errors import IntegrityError

__all__ = ["fetch", "join", "outcome_of", "take", "words_of"]

_COUNTS = 8  # words of a sequence before those of its places


def words_of(commit: Commit, next_rows_S: Tensor) -> Tensor:
    """One group's commit as int32 ``[S, 8 + 4 C]``, to be copied to the host at once; floats travel as their bits."""
    counts = (
        commit.count_S,
        next_rows_S,
        commit.context_S,
        commit.drafts_S,
        commit.agreed_S,
        commit.offered_S,
        commit.valid_S,
        commit.next_valid_S,
    )
    integers = join_tensors([torch.stack([c.to(torch.int64) for c in counts], dim=1), commit.token_SC], dim=1)
    bits = (commit.early_SC.to(torch.int32), _bits(commit.entropy_SC), _bits(commit.logprob_SC))
    return join_tensors([integers.to(torch.int32), *bits], dim=1)


def _bits(value: Tensor) -> Tensor:
    """Floats as the integers that have their bits; of another width they would be other columns."""
    if value.dtype != torch.float32:
        raise IntegrityError(f"float32 travels to the host as its bits, and this is {value.dtype}")
    return value.view(torch.int32)


def outcome_of(words: np.ndarray) -> StepOutcome:
    """Read what :func:`words_of` wrote."""
    first, places = _COUNTS, (words.shape[1] - _COUNTS) // 4
    whole = words[:, : first + places].astype(np.int64)
    early, entropy, logprob = (words[:, first + i * places : first + (i + 1) * places] for i in (1, 2, 3))
    return StepOutcome(
        count_D=whole[:, 0],
        next_rows_D=whole[:, 1],
        context_D=whole[:, 2],
        drafts_D=whole[:, 3],
        agreed_D=whole[:, 4],
        offered_D=whole[:, 5],
        valid_D=whole[:, 6] != 0,
        next_valid_D=whole[:, 7] != 0,
        token_DC=whole[:, first:],
        early_DC=early != 0,
        entropy_DC=entropy.view(np.float32),
        logprob_DC=logprob.view(np.float32),
    )


def fetch(commit: Commit, next_rows_S: Tensor) -> StepOutcome:
    """Bring one group's commit to the host in one copy, and wait for it."""
    return outcome_of(words_of(commit, next_rows_S).cpu().numpy())


def take(outcome: StepOutcome, keep_D: BoolArray) -> StepOutcome:
    """The sequences of ``keep_D``."""
    if keep_D.all():
        return outcome
    return StepOutcome(**{f.name: getattr(outcome, f.name)[keep_D] for f in fields(StepOutcome)})


def join(parts: list[StepOutcome]) -> StepOutcome:
    """Outcomes of several groups as one, places padded to the widest."""
    if len(parts) == 1:
        return parts[0]
    places = max((part.token_DC.shape[1] for part in parts), default=1)
    columns = {
        name: join_arrays([getattr(part, name) for part in parts], kind, places if name.endswith("_DC") else 0)
        for name, kind in OUTCOME_KINDS.items()
    }
    return StepOutcome(**columns)
