"""Sequences that just got a slot: their values in the slot table, on the device and in drafting."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from typing import NamedTuple

import numpy as np

from wedlm_core.engine.parts import Parts
from wedlm_core.engine.scheduling.scheduler import context_length
from wedlm_core.engine.scheduling.sequence import Sequence
from wedlm_core.types import SamplingParams

_SHARED = 64  # that are remembered


class _Shared(NamedTuple):
    """The common parameters of a job's rows.

    Attributes:
        stop_ids: tokens that end an output.
        group: number of the decoding.
        verifies: whether the decoding does.
        adaptive: drafting chooses the windows.
        window: masks of the first window where it is fixed, else -1.
    """

    stop_ids: tuple[int, ...]
    group: int
    verifies: bool
    adaptive: bool
    window: int


class Opening:
    """Opens the slots of new sequences.

    Args:
        parts: of the engine.
        plan_windows: lets drafting set the windows of adaptive sequences.
    """

    def __init__(self, parts: Parts, plan_windows: Callable[[], None]) -> None:
        self._table, self._drafting, self._state = parts.table, parts.drafting, parts.runner.state
        self._constraints = parts.constraints
        self._decodings, self._groups, self._eos = parts.decodings, parts.groups, parts.eos_token_ids
        self._plan_windows, self._attempted = plan_windows, parts.optimisations.drafting
        self._shared: dict[tuple[Hashable, ...], _Shared] = {}  # by the parameters that it follows from

    def open(self, sequences: list[Sequence], running: int) -> None:
        """Fill the table and the device state of sequences that just got a slot; ``running`` ones with them."""
        table, now = self._table, time.perf_counter()
        known = [self._shared_of(sequence.request.params) for sequence in sequences]
        for sequence, one in zip(sequences, known, strict=True):
            slot, params = sequence.slot, sequence.request.params
            table.set_stop_ids(slot, one.stop_ids)
            table.set_limit(slot, params.max_tokens)
            if params.top_logprobs:
                table.tops.open(slot, params.max_tokens, params.top_logprobs)
            table.context[slot], table.group[slot] = context_length(sequence), one.group
            table.adaptive[slot], table.widest[slot] = one.adaptive, sequence.widest
            table.masks[slot] = table.keep_valid[slot] = table.keep_stale[slot] = one.window
            table.head[slot], table.watched[slot] = sequence.head, sequence.stops is not None
            sequence.started_at = now
        slots = [one.slot for one in sequences]
        prompts = {
            one.slot: one.request.prompt_token_ids
            for one, shared in zip(sequences, known, strict=True)
            if shared.adaptive and shared.verifies
        }
        self._attempted.attempt(self._drafting.admit, np.array(slots), running, prompts)
        if np.any(table.masks[slots] < 0):
            table.make_windows_plain()
        self._plan_windows()
        if not self._attempted.is_on:
            table.make_windows_plain()
        state = self._state
        state.set_windows(table)
        table.rows[slots] = state.setup(
            [one.request for one in sequences],
            slots,
            [one.group for one in known],
            [one.stop_ids for one in known],
            [one.bad_words for one in sequences],
        )
        self._constraints.open(sequences, state)

    def _shared_of(self, params: SamplingParams) -> _Shared:
        key = (params.strategy, params.window_size, params.stop_token_ids, params.ignore_eos)
        found = self._shared.get(key)
        if found is None:
            own = () if params.ignore_eos else self._eos
            if len(self._shared) >= _SHARED:
                self._shared.clear()
            found = self._shared[key] = _Shared(
                stop_ids=tuple(dict.fromkeys((*params.stop_token_ids, *own))),
                group=self._groups[params.strategy],
                verifies=self._decodings[params.strategy].verifies,
                adaptive=params.adaptive,
                window=-1 if params.adaptive else params.window,
            )
        return found
