"""One request on its way through the engine. Torch-free."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from wedlm_core.decoding.stop_strings import StopStrings
from wedlm_core.engine.constrained.matching import Constraint
from wedlm_core.grammar import Grammar
from wedlm_core.kv.pages import SequencePages
from wedlm_core.types import FinishReason, Request


@dataclass(kw_only=True, eq=False)
class Sequence:
    """Host state of a request that is not in the slot table's arrays.

    Attributes:
        request: of the caller.
        arrival: order of arrival; the latest is preempted first.
        head: whether the strategy keeps a head token (see :mod:`wedlm_core.decoding.window_state`).
        widest: masks its window may have at most; the request's own window where that is fixed.
        slot: row of the slot table and of the device state; -1 before admission. A preempted sequence
            keeps its slot (and with it its window), and loses only its pages.
        pages: its KV pages; None while it has none.
        stops: watcher of stop strings, if there are any.
        bad_words: token ids of each text that must not be generated.
        grammar: that its output obeys, if any.
        constraint: its place in its grammar, if a matcher decides the allowed tokens.
        error: why it failed, where another reason is known than logits that are no numbers.
        finish: set when the sequence has ended.
    """

    request: Request
    arrival: int
    head: bool
    widest: int
    slot: int = -1
    pages: SequencePages | None = None
    stops: StopStrings | None = None
    bad_words: tuple[tuple[int, ...], ...] = ()
    grammar: Grammar | None = None
    constraint: Constraint | None = None
    finish: FinishReason | None = None
    error: str | None = None
    cached_prompt_tokens: int = 0
    preemptions: int = 0
    trace: list[Mapping[str, Any]] = field(default_factory=list)
    added_at: float = field(default_factory=time.perf_counter)
    started_at: float | None = None

    @property
    def prompt_length(self) -> int:
        """Tokens of the prompt."""
        return len(self.request.prompt_token_ids)
