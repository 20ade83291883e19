"""The most likely tokens of a forward, from where they were chosen to the places of its commits on the host.

Strategies with a next-token head commit at place c the choice of the sequence's row c, so the place of a commit is
known before the forward has run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from wedlm_core.decoding.tops import Tops
from wedlm_core.engine.forward.device_state import DeviceState
from wedlm_core.engine.forward.groups import Group
from wedlm_core.engine.forward.joining import join_arrays, join_tensors
from wedlm_core.engine.forward.transfer import to_device
from wedlm_core.engine.scheduling.slots import IntArray
from wedlm_core.statistics import TopTokens

__all__ = ["TopWords", "places_of", "top_words_of", "tops_on_host"]


def places_of(groups: Sequence[Group]) -> tuple[IntArray, IntArray]:
    """For each decoding sequence its first place in the flat layout of all groups, and its places."""
    first, places = [], []
    for group in groups:
        sequences, width = group.layout.id_SR.shape
        first.append(group.base + width * np.arange(sequences, dtype=np.int64))
        places.append(np.full(sequences, width, dtype=np.int64))
    return join_arrays(first, np.int64), join_arrays(places, np.int64)


@dataclass(frozen=True, kw_only=True)
class TopWords:
    """The host's record of most likely tokens on their way to it, as int32 words.

    Attributes:
        member_H: the sequences that report them.
        places, most: of each.
    """

    member_H: IntArray
    places: int
    most: int

    def read(self, words: np.ndarray) -> TopTokens:
        """The words of :func:`top_words_of`."""
        token, logprob = words.reshape(2, len(self.member_H), self.places, self.most)
        return TopTokens(member_H=self.member_H, token_HCK=token.astype(np.int64), logprob_HCK=logprob.view(np.float32))


def top_words_of(
    tops: Tops, state: DeviceState, slots_D: IntArray, first_D: IntArray | Tensor, places_D: IntArray
) -> tuple[TopWords, Tensor]:
    """Those of the sequences that report them, as flat int32 words to be copied to the host; floats as their bits.

    Args:
        tops: by row.
        state: says which slots report them.
        slots_D: decoding sequences.
        first_D: the first row of each; a tensor where only the device knows.
        places_D: how many rows each has, at most.
    """
    member_H = np.flatnonzero(state.tops[slots_D])
    places, device = int(places_D[member_H].max(initial=0)), tops.token_RK.device
    row_HC = np.minimum(np.arange(places), places_D[member_H, None] - 1)
    if isinstance(first_D, Tensor):
        first_H1 = first_D.index_select(0, to_device(member_H, device))[:, None]
        place = (first_H1 + to_device(row_HC, device)).clamp_(max=tops.token_RK.shape[0] - 1).flatten()
    else:
        place = to_device((first_D[member_H, None] + row_HC).reshape(-1), device)
    token, logprob = tops.token_RK.index_select(0, place), tops.logprob_RK.index_select(0, place)
    words = join_tensors([token.to(torch.int32), logprob.view(torch.int32)]).flatten()
    return TopWords(member_H=member_H, places=places, most=token.shape[1]), words


def tops_on_host(tops: Tops, state: DeviceState, slots_D: IntArray, first_D: IntArray, places_D: IntArray) -> TopTokens:
    """:func:`top_words_of`, waited for."""
    facts, words = top_words_of(tops, state, slots_D, first_D, places_D)
    return facts.read(words.cpu().numpy())
