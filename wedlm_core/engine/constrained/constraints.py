"""The sequences of an engine that have a grammar: their drafts, and the tokens that are allowed on each of their rows.

After each forward its commits are consumed and the next window is drafted: tokens that the grammar forces, without
a mask row, and proposals that it allows. Before each forward the tokens that its rows may choose are computed
(:mod:`wedlm_core.engine.constrained.grammar_masks`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from collections.abc import Sequence as Seq
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from llguidance import LLExecutor

from wedlm_core.decoding.allowed_tokens import AllowedTokens
from wedlm_core.engine.constrained.grammar_masks import Executor, GrammarMasks, raised
from wedlm_core.engine.constrained.matching import Constraint, Proposals
from wedlm_core.engine.drafting.windows import Suggestions
from wedlm_core.engine.forward.device_state import DeviceState
from wedlm_core.engine.scheduling.scheduler import ForwardPlan
from wedlm_core.engine.scheduling.sequence import Sequence
from wedlm_core.engine.scheduling.slots import BoolArray, IntArray, SlotTable, StepOutcome
from wedlm_core.errors import explain
from wedlm_core.fallback import Optimisation
from wedlm_core.grammar import Grammar, GrammarCompiler
from wedlm_core.statistics import DraftSource
from wedlm_core.structured_outputs import StructuredOutputs
from wedlm_core.tokenizer import Tokenizer

_LARGE_VOCABULARY = 16_384  # a state of 1,024 tokens takes 1.5 us, one of 151,936 up to 1,000: then threads pay
_NOTHING = Proposals((), 0, DraftSource.MASK)


def refusal(sequence: Sequence, reason: str) -> str:
    """Why a sequence with a grammar failed, as its generation's error."""
    wanted = sequence.request.params.structure
    assert wanted is not None
    remedy = "Simplify it, or drop bad_words and logit_bias where they forbid tokens that it needs."
    return explain(f"structured_outputs.{wanted.kind}", getattr(wanted, wanted.kind), reason, remedy)


class Constraints:
    """The grammars of one engine. Their threads and compiler are made for the first request with a grammar.

    Args:
        tokenizer: the model's.
        vocab_size: of its logits.
        eos_token_ids: tokens that end an output.
        table: slots; ``constrained`` and ``source`` are written, and ``rows`` where windows are drafted.
        mask_token_id: the token of a mask.
        device: of the logits.
        threads: that compute which tokens are allowed.
        guard: counts exceptions of grammars. A row whose grammar raises goes on with a new matcher, or fails alone.

    Attributes:
        are_used: whether any request had a grammar.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        vocab_size: int,
        eos_token_ids: tuple[int, ...],
        table: SlotTable,
        mask_token_id: int,
        device: torch.device,
        threads: int,
        guard: Optimisation,
    ) -> None:
        self._tokenizer, self._vocab_size = tokenizer, vocab_size
        self._eos = tuple(token for token in eos_token_ids if token < vocab_size)
        self._table, self._mask, self._guard = table, mask_token_id, guard
        self._background = device.type != "cpu"
        self._threads = threads if self._background or vocab_size >= _LARGE_VOCABULARY else 1
        self._compiler: GrammarCompiler | None = None
        self.are_used = False
        self._executor: Executor = None
        self._waiter: ThreadPoolExecutor | None = None  # waits for masks in place of the engine's thread

    def compile(self, wanted: StructuredOutputs) -> Grammar:
        """The compiled grammar of a request.

        Raises:
            RequestError: it cannot be compiled, or allows nothing.
        """
        self.are_used = True
        if self._compiler is None:
            self._compiler = GrammarCompiler(
                self._tokenizer.to_json(), self._vocab_size, self._eos, origins=self._threads
            )
            if self._background:
                self._waiter = ThreadPoolExecutor(1, thread_name_prefix="grammar")
            if self._background or self._threads > 1:
                self._executor = LLExecutor(self._threads)
        return self._compiler.compile(wanted)

    def open(self, sequences: Seq[Sequence], state: DeviceState) -> None:
        """Draft the first windows of new sequences, whose slots are set up."""
        own = [(one, one.grammar) for one in sequences if one.grammar is not None]
        if not own:
            return
        slots_G = np.array([one.slot for one, _ in own])
        self._table.constrained[slots_G] = True
        windows = _Windows(self._table, slots_G, self._mask)
        for g, (one, grammar) in enumerate(own):
            self._attempt(_begin, one, windows, g, grammar)
        self._write(windows, windows.is_drafted_G, state)

    def accept(
        self,
        sequences: list[Sequence],
        slots_D: IntArray,
        rows_D: IntArray,
        outcome: StepOutcome,
        emit_D: IntArray,
        ended_D: BoolArray,
        found: Suggestions | None,
        state: DeviceState,
    ) -> dict[int, str]:
        """Consume a forward's commits and draft the next windows of the sequences that go on.

        The decoding ones are the first ``sequences``. Of each, ``emit_D`` tokens are output; ``ended_D`` have ended;
        some have drafts from history (``found``).

        Returns:
            Why a sequence fails, by its place: its grammar refuses a committed token.
        """
        table, own_G = self._table, np.flatnonzero(self._table.constrained[slots_D])
        if not len(own_G):
            return {}
        slots_G, rows_G, count_G = slots_D[own_G], rows_D[own_G], outcome.count_D[own_G]
        kept_G = np.where(outcome.next_valid_D[own_G], table.keep_valid[slots_G], table.keep_stale[slots_G])
        kept_G = np.maximum(np.minimum(kept_G, rows_G - 1 - count_G), 0)
        windows, failed = _Windows(table, slots_G, self._mask), dict[int, str]()
        numbers_5G = np.stack((own_G, emit_D[own_G], count_G, rows_G, kept_G)).tolist()
        for g, (place, emitted, count, rows, kept) in enumerate(zip(*numbers_5G, strict=True)):
            sequence, chosen = sequences[place], outcome.token_DC[place, :rows].tolist()
            drafted = None if found is None else _of_history(found, place)
            commit = (chosen, emitted, count, kept, drafted, bool(ended_D[place]))
            if reason := self._attempt(_follow, sequence, windows, g, *commit):
                failed[place] = refusal(sequence, reason)
        # A window of a head alone stays where nothing is drafted.
        changed_G = windows.is_drafted_G & ~ended_D[own_G] & ((outcome.next_rows_D[own_G] > 1) | (windows.length_G > 0))
        self._write(windows, changed_G, state)
        return failed

    def _attempt(self, call: Callable[..., str], sequence: Sequence, windows: _Windows, g: int, *given: Any) -> str:
        """Consume and draft by a call, and begin again if it raises; why the sequence fails, or ``""``."""
        reason = self._guard.attempt(call, sequence, windows, g, *given)
        if reason is None:
            reason = self._guard.attempt(_begin_again, sequence, windows, g, self._table.tokens_of(sequence.slot))
        if reason is None:
            reason, sequence.constraint = raised(self._guard), None
        return reason

    def _write(self, windows: _Windows, changed_G: BoolArray, state: DeviceState) -> None:
        """Write the windows that changed to the table and the device."""
        self._table.source[windows.slots_G] = windows.source_GL
        if not np.count_nonzero(changed_G):
            return
        slots_G, lead_G, length_G = (one[changed_G] for one in (windows.slots_G, windows.lead_G, windows.length_G))
        self._table.rows[slots_G] = 1 + length_G
        state.set_drafts(slots_G, windows.token_GL[changed_G], lead_G, length_G)

    def begin(self, plan: ForwardPlan, state: DeviceState) -> None:
        """Begin to compute the allowed tokens of a forward's rows; ``DeviceState.allowed_tokens`` waits for them."""
        state.allowed = None
        decoding = int(np.count_nonzero(plan.decode_S))
        own_G = np.flatnonzero(self._table.constrained[plan.slots_S[:decoding]])
        if not len(own_G):
            return
        masks = GrammarMasks(
            slots=len(self._table.constrained), vocab_size=self._vocab_size, eos_token_ids=self._eos, guard=self._guard
        )
        slot_G, position_G = plan.slots_S[own_G], (plan.cached_S + plan.prefill_S + 1)[own_G]
        for place, slot, position in zip(own_G.tolist(), slot_G.tolist(), position_G.tolist(), strict=True):
            constraint = plan.sequences[place].constraint
            if constraint is not None:
                masks.add(slot, constraint, position)
        filled = None if self._waiter is None else self._waiter.submit(masks.fill, self._executor)
        if filled is None:
            masks.fill(self._executor)

        @functools.cache
        def allowed() -> AllowedTokens:
            """Wait, and copy to the device, when they are first needed."""
            if filled is not None:
                filled.result()
            return masks.allowed(state.device)

        state.allowed = allowed


def _begin(sequence: Sequence, windows: _Windows, g: int, grammar: Grammar) -> str:
    """Draft the first window of a sequence."""
    sequence.constraint = Constraint(grammar)
    windows.draft(g, sequence.constraint, _NOTHING)
    return ""


def _follow(
    sequence: Sequence, windows: _Windows, g: int, chosen: list[int], emitted: int, committed: int, kept: int,
    history: Proposals | None, ended: bool,
) -> str:  # fmt: skip
    """Consume a commit of a sequence and draft its next window, at place ``g``; why its grammar refuses it, or ``""``.

    Of the tokens that its rows ``chosen``, those of masks after those of drafts, ``committed`` are committed and
    ``emitted`` are output. At most ``kept`` proposals of masks become drafts, if there are none from history that pay.
    """
    constraint = sequence.constraint
    if constraint is None:
        return "the grammar library failed before the first token (the log has the cause)"
    before = constraint.drafts.tokens
    reason = constraint.accept(chosen[:emitted])
    if reason is not None or ended:
        return reason or ""
    # The rows after the drafts are masks, whose proposals are for the places after the drafts.
    after = [*before, *chosen[len(before) + 1 :]][committed:]
    windows.draft(g, constraint, history or Proposals(after, min(kept, len(after)), DraftSource.MASK))
    return ""


def _begin_again(sequence: Sequence, windows: _Windows, g: int, tokens: list[int]) -> str:
    """Replace a constraint that raised by one that reads the output without drafts; why it refuses that, or ``""``."""
    assert sequence.grammar is not None
    constraint = sequence.constraint = Constraint(sequence.grammar)
    constraint.renew(fresh=True)
    constraint.draft(_NOTHING, most=0)
    for token in tokens:
        reason = constraint.accept([token])
        if reason is not None:
            return reason
        constraint.draft(_NOTHING, most=0)
    windows.empty(g)
    return ""


def _of_history(found: Suggestions, place: int) -> Proposals | None:
    """The drafts from history for a sequence; None where it has none that pay."""
    paying = int(found.take_D[place])
    return Proposals(found.token_DP[place, :paying].tolist(), paying, DraftSource.HISTORY) if paying else None


class _Windows:
    """The next windows of G sequences, of at most L drafts and masks; a head alone until they are drafted.

    Attributes:
        token_GL: int64, drafts, and after them the mask token; ``source_GL`` int8, of each draft.
        lead_G: int64, drafts; ``length_G`` int64, drafts and masks.
    """

    def __init__(self, table: SlotTable, slots_G: IntArray, mask_token_id: int) -> None:
        self.slots_G, shape = slots_G, (len(slots_G), table.source.shape[1])
        self._most = np.minimum(2 * table.widest[slots_G], table.left(slots_G)).tolist()
        self._masks = table.masks[slots_G].tolist()
        self.token_GL = np.full(shape, mask_token_id, dtype=np.int64)
        self.source_GL = np.full(shape, DraftSource.MASK, dtype=np.int8)
        self.lead_G, self.length_G = np.zeros((2, len(slots_G)), dtype=np.int64)
        self.is_drafted_G = np.zeros(len(slots_G), dtype=np.bool_)

    def draft(self, g: int, constraint: Constraint, offered: Proposals) -> None:
        """Draft the window of a sequence: tokens that its grammar forces, or allows of ``offered``, then masks."""
        most = self._most[g]
        drafts = constraint.draft(offered, most=most)
        lead = len(drafts.tokens)
        self.token_GL[g, :lead], self.source_GL[g, :lead] = drafts.tokens, drafts.sources
        self.lead_G[g], self.is_drafted_G[g] = lead, True
        self.length_G[g] = lead if drafts.ends else lead + max(0, min(self._masks[g], most - lead))

    def empty(self, g: int) -> None:
        """Leave the head of a sequence alone in its window."""
        self.lead_G[g] = self.length_G[g] = 0
        self.is_drafted_G[g] = True
