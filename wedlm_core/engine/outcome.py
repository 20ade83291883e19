"""From a forward's commits on the device to one outcome on the host."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import torch
from torch import Tensor

from wedlm_core.decoding.strategies import Commit
from wedlm_core.engine.slots import StepOutcome

__all__ = ["fetch", "join"]


def fetch(commit: Commit, next_rows_S: Tensor) -> StepOutcome:
    """Bring one group's commit to the host: integers in one copy, floats in another."""
    counts_S5 = torch.stack([commit.count_S, next_rows_S, commit.context_S, commit.drafts_S, commit.agreed_S], dim=1)
    whole = torch.cat([counts_S5, commit.token_SC, commit.early_SC.to(torch.int64)], dim=1).cpu().numpy()
    real = torch.cat([commit.entropy_SC, commit.logprob_SC], dim=1).cpu().numpy()
    places = commit.token_SC.shape[1]
    return StepOutcome(
        count_D=whole[:, 0],
        next_rows_D=whole[:, 1],
        context_D=whole[:, 2],
        drafts_D=whole[:, 3],
        agreed_D=whole[:, 4],
        token_DC=whole[:, 5 : 5 + places],
        early_DC=whole[:, 5 + places :] != 0,
        entropy_DC=real[:, :places],
        logprob_DC=real[:, places:],
    )


def join(parts: list[StepOutcome]) -> StepOutcome:
    """Outcomes of several groups as one, places padded to the widest."""
    if len(parts) == 1:
        return parts[0]
    places = max((p.token_DC.shape[1] for p in parts), default=1)
    nothing = np.zeros((0, places), dtype=np.int64)

    def joined(name: str) -> np.ndarray:
        if name.endswith("_D"):
            return np.concatenate([nothing[:, 0], *(getattr(p, name) for p in parts)])
        matrices = [getattr(p, name) for p in parts]
        return np.concatenate([nothing, *(np.pad(m, ((0, 0), (0, places - m.shape[1]))) for m in matrices)])

    return StepOutcome(**{f.name: joined(f.name) for f in fields(StepOutcome)})
