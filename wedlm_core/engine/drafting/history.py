"""Propose drafts from the text of a sequence and from finished rows; learn how far to trust them. Torch-free."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from wedlm_core.checks import is_whole
from wedlm_core.config.engine_config import HISTORY_TOKENS, least_history_bytes
from wedlm_core.engine.drafting.constants import CONSTANTS, DraftingConstants
from wedlm_core.engine.drafting.regions import Regions
from wedlm_core.errors import ConfigError, IntegrityError, explain
from wedlm_core.kernels.cpu import history as kernels
from wedlm_core.kernels.cpu import token_logs, votes

__all__ = ["DEFAULT_BYTES", "History", "Proposal", "check_bytes"]

IntArray = np.ndarray[tuple[int, ...], np.dtype[np.int64]]
TokenArray = np.ndarray[tuple[int, ...], np.dtype[np.integer[Any]]]

DEFAULT_BYTES = 64 << 20
_LEAST_BITS = HISTORY_TOKENS.bit_length() - 1  # log2 of the tokens of a sequence that are always remembered
_SPARE = 64  # tokens of output that a text has room for at first
_REBASE = 1 << 30  # positions are int32
_SEARCHES = 3  # sources that a proposal may go on from, one after the other
_ROW_END = np.array([token_logs.ROW_END], dtype=np.int32)


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """Drafts for S sequences, D places each.

    Attributes:
        token_SD: int32; what lies behind ``count_S`` drafts is undefined, here and in ``acceptance_SD``.
        acceptance_SD: float32, estimated probability that a draft and all before it (from here) are accepted, given
            that the drafts it stands behind are. Never rises along a sequence.
        count_S: int64, drafts proposed.
        match_S: int64, tokens of the match they follow; negative where it is in finished rows, 0 without a match.
    """

    token_SD: np.ndarray[tuple[int, int], np.dtype[np.int32]]
    acceptance_SD: np.ndarray[tuple[int, int], np.dtype[np.float32]]
    count_S: IntArray
    match_S: IntArray


class History:
    """Texts of the sequences in engine slots, and of finished rows, in bounded memory. Not thread safe.

    The longest suffix of a sequence is looked up in its own text and in the finished rows. What followed there most
    often is proposed, token by token, from the source that has shown to be right more often with such matches and
    votes; where that source ends or is in doubt, sources are compared anew behind the drafts so far. Every proposal is
    tested by the tokens that are appended next, whether or not they were its drafts, so probabilities are learned
    without any draft being bought.

    Half of the memory is for running sequences, half for finished rows. Where a text does not fit, its latest part is
    kept; finished rows are forgotten from the oldest token on.

    Args:
        slots: engine slots.
        most_drafts: D, drafts of one proposal at most.
        most_ahead: B, drafts from elsewhere that a proposal may stand behind, at most.
        max_bytes: of all tables; they take the largest power of two of tokens that fits.
        constants: of drafting.

    Attributes:
        memory: what kernels read and write of it.
        most_drafts: D.

    Raises:
        ConfigError: ``max_bytes`` is too little for so many slots.
    """

    def __init__(
        self,
        slots: int,
        most_drafts: int,
        *,
        most_ahead: int = 0,
        max_bytes: int = DEFAULT_BYTES,
        constants: DraftingConstants = CONSTANTS,
    ) -> None:
        self._slots, self._constants, orders = slots, constants, len(constants.orders)
        self.most_drafts = most_drafts
        bits = (max_bytes // _token_bytes(constants)).bit_length() - 1
        check_bytes(max_bytes, slots, constants)
        self._bits = bits
        self._logs = token_logs.Logs(
            start=np.zeros(slots + 1, np.int64),
            bits=np.zeros(slots + 1, np.int64),
            end=np.zeros(slots + 1, np.int64),
            token=np.zeros(1 << bits, np.int32),
            before=np.zeros((orders, 1 << bits), np.int32),
            head=np.zeros((orders, 1 << bits), np.int32),
            order=np.array(constants.orders, dtype=np.int64),
        )
        self._learned = votes.Learned(
            tests=np.zeros((votes.SOURCES, votes.LENGTHS, votes.EVIDENCE, 2)),
            fail=np.zeros((slots, 2)),
            cell_kept=constants.class_kept,
            slot_kept=0.95,
            cell_prior=constants.class_prior,
            slot_prior=constants.class_prior,
        )
        self._offer = kernels.Offer(
            token=np.zeros((slots, most_ahead + most_drafts), np.int32),
            ahead=np.zeros(slots, np.int64),
            drafts=np.zeros(slots, np.int64),
            cell=np.zeros((slots, most_drafts), np.int64),
            hazard=np.zeros((slots, most_drafts)),
            draft_log=np.zeros((slots, most_drafts), np.int64),
            draft_place=np.zeros((slots, most_drafts), np.int64),
            place=np.zeros(slots, np.int64),
            log=np.zeros(slots, np.int64),
            begins=np.zeros(slots, np.bool_),
        )
        self._open = np.zeros(slots, np.bool_)
        self._output = np.zeros(slots, np.int64)  # position of the first output token
        self._grows_at = np.zeros(slots, np.int64)  # tokens at which a log needs a larger region
        self._no_drafts = np.zeros((0, 0), np.int64)
        self.memory = kernels.Memory(
            self._logs, self._learned, self._offer, self._open, self._grows_at,
            kernels.Search(
                constants.walk, constants.walk, constants.least_acceptance, constants.least_probability, _SEARCHES
            ),
        )  # fmt: skip
        self.reset()

    @property
    def bytes(self) -> int:
        """Bytes of the tables; pages of them that were never written take no memory yet."""
        logs, offer, learned = self._logs, self._offer, self._learned
        tables = (*logs, *offer, learned.tests, learned.fail, self._open, self._output, self._grows_at)
        return sum(table.nbytes for table in tables)

    @property
    def shared_tokens(self) -> int:
        """Tokens of finished rows that are remembered, one more per row."""
        return int(min(self._logs.end[-1], 1 << self._logs.bits[-1]))

    @property
    def shared_bits(self) -> int:
        """log2 of the tokens of finished rows that can be remembered."""
        return int(self._logs.bits[-1])

    def reset(self) -> None:
        """Forget all texts and everything learned; no slot is open afterwards."""
        logs, half = self._logs, self._bits - 1
        self._regions = Regions(half, _LEAST_BITS)
        # Every slot has a small region of its own, for when there is no larger one.
        for slot in range(self._slots):
            home = self._regions.allocate(_LEAST_BITS)
            assert home is not None
            logs.start[slot], logs.bits[slot] = home, _LEAST_BITS
        self._home = logs.start[:-1].copy()
        self._start_log(self._slots, 1 << half, half)
        self._open[:] = False
        self._offer.ahead[:] = self._offer.drafts[:] = 0
        self._learned.tests[:] = self._learned.fail[:] = 0

    def open(self, slot: int, tokens: TokenArray, *, output: int = 0) -> None:
        """Begin a sequence.

        Args:
            slot: its slot, which is not open.
            tokens: ``[N]``, any integers: the prompt, and output that there is already.
            output: how many of the tokens, from the last, are output.
        """
        if not is_whole(slot, 0, self._slots - 1) or self._open[slot]:
            raise IntegrityError(f"slot {slot} of {self._slots} cannot be opened")
        self._open[slot], self._output[slot] = True, len(tokens) - output
        self._learned.fail[slot] = 0
        self._offer.ahead[slot] = self._offer.drafts[slot] = 0
        self._offer.log[slot], self._offer.begins[slot] = -1, output == 0
        self._place(slot, len(tokens) + _SPARE)
        token_logs.extend(self._logs, slot, np.ascontiguousarray(tokens, dtype=np.int32))

    def append(self, slots_S: IntArray, token_SC: TokenArray, count_S: IntArray) -> None:
        """Take in what a forward committed, and learn from it how right the last proposals were.

        Args:
            slots_S: int64, open and different slots.
            token_SC: int64, committed tokens, as ``StepOutcome.token_DC``.
            count_S: int64, how many of each row count.
        """
        self._check_open(slots_S)
        for slot in slots_S[self._logs.end[slots_S] + count_S > self._grows_at[slots_S]].tolist():
            self.grow(slot, int(count_S[slots_S == slot][0]))
        kernels.append(self._logs, slots_S, token_SC, count_S, self._offer, self._learned)

    def propose(
        self,
        slots_S: IntArray,
        budget_S: IntArray,
        given_SB: TokenArray | None = None,
        ahead_S: IntArray | None = None,
    ) -> Proposal:
        """Drafts for sequences; a proposal stands until tokens are appended or another is made.

        Args:
            slots_S: int64, open and different slots.
            budget_S: int64, drafts of each at most.
            given_SB: int64 drafts from elsewhere, which the proposed ones follow; None for none.
            ahead_S: int64, how many of each row there are.
        """
        self._check_open(slots_S)
        sequences, drafts = len(slots_S), self._offer.cell.shape[1]
        if given_SB is None or ahead_S is None:
            given_SB, ahead_S = self._no_drafts, np.zeros(sequences, np.int64)
        proposal = Proposal(
            token_SD=np.empty((sequences, drafts), np.int32),
            acceptance_SD=np.empty((sequences, drafts), np.float32),
            count_S=np.empty(sequences, np.int64),
            match_S=np.empty(sequences, np.int64),
        )
        kernels.propose(
            self._logs, slots_S, budget_S, given_SB, ahead_S, self.memory.search, self._learned, self._offer,
            proposal.token_SD, proposal.acceptance_SD, proposal.count_S, proposal.match_S,
        )  # fmt: skip
        return proposal

    def close(self, slot: int, *, keep: bool = True) -> None:
        """End a sequence; with ``keep`` its output, and the end of its prompt before it, joins the finished rows."""
        if not is_whole(slot, 0, self._slots - 1) or not self._open[slot]:
            raise IntegrityError(f"slot {slot} of {self._slots} is not open")
        if keep and self._logs.end[slot] > self._output[slot]:
            self._make_room()
            first = max(0, int(self._output[slot]) - self._constants.orders[-1])
            token_logs.copy_row(self._logs, slot, first, self._slots)
        self._release(slot)
        self._open[slot] = False

    def remember(self, rows: Iterable[tuple[tuple[int, ...], tuple[int, ...]]]) -> None:
        """Let rows that ended join the finished rows, without opening them: as :meth:`close` does, one after the other.

        Args:
            rows: prompt and output of each.
        """
        parts: list[TokenArray] = []
        for prompt, output in rows:
            if output:
                parts += (np.array(self.end_of(prompt) + output, dtype=np.int64), _ROW_END)
        if parts:
            self._make_room()
            token_logs.extend(self._logs, self._slots, np.concatenate(parts).astype(np.int32, copy=False))

    def end_of(self, prompt: tuple[int, ...]) -> tuple[int, ...]:
        """What of a prompt joins the finished rows, before its output."""
        return prompt[-self._constants.orders[-1] :]

    def _make_room(self) -> None:
        """Count positions anew before they no longer fit."""
        logs = self._logs
        if logs.end[-1] > _REBASE:
            self._rewrite(self._slots, int(logs.start[-1]), int(logs.bits[-1]))

    # ---- regions --------------------------------------------------------------------------------------

    def _check_open(self, slots_S: IntArray) -> None:
        if not self._open[slots_S].all():
            raise IntegrityError(f"of the slots {slots_S.tolist()}, not all are open")

    def _start_log(self, log: int, start: int, bits: int) -> None:
        """An empty log in a region."""
        logs = self._logs
        logs.start[log], logs.bits[log], logs.end[log] = start, bits, 0
        logs.head[:, start : start + (1 << bits)] = -1

    def _place(self, slot: int, tokens: int) -> None:
        """An empty log for so many tokens, or as many as there is room for."""
        bits = wanted = max(_LEAST_BITS, (tokens - 1).bit_length())
        start = self._regions.allocate(wanted) if wanted > _LEAST_BITS else None
        if start is None:
            bits = self._regions.largest()
            start = self._regions.allocate(bits) if _LEAST_BITS < bits < wanted else None
        if start is None:
            start, bits = int(self._home[slot]), _LEAST_BITS
        self._start_log(slot, start, bits)
        # Where there is less room than wanted, the log forgets its oldest tokens from then on.
        self._grows_at[slot] = 1 << bits if bits == wanted else np.iinfo(np.int64).max

    def _release(self, slot: int) -> None:
        start, bits = int(self._logs.start[slot]), int(self._logs.bits[slot])
        if start != self._home[slot]:
            self._regions.release(start, bits)

    def grow(self, slot: int, tokens: int) -> None:
        """Move the log of an open slot to a region where it has room for more tokens, if there is one."""
        logs = self._logs
        start, bits, end = int(logs.start[slot]), int(logs.bits[slot]), int(logs.end[slot])
        held = logs.token[start : start + min(end, 1 << bits)].copy()  # a log that grows was never full
        self._release(slot)
        self._place(slot, end + tokens)
        token_logs.extend(logs, slot, held)

    def _rewrite(self, log: int, start: int, bits: int) -> None:
        """Count the positions of a full log anew."""
        size, end = 1 << bits, int(self._logs.end[log])
        held = np.roll(self._logs.token[start : start + size], -(end % size))
        self._start_log(log, start, bits)
        token_logs.extend(self._logs, log, held)


def check_bytes(max_bytes: int, slots: int, constants: DraftingConstants = CONSTANTS) -> None:
    """Refuse memory in which not every slot has room for a text.

    Raises:
        ConfigError: it is too little for so many slots.
    """
    least = least_history_bytes(slots, _token_bytes(constants))
    if max_bytes < least:
        rule = f"{slots} slots need at least {least}"
        raise ConfigError(explain("history_bytes", max_bytes, rule, "Give more memory, or run fewer sequences."))


def _token_bytes(constants: DraftingConstants) -> int:
    """Bytes of the tables per token: itself, and two places of each order."""
    return 4 + 8 * len(constants.orders)
