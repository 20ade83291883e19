"""Sequences with a grammar: their drafts, and the tokens that are allowed on each of their rows.

After each forward what was committed is taken in and the next window is drafted: tokens that the grammar forces, which
need no mask row, and proposals that it allows. Sequences whose grammar is an automaton are walked all together
(:mod:`wedlm_core.engine.automata`); the others have matchers. For these :mod:`wedlm_core.engine.mask_lines` computes
what the rows of a forward may choose, and :mod:`wedlm_core.engine.free_choices` judges what they chose where that was
left open.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

import numpy as np
import torch

from wedlm_core.decoding.allowed_tokens import AllowedTokens, Refusals, words_of_vocabulary
from wedlm_core.engine.automata import Automata, WalkedLines
from wedlm_core.engine.forward.device_state import DeviceState
from wedlm_core.engine.forward.transfer import to_device
from wedlm_core.engine.free_choices import FreeChoices, FreeSequence
from wedlm_core.engine.history_drafts import LEAST_ACCEPTANCE, Suggestions
from wedlm_core.engine.mask_lines import Executor, Filler, MaskLines, executor_of, filler, mask_lines
from wedlm_core.engine.scheduling.scheduler import ForwardPlan
from wedlm_core.engine.scheduling.sequence import Sequence
from wedlm_core.engine.scheduling.slots import BoolArray, IntArray, SlotTable, StepOutcome
from wedlm_core.engine.windows.planner import WindowPlanner
from wedlm_core.errors import explain
from wedlm_core.fallback import Optimisation
from wedlm_core.grammar import Constraint, Grammar, GrammarCompiler, Proposals
from wedlm_core.kernels.cpu.grammar_offers import offer_history, saved_commits
from wedlm_core.kernels.cpu.grammar_rows import collect_commits
from wedlm_core.kernels.cpu.grammar_walk import ENDS_EARLY, REFUSED, Drafted, Proposed
from wedlm_core.kernels.cpu.grammar_windows import note_windows, write_windows
from wedlm_core.statistics import DraftSource
from wedlm_core.structured_outputs import StructuredOutputs
from wedlm_core.tokenizer import Tokenizer

__all__ = ["Constraints", "refusal"]

# A state of 1,024 tokens takes 1.5 us, one of 151,936 up to 1,000: then threads pay, and so does trying the next best.
_LARGE_VOCABULARY = 16_384
_REASONS = {
    REFUSED: "no token that the grammar allows was left to choose",
    ENDS_EARLY: "the output ended before it was complete",
}


def refusal(sequence: Sequence, reason: str) -> str:
    """Why a sequence with a grammar failed, as its generation's error."""
    wanted = sequence.request.params.structure
    assert wanted is not None
    remedy = "Simplify it, or drop bad_words and logit_bias where they forbid what it needs."
    return explain(f"structured_outputs.{wanted.kind}", getattr(wanted, wanted.kind), reason, remedy)


class Constraints:
    """The grammars of one engine. What they need is made when the first request brings one.

    Args:
        tokenizer: the model's.
        vocab_size: of its logits.
        eos_token_ids: tokens that end an output.
        table: slots; ``constrained`` and ``source`` are written, and ``rows`` where windows are drafted.
        planner: prices rows, and knows how likely masks' drafts are accepted.
        mask_token_id: the token of a mask.
        device: of the logits.
        threads: that compute which tokens are allowed.
        walking: guards the calls of automata.
        planning: guards those of the planner.
        judging: guards choices that are made before it is known what is allowed.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        vocab_size: int,
        eos_token_ids: tuple[int, ...],
        table: SlotTable,
        planner: WindowPlanner,
        mask_token_id: int,
        device: torch.device,
        threads: int,
        walking: Optimisation,
        planning: Optimisation,
        judging: Optimisation,
    ) -> None:
        self._tokenizer, self._vocab_size = tokenizer, vocab_size
        self._eos = tuple(token for token in eos_token_ids if token < vocab_size)
        self._table, self._planner, self._mask = table, planner, mask_token_id
        self._walking, self._planning, self._judging = walking, planning, judging
        self._background = device.type != "cpu"
        self._threads = threads if self._background or vocab_size >= _LARGE_VOCABULARY else 1
        self._compiler: GrammarCompiler | None = None
        self._automata: Automata | None = None
        self._fill: Filler | None = None
        self._executor: Executor = None
        self._bits_SW = np.empty((0, 0), dtype=np.int32)  # of choices that are made again
        self._every_S = np.arange(len(table.rows))
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
            self._automata = Automata(self._compiler, self._table, self._walking)
        return self._compiler.compile(wanted)

    @property
    def _walkers(self) -> Automata:
        """Made with the first grammar."""
        assert self._automata is not None
        return self._automata

    def open(self, sequences: Iterable[Sequence], state: DeviceState) -> None:
        """Draft the first windows of new sequences, whose slots are set up."""
        own, most, masks, walked = list[Sequence](), list[int](), list[int](), 0
        table = self._table
        for one in sequences:
            if one.grammar is None:
                continue
            slot, walks = one.slot, bool(self._walking.attempt(self._walkers.enter, one.slot, one.grammar))
            self._walkers.walks[slot] = walks
            one.constraint = None if walks else one.grammar.constraint()
            walked += walks
            table.constrained[slot] = True
            own.append(one)
            most.append(min(2 * int(table.widest[slot]), int(table.limit[slot] - table.generated[slot])))
            masks.append(int(table.masks[slot]))
        if own:
            proposed = Proposed.first([one.slot for one in own], most, masks)
            self._write(proposed, self._draft(own, proposed, walked)[0], self._wide_S, state)

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
            outcome: what the forward committed.
            emit_D: how much of that is output.
            ended_D: which of them have ended.
            found: what history proposes for some of them; what it saves where it is taken is added.
            state: what the device keeps of each slot.

        Returns:
            Why a sequence fails, by its place: its grammar refuses what was committed.
        """
        table = self._table
        count = int(np.count_nonzero(table.constrained[slots_D]))
        if not count:
            return {}
        proposed = Proposed(
            np.empty((10, count), dtype=np.int64), outcome.token_DC,
            np.empty((len(slots_D), 0), dtype=np.int32) if found is None else found.token_DP,
        )  # fmt: skip
        walked = collect_commits(
            slots_D, rows_D, emit_D, ended_D, outcome.count_D, outcome.next_valid_D, table.constrained,
            self._walkers.walks, table.keep_valid, table.keep_stale, table.widest, table.limit, table.generated,
            table.masks, proposed.numbers_10G,
        )  # fmt: skip
        numbers_10G, planner, offered = proposed.numbers_10G, self._planner, 0
        by_masks = outcome.next_valid_D, planner.by_masks_2SW
        if found is not None:
            drafts = int(np.count_nonzero(found.acceptance_DP > 0))
            price = self._planning.attempt(planner.price_of, int(np.add.reduce(outcome.next_rows_D)), drafts)
            if price is not None:
                offered = offer_history(numbers_10G, found.acceptance_DP, *by_masks, price, LEAST_ACCEPTANCE)
        drafted, failed = self._draft(sequences, proposed, walked)
        if found is not None and offered:
            results_8G, source_GL = drafted.numbers_8G, drafted.source_GL
            saved = saved_commits(numbers_10G, results_8G, source_GL, found.acceptance_DP, *by_masks, price)
            found.saved_seconds += self._planning.attempt(planner.seconds_of, saved) or 0.0
        self._write(proposed, drafted, outcome.next_rows_D, state)
        return {int(proposed.places[g]): reason for g, reason in failed.items()}

    def close(self, sequence: Sequence) -> None:
        """Walk a sequence that is over no more."""
        if sequence.grammar is not None and sequence.slot >= 0:
            self._walkers.leave(sequence.slot)

    def _draft(
        self, sequences: list[Sequence], proposed: Proposed, walked: int
    ) -> tuple[Drafted, dict[int, str]]:  # fmt: skip
        """The next windows of G sequences, and why some fail, by their line; ``walked``: how many have an automaton."""
        count = len(proposed.slots)
        drafted, failed, asked = Drafted.empty(count, self._table.source.shape[1]), dict[int, str](), list[int]()
        lines_W = self._every_S[:count]
        if walked < count:
            walks_G = self._walkers.walks[proposed.slots]
            lines_W, asked = np.flatnonzero(walks_G), np.flatnonzero(~walks_G).tolist()
        if walked:
            lost = self._walking.attempt(self._walkers.walk, proposed, drafted, lines_W)
            if lost is None:
                drafted, lost = Drafted.empty(count, self._table.source.shape[1]), lines_W.tolist()
            for g in lost:
                one = sequences[proposed.places[g]]
                one.constraint = self._walkers.give_up(int(proposed.slots[g]), int(proposed.emitted[g]))
                asked.append(g)
            if drafted.outcome.any():
                for g in np.flatnonzero(drafted.outcome).tolist():
                    failed[g] = refusal(sequences[proposed.places[g]], _REASONS[int(drafted.outcome[g])])
        if asked:
            failed |= _ask_matchers(sequences, proposed, drafted, asked)
        return drafted, failed

    def _write(self, proposed: Proposed, drafted: Drafted, next_rows_D: IntArray, state: DeviceState) -> None:
        """Write windows that changed to the table and the device; ``next_rows_D``: rows of those that there were."""
        table, numbers_10G = self._table, proposed.numbers_10G
        if not note_windows(numbers_10G, *drafted, next_rows_D, self._mask, table.source, table.rows):
            return
        if not self._background:
            windows = state.windows_of(proposed.slots)  # those of all slots
            parts = windows.token, windows.filled, windows.lead, windows.length
            write_windows(numbers_10G, drafted.numbers_8G, drafted.token_GL, *parts)
            return
        changed_G = drafted.changed
        lead_G, masks_G = drafted.lead[changed_G], drafted.masks[changed_G]
        state.set_drafts(proposed.slots[changed_G], drafted.token_GL[changed_G], lead_G, lead_G + masks_G)

    def begin(self, plan: ForwardPlan, state: DeviceState) -> None:
        """Begin to compute what the rows of a forward may choose; :meth:`DeviceState.allowed_tokens` waits for it."""
        state.allowed = None
        if self._automata is None:
            return
        decoding = int(np.count_nonzero(plan.decode_S))
        slots_D, cached_D, prefill_D = plan.slots_S[:decoding], plan.cached_S[:decoding], plan.prefill_S[:decoding]
        begun = self._walking.attempt(self._begin_walking, slots_D, cached_D, prefill_D)
        if begun is None:
            begun = int(np.count_nonzero(self._table.constrained[slots_D])), 0, None
            for i in np.flatnonzero(self._walkers.walks[slots_D]).tolist():
                plan.sequences[i].constraint = self._walkers.give_up(int(slots_D[i]), 0)
        count, walks, known = begun
        if not count:
            return
        if callable(known):
            state.allowed = known
            return
        lines, wait, walked, refusals = None, _no_wait, known, None
        if walks < count:
            asked = np.flatnonzero(self._table.constrained[slots_D] & ~self._automata.walks[slots_D])
            constraints = [plan.sequences[i].constraint for i in asked]
            positions = (cached_D + prefill_D + 1)[asked].tolist()
            places = list(zip(slots_D[asked].tolist(), constraints, positions, strict=True))
            lines, wait, refusals = self._begin_asking(
                [(slot, one, position) for slot, one, position in places if one is not None], state
            )
        state.allowed = _Pending(lines, wait, walked, state.device, refusals)

    def _begin_walking(
        self, slots_D: IntArray, cached_D: IntArray, prefill_D: IntArray
    ) -> tuple[int, int, Callable[[], AllowedTokens] | WalkedLines | None]:
        """How many sequences have a grammar, how many of these are walked, and what the rows of those may choose."""
        walkers = self._walkers
        count, walks = walkers.begin(slots_D, cached_D, prefill_D)
        if not walks:
            return count, 0, None
        return count, walks, walkers.lines() if self._background or walks < count else walkers.allowed()

    def _begin_asking(
        self, places: list[tuple[int, Constraint, int]], state: DeviceState
    ) -> tuple[MaskLines, Callable[[], None], Refusals | None]:
        """Begin to ask the matchers of sequences (slot, constraint and position of the first choice)."""
        if self._fill is None:
            words = words_of_vocabulary(self._vocab_size)
            self._bits_SW = np.empty((len(self._table.constrained), words), dtype=np.int32)
            self._executor = executor_of(self._threads, background=self._background)
            self._fill = filler(self._executor, background=self._background)
        free = {} if self._background else self._judging.attempt(_left_open, places, state) or {}
        lines = mask_lines(places, len(self._table.constrained), self._vocab_size, self._eos, free)
        refusals = None
        if free:
            closed = partial(self._closed, [one for one in places if one[0] in free], state)
            large = self._vocab_size >= _LARGE_VOCABULARY
            refusals = FreeChoices(
                free, self._bits_SW, self._executor, judging=self._judging, closed=closed, ranks=large
            )
        return lines, self._fill(lines), refusals

    def _closed(self, places: list[tuple[int, Constraint, int]], state: DeviceState) -> AllowedTokens:
        """What sequences may choose whose states were left open; their matchers may stand anywhere."""
        for _, constraint, _ in places:
            constraint.renew(fresh=True)
        lines = mask_lines(places, len(self._table.constrained), self._vocab_size, self._eos, ())
        lines.fill(self._executor)
        return _Pending(lines, _no_wait, None, state.device, None)()


def _left_open(places: list[tuple[int, Constraint, int]], state: DeviceState) -> dict[int, FreeSequence]:
    """The sequences that choose freely, by slot: none with filters, which depend on what is allowed."""
    filtered = np.logical_or.reduce(state.filtered[[slot for slot, *_ in places]], axis=1).tolist()
    return {
        slot: FreeSequence(constraint, position)
        for (slot, constraint, position), narrowed in zip(places, filtered, strict=True)
        if constraint.is_open and not narrowed and constraint.obedience.leaves_open()
    }


def _no_wait() -> None:
    """Nothing is asked."""


def _ask_matchers(sequences: list[Sequence], proposed: Proposed, drafted: Drafted, lines: list[int]) -> dict[int, str]:
    """Take in commits and draft the next windows of sequences that have matchers; why some fail, by their line."""
    failed = dict[int, str]()
    numbers, tokens = proposed.numbers_10G[1:, lines].T.tolist(), proposed.token_DC[proposed.places[lines]].tolist()
    for g, own, chosen in zip(lines, numbers, tokens, strict=True):
        emitted, count, rows, kept, most, masks, paying, goes_on, place = own
        constraint = sequences[place].constraint
        assert constraint is not None
        before = constraint.drafts.tokens
        reason = constraint.accept(chosen[:emitted])
        if reason is not None:
            failed[g], drafted.outcome[g] = refusal(sequences[place], reason), REFUSED
        elif goes_on:
            if paying:
                offered = Proposals(proposed.theirs_DP[place, :paying].tolist(), paying, DraftSource.HISTORY)
            else:
                # The rows behind the drafts' are masks, which proposed for the places behind the drafts.
                behind = [*before, *chosen[len(before) + 1 : rows]][count:]
                offered = Proposals(behind, min(kept, len(behind)), DraftSource.MASK)
            tokens, sources, _ = constraint.draft(offered, most=most)
            drafted.token_GL[g, : len(tokens)], drafted.source_GL[g, : len(tokens)] = tokens, sources
            drafted.lead[g] = len(tokens)
            drafted.masks[g] = 0 if constraint.ends else max(0, min(masks, most - len(tokens)))
    return failed


class _Pending:
    """Allowed tokens on their way: waited for, and brought to the device, when they are asked for first.

    Args:
        lines: of sequences with matchers; None where there are none.
        wait: until they are filled.
        walked: of the others; None where there are none.
        device: of the logits.
        refusals: holds free choices against their grammars.
    """

    def __init__(
        self, lines: MaskLines | None, wait: Callable[[], None], walked: WalkedLines | None, device: torch.device,
        refusals: Refusals | None,
    ) -> None:  # fmt: skip
        self._lines, self._wait, self._walked, self._device, self._refusals = lines, wait, walked, device, refusals
        self._known: AllowedTokens | None = None

    def __call__(self) -> AllowedTokens:
        """The allowed tokens."""
        if self._known is None:
            self._wait()
            found = self._walked
            if self._lines is not None:
                asked = WalkedLines(
                    bits_UW=self._lines.bits_UW, line_N=self._lines.line_N, facts_3S=self._lines.facts()
                )
                found = asked if found is None else found.beside(asked)
            assert found is not None
            first_S, count_S, position_S = to_device(found.facts_3S, self._device)
            self._known = AllowedTokens(
                bits_UW=to_device(found.bits_UW, self._device),
                line_N=to_device(found.line_N, self._device),
                first_S=first_S,
                count_S=count_S,
                position_S=position_S,
                refusals=self._refusals,
            )
        return self._known
