"""The most likely tokens of a forward, from where they were chosen to the places of its commits on the host.

Strategies with a next-token head commit at place c the token that the sequence's row c chose, so the place of a commit
is known before the forward has run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from wedlm_core.decoding.sampling import Tops
from wedlm_core.engine.forward.device_state import DeviceState
from wedlm_core.engine.forward.groups import Group
from wedlm_core.engine.scheduling.slots import IntArray
from wedlm_core.statistics import TopTokens


def rows_of(groups: Sequence[Group]) -> Tensor:
    """int64 ``[D, C]``: for each place of each decoding sequence its row in the flat layout of all groups."""
    widths = [group.layout.id_SR.shape[1] for group in groups]
    parts = []
    for group, width in zip(groups, widths, strict=True):
        device = group.layout.id_SR.device
        place_C = torch.arange(max(widths), device=device).clamp_(max=width - 1)
        parts.append(group.base + width * torch.arange(len(group.layout.id_SR), device=device)[:, None] + place_C)
    return torch.cat(parts)


def top_words(tops: Tops, row_DC: Tensor) -> Tensor:
    """The most likely tokens of rows, as flat int32 words: tokens, and after them the bits of log-probabilities.

    Args:
        tops: by row.
        row_DC: integers, the row of each place of D sequences; after the last row it is read again.
    """
    row_N = row_DC.clamp(max=tops.token_RK.shape[0] - 1).flatten()
    token_NK, logprob_NK = tops.token_RK.index_select(0, row_N), tops.logprob_RK.index_select(0, row_N)
    return torch.cat([token_NK.to(torch.int32), logprob_NK.view(torch.int32)]).flatten()


@dataclass(frozen=True, kw_only=True)
class TopWords:
    """The sequences of a forward that report their most likely tokens.

    Attributes:
        member_H: those sequences.
        sequences: of the words, at least as many as decode.
        most: K, tokens of a place.
    """

    member_H: IntArray
    sequences: int
    most: int

    @classmethod
    def of(cls, state: DeviceState, slots_S: IntArray, decoding: int, sequences: int) -> TopWords | None:
        """Those of a forward's first sequences, which decode; None where no slot of the forward reports any."""
        most = state.most_reported(slots_S)
        member_H = np.flatnonzero(state.tops[slots_S[:decoding]])
        return cls(member_H=member_H, sequences=sequences, most=most) if most else None

    def read(self, words: np.ndarray) -> TopTokens:
        """The tokens from :func:`top_words`."""
        token, logprob = words.reshape(2, self.sequences, -1, self.most)[:, self.member_H]
        return TopTokens(member_H=self.member_H, token_HCK=token.astype(np.int64), logprob_HCK=logprob.view(np.float32))
