"""Sequences with a grammar: their drafts, and the tokens that are allowed on each of their rows.

After each forward its commits are read and the next window is drafted: forced tokens (without mask rows) and allowed
proposals. Before each forward threads begin to compute the allowed tokens of its rows
(:mod:`wedlm_core.engine.mask_lines`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import torch

from wedlm_core.decoding.allowed_tokens import AllowedTokens
from wedlm_core.engine.drafting.windows import Suggestions
from wedlm_core.engine.forward.device_state import DeviceState
from wedlm_core.engine.forward.transfer import to_device
from wedlm_core.engine.mask_lines import Filler, MaskLines, executor_of, filler, raised
from wedlm_core.engine.scheduling.scheduler import ForwardPlan
from wedlm_core.engine.scheduling.sequence import Sequence
from wedlm_core.engine.scheduling.slots import BoolArray, IntArray, SlotTable, StepOutcome
from wedlm_core.errors import explain
from wedlm_core.fallback import Optimisation
from wedlm_core.grammar import Grammar, GrammarCompiler, Proposals
from wedlm_core.kernels.cpu.grammar_columns import PAYING, REFUSED, Drafted, Proposed
from wedlm_core.kernels.cpu.grammar_rows import collect_commits
from wedlm_core.kernels.cpu.grammar_windows import note_windows, write_windows
from wedlm_core.statistics import DraftSource
from wedlm_core.structured_outputs import StructuredOutputs
from wedlm_core.tokenizer import Tokenizer

__all__ = ["Constraints", "refusal"]

_LARGE_VOCABULARY = 16_384  # a state of 1,024 tokens takes 1.5 us, one of 151,936 up to 1,000: then threads pay


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
        self._fill: Filler | None = None
        self._wide_S = np.full(len(table.rows), 2)  # rows of a window that is written whatever is drafted

    def compile(self, wanted: StructuredOutputs) -> Grammar:
        """The compiled grammar of a request.

        Raises:
            RequestError: it cannot be compiled, or allows nothing.
        """
        if self._compiler is None:
            self._compiler = GrammarCompiler(
                self._tokenizer.to_json(), self._vocab_size, self._eos, origins=self._threads
            )
            executor = executor_of(self._threads, background=self._background)
            self._fill = filler(executor, background=self._background)
        return self._compiler.compile(wanted)

    def open(self, sequences: Iterable[Sequence], state: DeviceState) -> None:
        """Draft the first windows of new sequences, whose slots are set up."""
        own, most, masks = list[Sequence](), list[int](), list[int]()
        table = self._table
        for one in sequences:
            if one.grammar is None:
                continue
            slot, begin = one.slot, one.grammar.constraint
            one.constraint = self._guard.attempt(begin) or self._guard.attempt(begin)
            table.constrained[slot] = True
            own.append(one)
            most.append(min(2 * int(table.widest[slot]), int(table.limit[slot] - table.generated[slot])))
            masks.append(int(table.masks[slot]))
        if own:
            proposed = Proposed.first([one.slot for one in own], most, masks)
            self._write(proposed, self._draft(own, proposed)[0], self._wide_S, state)

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
        """Take in a forward's commits and draft the next windows of the sequences that go on.

        Args:
            sequences: of the forward, the decoding ones first.
            slots_D: slots of the decoding ones.
            rows_D: decode rows of each.
            outcome: of the forward.
            emit_D: how much of that is output.
            ended_D: which of them have ended.
            found: drafts from history for some of them.
            state: of each slot on the device.

        Returns:
            Why a sequence fails, by its place: its grammar refuses a committed token.
        """
        table = self._table
        count = int(np.count_nonzero(table.constrained[slots_D]))
        if not count:
            return {}
        proposed = Proposed(
            np.empty((10, count), dtype=np.int64), outcome.token_DC,
            np.empty((len(slots_D), 0), dtype=np.int32) if found is None else found.token_DP,
        )  # fmt: skip
        collect_commits(
            slots_D, rows_D, emit_D, ended_D, outcome.count_D, outcome.next_valid_D, table.constrained,
            table.keep_valid, table.keep_stale, table.widest, table.limit, table.generated, table.masks,
            proposed.numbers_10G,
        )  # fmt: skip
        if found is not None:
            proposed.numbers_10G[PAYING] = found.take_D[proposed.places]
        drafted, failed = self._draft(sequences, proposed)
        self._write(proposed, drafted, outcome.next_rows_D, state)
        return {int(proposed.places[g]): reason for g, reason in failed.items()}

    def _draft(self, sequences: list[Sequence], proposed: Proposed) -> tuple[Drafted, dict[int, str]]:
        """The next windows of G sequences, and why some fail, by their line."""
        drafted = Drafted.empty(len(proposed.slots), self._table.source.shape[1])
        failed = dict[int, str]()
        numbers, tokens = proposed.numbers_10G[1:].T.tolist(), proposed.token_DC[proposed.places].tolist()
        attempt = self._guard.attempt
        for g, (own, chosen) in enumerate(zip(numbers, tokens, strict=True)):
            one, theirs_P = sequences[own[-1]], proposed.theirs_DP[own[-1]]
            reason = attempt(_ask_matcher, one, theirs_P, own, chosen, drafted, g)
            if reason is None:
                reason = attempt(_begin_again, one, self._table.tokens_of(one.slot), drafted, g)
            if reason is None:
                reason, one.constraint = raised(self._guard), None
            if reason:
                failed[g], drafted.outcome[g] = refusal(one, reason), REFUSED
        return drafted, failed

    def _write(self, proposed: Proposed, drafted: Drafted, next_rows_D: IntArray, state: DeviceState) -> None:
        """Write windows that changed to the table and the device; ``next_rows_D``: rows of those that there were."""
        table, numbers_10G = self._table, proposed.numbers_10G
        if not note_windows(numbers_10G, *drafted, next_rows_D, self._mask, table.source, table.rows):
            return
        if not self._background:
            windows = state.windows_of(proposed.slots)  # those of all slots
            parts = windows.token, windows.filled, windows.lead, windows.length
            write_windows(numbers_10G, drafted.numbers_4G, drafted.token_GL, *parts)
            return
        changed_G = drafted.changed
        lead_G, masks_G = drafted.lead[changed_G], drafted.masks[changed_G]
        state.set_drafts(proposed.slots[changed_G], drafted.token_GL[changed_G], lead_G, lead_G + masks_G)

    def begin(self, plan: ForwardPlan, state: DeviceState) -> None:
        """Begin to compute the allowed tokens of a forward's rows; ``DeviceState.allowed_tokens`` waits for them."""
        state.allowed = None
        if self._fill is None:
            return
        decoding = int(np.count_nonzero(plan.decode_S))
        own_G = np.flatnonzero(self._table.constrained[plan.slots_S[:decoding]])
        if not len(own_G):
            return
        lines = MaskLines(
            slots=len(self._table.constrained), vocab_size=self._vocab_size, eos_token_ids=self._eos, guard=self._guard
        )
        slot_G, position_G = plan.slots_S[own_G], (plan.cached_S + plan.prefill_S + 1)[own_G]
        for place, slot, position in zip(own_G.tolist(), slot_G.tolist(), position_G.tolist(), strict=True):
            constraint = plan.sequences[place].constraint
            if constraint is not None:
                lines.add(slot, constraint, position)
        state.allowed = _Pending(lines, self._fill(lines), state.device)


def _ask_matcher(
    sequence: Sequence, theirs_P: np.ndarray, numbers: list[int], chosen: list[int], drafted: Drafted, g: int
) -> str:
    """Take in commits of a sequence and draft its next window; why its grammar refuses them, or nothing.

    Args:
        sequence: with a grammar.
        theirs_P: int32, drafts from history.
        numbers: of the sequence, from the column after its slot (:class:`Proposed`).
        chosen: tokens that the forward's rows chose.
        drafted: written.
        g: the line of the sequence there.
    """
    emitted, count, rows, kept, most, masks, paying, goes_on, _ = numbers
    constraint = sequence.constraint
    if constraint is None:
        return "the grammar library failed before the first token (the log has the cause)"
    before = constraint.drafts.tokens
    reason = constraint.accept(chosen[:emitted])
    if reason is not None or not goes_on:
        return reason or ""
    if paying:
        offered = Proposals(theirs_P[:paying].tolist(), paying, DraftSource.HISTORY)
    else:
        # The rows after the drafts are masks, whose proposals are for the places after the drafts.
        after = [*before, *chosen[len(before) + 1 : rows]][count:]
        offered = Proposals(after, min(kept, len(after)), DraftSource.MASK)
    tokens, sources, _ = constraint.draft(offered, most=most)
    drafted.token_GL[g, : len(tokens)], drafted.source_GL[g, : len(tokens)] = tokens, sources
    drafted.lead[g] = len(tokens)
    drafted.masks[g] = 0 if constraint.ends else max(0, min(masks, most - len(tokens)))
    return ""


def _begin_again(sequence: Sequence, tokens: list[int], drafted: Drafted, g: int) -> str:
    """Replace a constraint that raised: a new matcher reads the output as autoregressive decoding does, without drafts.

    Args:
        sequence: with a grammar.
        tokens: of its output so far.
        drafted: written.
        g: the line of the sequence there.

    Returns:
        Why its grammar refuses them, or nothing.
    """
    assert sequence.grammar is not None
    constraint = sequence.constraint = sequence.grammar.constraint()
    constraint.renew(fresh=True)
    nothing = Proposals((), 0, DraftSource.MASK)
    constraint.draft(nothing, most=0)
    for token in tokens:
        reason = constraint.accept([token])
        if reason is not None:
            return reason
        constraint.draft(nothing, most=0)
    drafted.lead[g] = drafted.masks[g] = 0
    return ""


class _Pending:
    """Allowed tokens on their way: waited for, and brought to the device, when they are asked for first.

    Args:
        lines: of the sequences.
        wait: until they are filled.
        device: of the logits.
    """

    def __init__(self, lines: MaskLines, wait: Callable[[], None], device: torch.device) -> None:
        self._lines, self._wait, self._device = lines, wait, device
        self._known: AllowedTokens | None = None

    def __call__(self) -> AllowedTokens:
        """The allowed tokens."""
        if self._known is None:
            self._wait()
            first_S, count_S, position_S = to_device(self._lines.facts(), self._device)
            self._known = AllowedTokens(
                bits_UW=to_device(self._lines.bits_UW, self._device),
                line_N=to_device(self._lines.line_N, self._device),
                first_S=first_S,
                count_S=count_S,
                position_S=position_S,
            )
        return self._known
