"""New sequences: made from requests; once they have a slot, put in the slot table, on the device and in drafting."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from wedlm_core.config import EngineConfig
from wedlm_core.decoding.stop_strings import StopStrings, check_words
from wedlm_core.engine.parts import Parts
from wedlm_core.engine.scheduling.scheduler import context_length
from wedlm_core.engine.scheduling.sequence import Sequence
from wedlm_core.tokenizer import TextStream, Tokenizer
from wedlm_core.types import Request, SamplingParams


class Opening:
    """Makes sequences and opens their slots."""

    def __init__(
        self, parts: Parts, tokenizer: Tokenizer, config: EngineConfig, plan_windows: Callable[[], None]
    ) -> None:
        self._tokenizer, self._config, self._pages = tokenizer, config, parts.pages
        self._table, self._drafting, self._state = parts.table, parts.drafting, parts.runner.state
        self._constraints = parts.constraints
        self._decodings, self._groups, self._eos = parts.decodings, parts.groups, parts.eos_token_ids
        self._plan_windows, self._attempted = plan_windows, parts.optimisations.drafting

    def sequence_of(self, request: Request, arrival: int) -> Sequence:
        """A request that was checked, as a sequence without a slot; its words and its grammar may still be refused."""
        params = request.params
        sequence = Sequence(
            request=request,
            arrival=arrival,
            head=self._decodings[params.strategy].head,
            widest=self._widest(request) if params.adaptive else params.window,
            stops=self._stops_of(params) if params.stop else None,
            bad_words=check_words(self._tokenizer, tuple(params.bad_words)) if params.bad_words else (),
        )
        if params.structure is not None:
            sequence.grammar = self._constraints.compile(params.structure)
        return sequence

    def _stops_of(self, params: SamplingParams) -> StopStrings:
        return StopStrings(tuple(params.stop), TextStream(self._tokenizer), after=params.min_tokens)

    def _widest(self, request: Request) -> int:
        """The largest window that the KV pool could hold with the whole request, ``max_window`` at most."""
        total = len(request.prompt_token_ids) + request.params.max_tokens + 1
        return max(0, min(self._config.max_window, (self._pages.capacity_tokens - total) // 2))

    def open(self, sequences: list[Sequence], running: int) -> None:
        """Fill the table and the device state of sequences that just got a slot; ``running`` ones with them."""
        table, now = self._table, time.perf_counter()
        stop_ids = [self._stop_ids(one.request.params) for one in sequences]
        for sequence, own in zip(sequences, stop_ids, strict=True):
            slot, params = sequence.slot, sequence.request.params
            table.set_stop_ids(slot, own)
            table.set_limit(slot, params.max_tokens)
            if params.top_logprobs:
                table.tops.open(slot, params.max_tokens, params.top_logprobs)
            table.context[slot], table.group[slot] = context_length(sequence), self._groups[params.strategy]
            table.adaptive[slot], table.widest[slot] = params.adaptive, sequence.widest
            table.masks[slot] = table.keep_valid[slot] = table.keep_stale[slot] = (
                -1 if params.adaptive else params.window
            )
            table.head[slot], table.watched[slot] = sequence.head, sequence.stops is not None
            sequence.started_at = now
        slots = [one.slot for one in sequences]
        prompts = {
            one.slot: one.request.prompt_token_ids
            for one in sequences
            if one.request.params.adaptive and self._decodings[one.request.params.strategy].verifies
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
            [self._groups[one.request.params.strategy] for one in sequences],
            stop_ids,
            [one.bad_words for one in sequences],
        )
        self._constraints.open(sequences, state)

    def _stop_ids(self, params: SamplingParams) -> tuple[int, ...]:
        """Tokens that end an output."""
        own = () if params.ignore_eos else self._eos
        return tuple(dict.fromkeys((*params.stop_token_ids, *own)))
