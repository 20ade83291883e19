"""Propose drafts from the text of a sequence and from finished rows; learn how far to trust them. Torch-free."""

from __future__ import annotations

from typing import Any

import numpy as np

from wedlm_core.config.engine_config import least_history_bytes
from wedlm_core.engine.drafting.constants import CONSTANTS, DraftingConstants
from wedlm_core.errors import ConfigError, explain
from wedlm_core.kernels.cpu import history as kernels
from wedlm_core.kernels.cpu.token_rings import Rings, copy_text, extend

IntArray = np.ndarray[tuple[int, ...], np.dtype[np.int64]]
TokenArray = np.ndarray[tuple[int, ...], np.dtype[np.integer[Any]]]

_MOST_POSITIONS = 1 << 30  # positions are int32


class History:
    """Texts of the sequences in engine slots, and of finished rows, in bounded memory. Not thread safe.

    The longest suffix of a sequence is looked up in its own text and in the finished rows. The places where it occurs
    vote on the next token, token by token. The source whose first draft is more probable, by the results of its earlier
    drafts with such matches and votes, proposes. The tokens that are appended next test the drafts, whether or not a
    forward verified them, so probabilities are learned while history is off, too.

    Half of the memory is for running sequences, in equal parts, half for finished rows. A full ring forgets its oldest
    tokens.

    Args:
        slots: engine slots.
        most_drafts: P, most drafts of one sequence.
        max_bytes: most bytes of all tables; they hold the largest power of two of tokens that fits.
        constants: of drafting.

    Raises:
        ConfigError: ``max_bytes`` is too little for so many slots.
    """

    def __init__(
        self, slots: int, most_drafts: int, *, max_bytes: int, constants: DraftingConstants = CONSTANTS
    ) -> None:
        orders = len(constants.orders)
        token_bytes = 4 + 8 * orders  # a token, and two places of each order
        least = least_history_bytes(slots, token_bytes)
        if max_bytes < least:
            rule = f"{slots} slots need at least {least}"
            raise ConfigError(explain("history_bytes", max_bytes, rule, "Give more memory, or run fewer sequences."))
        shared = (max_bytes // token_bytes).bit_length() - 2
        own = shared - (slots - 1).bit_length()
        self._rings = Rings(
            start=np.append(np.arange(slots) << own, 1 << shared),
            bits=np.append(np.full(slots, own), shared),
            begin=np.ones(slots + 1, np.int64),
            end=np.ones(slots + 1, np.int64),
            token=np.zeros(2 << shared, np.int32),
            before=np.zeros((orders, 2 << shared), np.int32),
            head=np.zeros((orders, 2 << shared), np.int32),  # position 0 is before the first
            order=np.array(constants.orders, dtype=np.int64),
        )
        self._memory = kernels.Memory(
            rings=self._rings,
            tests=np.zeros((kernels.CLASSES, 2)),
            token=np.zeros((slots, most_drafts), np.int32),
            drafts=np.zeros(slots, np.int64),
            cell=np.zeros((slots, most_drafts), np.int64),
            class_kept=constants.slow_kept,
            prior=constants.job_prior,
        )
        self._prompt = np.zeros(slots, np.int64)  # tokens of each slot's prompt
        self._constants = constants

    @property
    def bytes(self) -> int:
        """Bytes of the tables; pages of them that were never written take no memory yet."""
        rings = self._rings
        return sum(table.nbytes for table in (rings.token, rings.before, rings.head))

    def open(self, slot: int, prompt: TokenArray) -> None:
        """Begin a sequence in a slot, in place of the one before.

        Args:
            slot: its slot.
            prompt: ``[N]``, any integers.
        """
        self._start(slot)
        self._prompt[slot], self._memory.drafts[slot] = len(prompt), 0
        extend(self._rings, slot, np.ascontiguousarray(prompt, dtype=np.int32))

    def append(self, slots_D: IntArray, token_DC: TokenArray, count_D: IntArray) -> None:
        """Append the tokens that a forward committed, and learn from them which of the last drafts were right.

        Args:
            slots_D: int64, different slots.
            token_DC: int64, committed tokens, as ``StepOutcome.token_DC``.
            count_D: int64, number of tokens of each row that count.
        """
        kernels.append(self._memory, slots_D, token_DC, count_D)

    def propose(self, slots_D: IntArray, most_D: IntArray) -> tuple[np.ndarray, np.ndarray]:
        """Propose drafts for sequences.

        Args:
            slots_D: int64, different slots.
            most_D: int64, most drafts of each sequence.

        Returns:
            int32 and float32 ``[D, P]``: tokens, and the estimated probability that a draft and all before it are
            accepted; it never rises along a sequence, and is 0 where there is no draft.
        """
        shape = len(slots_D), self._memory.token.shape[1]
        token_DP, acceptance_DP = np.empty(shape, np.int32), np.empty(shape, np.float32)
        constants = self._constants
        kernels.propose(
            self._memory, slots_D, most_D, constants.walk, constants.least_acceptance, token_DP, acceptance_DP
        )
        return token_DP, acceptance_DP

    def close(self, slot: int) -> None:
        """Copy the output of a sequence, and the last tokens of its prompt, to the finished rows."""
        rings, shared = self._rings, len(self._rings.end) - 1
        first = int(rings.begin[slot] + self._prompt[slot])
        if rings.end[slot] > first:
            if rings.end[shared] > _MOST_POSITIONS:
                self._start(shared)
            copy_text(rings, slot, max(int(rings.begin[slot]), first - self._constants.orders[-1]), shared)

    def _start(self, ring: int) -> None:
        """Begin a text. Positions continue those of the text before, and restart at 1 before they overflow."""
        rings = self._rings
        if rings.end[ring] > _MOST_POSITIONS:
            rings.end[ring] = 1
            start = int(rings.start[ring])
            rings.head[:, start : start + (1 << int(rings.bits[ring]))] = 0
        rings.begin[ring] = rings.end[ring]
