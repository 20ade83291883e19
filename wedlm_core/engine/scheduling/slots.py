"""What the host knows of each slot, as numpy arrays, so that a step's bookkeeping is vectorised. Torch-free."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from wedlm_core.errors import IntegrityError
from wedlm_core.types import CommitStats

__all__ = ["OUTCOME_KINDS", "Emission", "SlotTable", "StepOutcome"]

IntArray = np.ndarray[tuple[int, ...], np.dtype[np.int64]]
FloatArray = np.ndarray[tuple[int, ...], np.dtype[np.float32]]
BoolArray = np.ndarray[tuple[int, ...], np.dtype[np.bool_]]


@dataclass(frozen=True, kw_only=True)
class StepOutcome:
    """What a forward committed for its D decoding sequences, on the host; C places of which ``count_D`` count.

    ``token_DC`` int64; ``entropy_DC, logprob_DC`` float32 nats; ``early_DC`` bool; ``next_rows_D`` rows of
    the next forward; ``context_D`` tokens whose KV became final; ``drafts_D, agreed_D`` verified drafts;
    ``offered_D, valid_D, next_valid_D`` as in :class:`wedlm_core.decoding.strategies.Commit`.

    Raises:
        IntegrityError: a column is not of its dtype (:data:`OUTCOME_KINDS`): flags are used as masks and as indices,
            and as integers they would be taken for something else without an error.
    """

    count_D: IntArray
    next_rows_D: IntArray
    context_D: IntArray
    drafts_D: IntArray
    agreed_D: IntArray
    offered_D: IntArray
    valid_D: BoolArray
    next_valid_D: BoolArray
    token_DC: IntArray
    entropy_DC: FloatArray
    logprob_DC: FloatArray
    early_DC: BoolArray

    def __post_init__(self) -> None:
        """Check the dtypes, whoever made the columns: a kernel, the words of a copy, a join of groups."""
        for name, kind in OUTCOME_KINDS.items():
            found = getattr(self, name).dtype
            if found != kind:
                raise IntegrityError(f"{name} of a forward's outcome is {found} and has to be {kind}")


_FLAGS, _FLOATS = ("valid_D", "next_valid_D", "early_DC"), ("entropy_DC", "logprob_DC")
OUTCOME_KINDS: Mapping[str, np.dtype[Any]] = {
    name: np.dtype(np.bool_ if name in _FLAGS else np.float32 if name in _FLOATS else np.int64)
    for name in StepOutcome.__dataclass_fields__
}
"""Dtype of each column of :class:`StepOutcome`."""


@dataclass(frozen=True, kw_only=True)
class Emission:
    """How much of a step's commits is output, and which sequences a stop token or ``max_tokens`` ended."""

    emit_D: IntArray
    stopped_D: BoolArray
    full_D: BoolArray


class SlotTable:
    """Arrays by slot.

    ``context`` counts tokens that must be in the KV cache before decode rows can run; ``cached`` those that
    are; ``capacity`` the KV entries its pages hold; ``rows`` the decode rows of the next forward;
    ``generated`` and ``limit`` count output tokens; ``group`` numbers the decoding implementation.
    ``adaptive`` slots get their window from the planner: ``masks`` of the next window, ``keep_valid`` and
    ``keep_stale`` drafts at most, never more than ``widest``; other slots keep what they were set up with.
    ``watched`` slots have stop strings.
    ``output`` and ``logprob`` hold the generated tokens, ``[slots, places]``.
    """

    def __init__(self, slots: int, widest: int, stop_ids: int = 16) -> None:
        def integers(*shape: int) -> IntArray:
            return np.zeros((slots, *shape), dtype=np.int64)

        self.context, self.cached, self.rows, self.capacity = integers(), integers(), integers(), integers()
        self.widest, self.masks, self.keep_valid, self.keep_stale = integers(), integers(), integers(), integers()
        self.adaptive = np.zeros(slots, dtype=np.bool_)
        self.generated, self.limit, self.group = integers(), integers(), integers()
        self.head, self.watched = np.zeros(slots, dtype=np.bool_), np.zeros(slots, dtype=np.bool_)
        self.stop_ids = np.full((slots, stop_ids), -1, dtype=np.int64)
        self._stop_counts = integers()
        self.output = np.zeros((slots, 0), dtype=np.int32)
        self.logprob = np.zeros((slots, 0), dtype=np.float32)
        self._forwards, self._rows_forwarded = integers(), integers()
        self._window_rows, self._widest = integers(), integers()
        self._histogram = integers(widest + 2)
        self._early, self._drafts, self._agreed = integers(), integers(), integers()
        self._entropy_sum = np.zeros(slots, dtype=np.float64)
        self._entropy_max = np.zeros(slots, dtype=np.float64)
        self._logprob_sum = np.zeros(slots, dtype=np.float64)

    def clear(self, slot: int) -> None:
        """Reset a slot for a new sequence."""
        for name, array in vars(self).items():
            array[slot] = -1 if name == "stop_ids" else 0

    def set_stop_ids(self, slot: int, ids: tuple[int, ...]) -> None:
        """Stop tokens of a slot; the table widens when a request brings more than it has room for."""
        missing = len(ids) - self.stop_ids.shape[1]
        if missing > 0:
            self.stop_ids = np.pad(self.stop_ids, ((0, 0), (0, missing)), constant_values=-1)
        self.stop_ids[slot, : len(ids)] = ids
        self._stop_counts[slot] = len(ids)

    def set_limit(self, slot: int, tokens: int) -> None:
        """Tokens a slot may generate; the output table widens to hold them."""
        self.limit[slot] = tokens
        missing = tokens - self.output.shape[1]
        if missing > 0:
            self.output = np.pad(self.output, ((0, 0), (0, missing)))
            self.logprob = np.pad(self.logprob, ((0, 0), (0, missing)))

    def left(self, slots_S: IntArray) -> IntArray:
        """Tokens that slots may still generate."""
        return self.limit[slots_S] - self.generated[slots_S]

    def tokens_of(self, slot: int) -> list[int]:
        """What a slot has generated so far."""
        return self.output[slot, : self.generated[slot]].tolist()

    def append(self, slots_D: IntArray, outcome: StepOutcome, emit_D: IntArray) -> None:
        """Keep the tokens that are output, behind those of earlier forwards; before :meth:`record`."""
        row, place = np.nonzero(_kept(outcome, emit_D))
        slots = slots_D[row]
        there = slots, self.generated[slots] + place
        self.output[there] = outcome.token_DC[row, place]
        self.logprob[there] = outcome.logprob_DC[row, place]

    def emission(self, slots_D: IntArray, outcome: StepOutcome) -> Emission:
        """Cut commits at ``max_tokens`` and behind the first stop token (which is kept)."""
        left_D = self.left(slots_D)
        emit_D = np.minimum(outcome.count_D, left_D)
        stops_DK = self.stop_ids[slots_D, : int(self._stop_counts[slots_D].max(initial=0))]
        hit_DC = (outcome.token_DC[:, :, None] == stops_DK[:, None, :]).any(axis=2) & _kept(outcome, emit_D)
        stopped_D = hit_DC.any(axis=1)
        if stopped_D.any():
            emit_D = np.where(stopped_D, hit_DC.argmax(axis=1) + 1, emit_D)
        return Emission(emit_D=emit_D, stopped_D=stopped_D, full_D=emit_D >= left_D)

    def record(self, slots_D: IntArray, rows_D: IntArray, outcome: StepOutcome, emit_D: IntArray) -> None:
        """Account a forward: ``rows_D`` decode rows ran, ``emit_D`` of the commits were output."""
        kept_DC = _kept(outcome, emit_D)
        # The forward that runs the prompt's last token as head is prefill (CommitStats.decode_forwards).
        decodes_D = ~(self.head[slots_D] & (self.generated[slots_D] == 0))
        window_D = np.where(decodes_D, rows_D, 0)
        self._forwards[slots_D] += decodes_D
        self._rows_forwarded[slots_D] += rows_D - ~decodes_D
        self._window_rows[slots_D] += window_D
        self._widest[slots_D] = np.maximum(self._widest[slots_D], window_D)
        self._histogram[slots_D, emit_D] += decodes_D
        # float64 before summing: the order of float32 sums would follow the batch's widest commit.
        entropy_DC = np.where(kept_DC, outcome.entropy_DC, np.float64(0))
        self._entropy_sum[slots_D] += entropy_DC.sum(axis=1)
        self._entropy_max[slots_D] = np.maximum(self._entropy_max[slots_D], entropy_DC.max(axis=1))
        self._logprob_sum[slots_D] += np.where(kept_DC, outcome.logprob_DC, np.float64(0)).sum(axis=1)
        if outcome.early_DC.any():
            self._early[slots_D] += (outcome.early_DC & kept_DC).sum(axis=1)
        self._drafts[slots_D] += np.minimum(outcome.drafts_D, emit_D)
        self._agreed[slots_D] += np.minimum(outcome.agreed_D, emit_D)
        self.generated[slots_D] += emit_D

    def unsound(self, slots_S: IntArray) -> BoolArray:
        """Slots with output that was chosen from logits that are not all numbers: their entropy is none either."""
        return ~np.isfinite(self._entropy_sum[slots_S])

    def stats(self, slot: int, *, tokens: int, cached_prompt_tokens: int, preemptions: int) -> CommitStats:
        """The finished sequence's statistics; ``tokens`` is N_gen after any cut by a stop string."""
        forwards, drafts = int(self._forwards[slot]), int(self._drafts[slot])
        histogram = np.trim_zeros(self._histogram[slot], "b")
        logprob = float(self._logprob_sum[slot])
        counted = int(self.generated[slot])
        return CommitStats(
            generated_tokens=tokens,
            decode_forwards=forwards,
            rows_forwarded=int(self._rows_forwarded[slot]),
            commit_histogram=tuple(int(n) for n in histogram),
            mean_entropy=float(self._entropy_sum[slot]) / counted if counted else None,
            max_entropy=float(self._entropy_max[slot]) if counted else None,
            out_of_order_fills=int(self._early[slot]),
            mean_logprob=logprob / counted if counted and np.isfinite(logprob) else None,
            draft_agreement=int(self._agreed[slot]) / drafts if drafts else None,
            cached_prompt_tokens=cached_prompt_tokens,
            preemptions=preemptions,
            window_mean=float(self._window_rows[slot]) / forwards if forwards else 0.0,
            max_window=int(self._widest[slot]),
        )


def _kept(outcome: StepOutcome, emit_D: IntArray) -> BoolArray:
    """Bool ``[D, C]``: the places of what is output."""
    return np.arange(outcome.token_DC.shape[1]) < emit_D[:, None]
