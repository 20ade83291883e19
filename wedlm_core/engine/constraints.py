"""Sequences with a grammar: their drafts, and the tokens that are allowed on each of their rows.

After each forward a sequence's constraint takes in what was committed and drafts the next window: tokens that the
grammar forces, which need no mask row, and proposals that it allows. :mod:`wedlm_core.engine.mask_lines` computes what
the rows of a forward may choose, :mod:`wedlm_core.engine.free_choices` judges what they chose where that was left open.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from wedlm_core.decoding.allowed_tokens import AllowedTokens, Refusals, words_of_vocabulary
from wedlm_core.engine.forward.device_state import DeviceState
from wedlm_core.engine.forward.transfer import to_device
from wedlm_core.engine.free_choices import FreeChoices, FreeSequence
from wedlm_core.engine.history_drafts import LEAST_ACCEPTANCE, Suggestions
from wedlm_core.engine.mask_lines import Executor, Filler, MaskLines, executor_of, filler, mask_lines
from wedlm_core.engine.scheduling.scheduler import ForwardPlan
from wedlm_core.engine.scheduling.sequence import Sequence
from wedlm_core.engine.scheduling.slots import BoolArray, FloatArray, IntArray, SlotTable, StepOutcome
from wedlm_core.engine.windows.planner import WindowPlanner
from wedlm_core.errors import explain
from wedlm_core.grammar import Constraint, Grammar, GrammarCompiler, Proposals
from wedlm_core.statistics import DraftSource
from wedlm_core.structured_outputs import StructuredOutputs
from wedlm_core.tokenizer import Tokenizer

__all__ = ["Constraints", "refusal"]

# A state of 1,024 tokens takes 1.5 us, one of 151,936 up to 1,000: then threads pay, and so does trying the next best.
_LARGE_VOCABULARY = 16_384
_NOTHING = Proposals(tokens=(), most=0, source=DraftSource.MASK)


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
    ) -> None:
        self._tokenizer, self._vocab_size = tokenizer, vocab_size
        self._eos = tuple(token for token in eos_token_ids if token < vocab_size)
        self._table, self._planner, self._mask = table, planner, mask_token_id
        self._background = device.type != "cpu"
        self._threads = threads if self._background or vocab_size >= _LARGE_VOCABULARY else 1
        self._compiler: GrammarCompiler | None = None
        self._fill: Filler | None = None
        self._executor: Executor = None
        self._bits_SW = np.empty((0, 0), dtype=np.int32)  # of choices that are made again

    def compile(self, wanted: StructuredOutputs) -> Grammar:
        """The compiled grammar of a request.

        Raises:
            RequestError: it cannot be compiled, or allows nothing.
        """
        if self._compiler is None:
            self._compiler = GrammarCompiler(
                self._tokenizer.to_json(), self._vocab_size, self._eos, origins=self._threads
            )
        return self._compiler.compile(wanted)

    def open(self, sequences: Iterable[Sequence], state: DeviceState) -> None:
        """Draft the first windows of new sequences, whose slots are set up."""
        constraints = {one.slot: one.constraint for one in sequences if one.constraint is not None}
        if not constraints:
            return
        slots_G = np.array([*constraints], dtype=np.int64)
        self._table.constrained[slots_G] = True
        rooms = self._rooms(slots_G, np.ones(len(slots_G), dtype=np.bool_))
        self._write([_drafted(constraints[room.slot], _NOTHING, room) for room in rooms], state)

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
        own_G = np.flatnonzero(self._table.constrained[slots_D])
        if not len(own_G):
            return {}
        failed, windows, known, gained = {}, [], self._found(found), 0.0
        rooms = self._rooms(slots_D[own_G], outcome.next_valid_D[own_G])
        counts = (column[own_G].tolist() for column in (rows_D, emit_D, outcome.count_D, outcome.next_rows_D))
        places = zip(own_G.tolist(), rooms, outcome.token_DC[own_G].tolist(), *counts, strict=True)
        for i, room, chosen, rows, emitted, count, next_rows in places:
            constraint = sequences[i].constraint
            assert constraint is not None
            before = constraint.drafts.tokens
            reason = constraint.accept(chosen[:emitted])
            if reason is not None:
                failed[i] = refusal(sequences[i], reason)
            elif not ended_D[i]:
                offer = _NO_OFFER
                if room.kept or known is not None:
                    # The rows behind the drafts' are masks, which proposed for the places behind the drafts.
                    offer = self._offer(room, [*before, *chosen[len(before) + 1 : rows]][count:], known)
                window = _drafted(constraint, offer.proposals, room)
                if offer.acceptance_D is not None:
                    gained += self._gain(offer, window)
                if window.tokens or window.masks or next_rows > 1:  # else the forward left it so: a head alone
                    windows.append(window)
        if found is not None:
            found.saved_seconds += self._planner.seconds_of(gained)
        self._table.source[slots_D[own_G]] = 0
        self._write(windows, state)
        return failed

    def _rooms(self, slots_G: IntArray, valid_G: BoolArray) -> list[_Room]:
        """What the next windows of sequences have room for."""
        table = self._table
        left_G, places_G = table.limit[slots_G] - table.generated[slots_G], 2 * table.widest[slots_G]
        kept_G = np.maximum(np.where(valid_G, table.keep_valid[slots_G], table.keep_stale[slots_G]), 0)
        columns = (slots_G, valid_G, kept_G, np.minimum(places_G, left_G), table.masks[slots_G])
        return [_Room(*one) for one in zip(*(column.tolist() for column in columns), strict=True)]

    def _offer(self, room: _Room, masks: list[int], found: _Found | None) -> _Offer:
        """The proposals of masks, or of history where these are likelier to be right."""
        own = Proposals(masks, min(room.kept, len(masks)), DraftSource.MASK)
        line = -1 if found is None else found.line_S.get(room.slot, -1)
        if found is None or line < 0:
            return _Offer(own)
        paying = int(found.paying_G[line])
        promised = float(found.masks_2GW[int(room.valid), line, : own.most].sum())
        if float(found.promised_G[line]) <= promised:
            return _Offer(own)
        theirs = Proposals(found.token_GD[line, :paying].tolist(), paying, DraftSource.HISTORY)
        return _Offer(theirs, found.acceptance_GD[line], promised - self._planner.row_price * own.most)

    def _gain(self, offer: _Offer, window: _Window) -> float:
        """Commits that are expected of the drafts that history gave a window, less those that their rows cost.

        Where the grammar forces a token, or forbids what history proposes, history gave nothing.
        """
        assert offer.acceptance_D is not None
        places = [place for place, source in enumerate(window.sources) if source == DraftSource.HISTORY]
        return float(offer.acceptance_D[places].sum()) - self._planner.row_price * len(places) - offer.instead

    def _found(self, found: Suggestions | None) -> _Found | None:
        """What history proposes, and what masks promise in the same sequences."""
        if found is None:
            return None
        slots_G, acceptance_GD = found.slots_G, found.acceptance_GD
        pays_GD = acceptance_GD >= max(self._planner.row_price, LEAST_ACCEPTANCE)  # it falls along a sequence
        return _Found(
            line_S={slot: line for line, slot in enumerate(slots_G.tolist())},
            token_GD=found.token_GD,
            acceptance_GD=acceptance_GD,
            paying_G=pays_GD.sum(axis=1),
            promised_G=np.where(pays_GD, acceptance_GD, 0.0).sum(axis=1),
            masks_2GW=np.stack(
                [self._planner.mask_acceptance(slots_G, np.full(len(slots_G), v)) for v in (False, True)]
            ),
        )

    def _write(self, windows: list[_Window], state: DeviceState) -> None:
        if not windows:
            return
        table = self._table
        slots_G = np.array([window.slot for window in windows], dtype=np.int64)
        lead_G = np.array([len(window.tokens) for window in windows], dtype=np.int64)
        masks_G = np.array([window.masks for window in windows], dtype=np.int64)
        token_GL = np.full((len(windows), table.source.shape[1]), self._mask, dtype=np.int64)
        source_GL = np.zeros_like(token_GL, dtype=table.source.dtype)
        drafts_GL = np.arange(token_GL.shape[1]) < lead_G[:, None]
        token_GL[drafts_GL] = [token for window in windows for token in window.tokens]
        source_GL[drafts_GL] = [source for window in windows for source in window.sources]
        table.source[slots_G] = source_GL
        table.rows[slots_G] = 1 + lead_G + masks_G
        state.set_drafts(slots_G, token_GL, lead_G, lead_G + masks_G)

    def begin(self, plan: ForwardPlan, state: DeviceState) -> None:
        """Begin to compute what the rows of a forward may choose; :meth:`DeviceState.allowed_tokens` waits for it."""
        state.allowed = None
        decoding = int(np.count_nonzero(plan.decode_S))
        own = np.flatnonzero(self._table.constrained[plan.slots_S[:decoding]]).tolist()
        if not own:
            return
        if self._fill is None:
            words = words_of_vocabulary(self._vocab_size)
            self._bits_SW = np.empty((len(self._table.constrained), words), dtype=np.int32)
            self._executor = executor_of(self._threads, background=self._background)
            self._fill = filler(self._executor, background=self._background)
        slots = plan.slots_S[own].tolist()
        positions = (plan.cached_S[own] + plan.prefill_S[own] + 1).tolist()
        places = [
            (slot, constraint, position)
            for i, slot, position in zip(own, slots, positions, strict=True)
            if (constraint := plan.sequences[i].constraint) is not None
        ]
        free = {}
        if not self._background:
            # Rows with filters do not choose freely: what filters keep depends on what is allowed.
            filtered = np.logical_or.reduce(state.filtered[slots], axis=1).tolist()
            free = {
                slot: FreeSequence(constraint, position)
                for (slot, constraint, position), narrowed in zip(places, filtered, strict=True)
                if constraint.is_open and not narrowed and constraint.obedience.leaves_open()
            }
        lines = mask_lines(places, len(self._table.constrained), self._vocab_size, self._eos, free)
        large = self._vocab_size >= _LARGE_VOCABULARY
        refusals = FreeChoices(free, self._bits_SW, self._executor, ranks=large) if free else None
        state.allowed = _Pending(lines, self._fill(lines), state.device, refusals)


def _drafted(constraint: Constraint, proposals: Proposals, room: _Room) -> _Window:
    """The next window of a sequence: drafts, and behind them the masks that are planned."""
    tokens, sources, _ = constraint.draft(proposals, most=room.most)
    masks = 0 if constraint.ends else min(room.masks, room.most - len(tokens))
    return _Window(room.slot, tokens, sources, max(masks, 0))


class _Room(NamedTuple):
    """What the next window of a sequence has room for.

    Attributes:
        slot: of the sequence.
        valid: whether the prefix of its proposals is valid.
        kept: proposals that may become drafts.
        most: drafts and masks.
        masks: that are planned.
    """

    slot: int
    valid: bool
    kept: int
    most: int
    masks: int


@dataclass(frozen=True, kw_only=True)
class _Found:
    """What history proposes for G sequences, and what masks promise there.

    Attributes:
        line_S: the line of a slot.
        token_GD: int32, proposals.
        acceptance_GD: float32, probability that each and all before it are accepted.
        paying_G: how many of them are worth a row.
        promised_G: expected commits of these.
        masks_2GW: probability that masks' drafts up to each offset are accepted: stale ones, valid ones.
    """

    line_S: dict[int, int]
    token_GD: np.ndarray
    acceptance_GD: np.ndarray
    paying_G: IntArray
    promised_G: FloatArray
    masks_2GW: FloatArray


class _Offer(NamedTuple):
    """What is proposed to one sequence.

    Attributes:
        proposals: of masks or of history.
        acceptance_D: probability that each of history's and all before it are accepted; None where these are of masks.
        instead: commits that were expected of the masks' proposals, less those that their rows cost.
    """

    proposals: Proposals
    acceptance_D: np.ndarray | None = None
    instead: float = 0.0


_NO_OFFER = _Offer(_NOTHING)


class _Window(NamedTuple):
    """A window that was drafted."""

    slot: int
    tokens: tuple[int, ...]
    sources: tuple[int, ...]
    masks: int


class _Pending:
    """Allowed tokens on their way: waited for, and brought to the device, when they are asked for first."""

    def __init__(
        self, lines: MaskLines, wait: Callable[[], None], device: torch.device, refusals: Refusals | None
    ) -> None:
        self._lines, self._wait, self._device, self._refusals = lines, wait, device, refusals
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
                refusals=self._refusals,
            )
        return self._known
