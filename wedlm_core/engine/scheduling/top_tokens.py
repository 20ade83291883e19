"""The most likely tokens of slots that report them (``logprobs=k``), as numpy arrays. Torch-free."""

from __future__ import annotations

import numpy as np

from wedlm_core.statistics import IntArray, TopTokens


class TopTokenTable:
    """A row of places for each slot that reports them, and none for the others."""

    def __init__(self, slots: int) -> None:
        self._row = np.full(slots, -1, dtype=np.int64)
        self._free: list[int] = []
        self._token = np.zeros((0, 0, 0), dtype=np.int32)
        self._logprob = np.zeros((0, 0, 0), dtype=np.float32)

    def open(self, slot: int, places: int, most: int) -> None:
        """Make room for the ``most`` most likely tokens at so many places."""
        row = self._free.pop() if self._free else int(self._row.max(initial=-1)) + 1
        had = self._token.shape
        # Rows and places double: a job of thousands of requests widens the table a few times.
        needs = (row + 1, places, most)
        size = tuple(has if has >= need else max(need, 2 * has) for has, need in zip(had, needs, strict=True))
        if size != had:
            margins = [(0, after - before) for before, after in zip(had, size, strict=True)]
            self._token, self._logprob = np.pad(self._token, margins), np.pad(self._logprob, margins)
        self._row[slot] = row

    def release(self, slot: int) -> None:
        """Give back the tokens of a slot, if it has any."""
        if self._row[slot] >= 0:
            self._free.append(int(self._row[slot]))
            self._row[slot] = -1

    def append(self, slots_D: IntArray, generated_D: IntArray, tops: TopTokens, emit_D: IntArray) -> None:
        """Keep those of tokens that are output, after ``generated_D`` tokens of earlier forwards."""
        emit_H = emit_D[tops.member_H]
        member, place = np.nonzero(np.arange(tops.token_HCK.shape[1]) < emit_H[:, None])
        of_D = tops.member_H[member]
        there = self._row[slots_D[of_D]], generated_D[of_D] + place
        width = min(tops.token_HCK.shape[2], self._token.shape[2])
        self._token[..., :width][there] = tops.token_HCK[member, place, :width]
        self._logprob[..., :width][there] = tops.logprob_HCK[member, place, :width]

    def of(self, slot: int, tokens: int, most: int) -> tuple[tuple[tuple[int, float], ...], ...]:
        """The ``most`` likeliest tokens at the first ``tokens`` places of a slot, with nats, if they have a chance."""
        row = self._row[slot]
        ids, nats = self._token[row, :tokens, :most].tolist(), self._logprob[row, :tokens, :most].tolist()
        pairs = (zip(*place, strict=True) for place in zip(ids, nats, strict=True))
        return tuple(tuple((token, nat) for token, nat in place if nat > -np.inf) for place in pairs)
