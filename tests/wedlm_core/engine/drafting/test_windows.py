"""Windows with drafts from history: as many drafts as gain most, and never more than the sequence has room for."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from wedlm_core.engine.drafting.constants import CONSTANTS
from wedlm_core.engine.drafting.step_time import StepReport
from wedlm_core.engine.drafting.windows import HistoryWindows
from wedlm_core.engine.scheduling.slots import SlotTable, StepOutcome
from wedlm_core.kernels.cpu.draft_kernels import Windows, count_worth
from wedlm_core.statistics import DraftSource

MASK, STOP, WIDEST = 99, 7, 4
LEAST = CONSTANTS.least_acceptance
REPEATED = [1, 2, 3, 4, 5, 6] * 4 + [1]


@settings(deadline=None)  # the first example compiles
@given(seed=st.integers(0, 2**31), price=st.floats(0.05, 0.9))
def test_the_number_of_drafts_gains_most_of_all_or_is_zero_where_masks_gain_more(seed: int, price: float) -> None:
    rng = np.random.default_rng(seed)
    acceptance_DP = rng.random((6, 5)).cumprod(axis=1).astype(np.float32)
    lives_D, valid_D = rng.integers(0, 2, (2, 6)).astype(bool)
    slots_D, lead_D, by_masks = rng.permutation(8)[:6], rng.integers(0, 4, 6), rng.random((2, 8, 3)).cumprod(axis=2)
    take_D = np.empty(6, dtype=np.int64)
    count_worth(slots_D, lives_D, acceptance_DP, valid_D, lead_D, by_masks, price, take_D)
    gain_DP = np.cumsum(np.pad(acceptance_DP.astype(np.float64) - price, ((0, 0), (1, 0))) * ([0] + [1] * 5), axis=1)
    for d, slot in enumerate(slots_D):
        of_masks = (by_masks[int(valid_D[d]), slot, : lead_D[d]] - price).sum()
        best = int(gain_DP[d].argmax())
        assert take_D[d] == (best if lives_D[d] and gain_DP[d, best] > of_masks else 0)


@dataclass
class State:
    """Windows in memory, one for each slot; counts the copies to the device."""

    windows: Windows
    mask_token_id: int = MASK
    copies: int = 0

    def windows_of(self, slots_D: np.ndarray) -> Windows:
        return self.windows._replace(place=slots_D)

    def set_windows_of(self, slots_D: np.ndarray, windows: Windows) -> None:
        self.copies += 1


class Job:
    """Two slots whose sequences have the same prompt, and windows that hold ``drafts`` drafts of masks."""

    def __init__(self, prompt: list[int], *, drafts: int = 0, limit: int = 50) -> None:
        self.table = SlotTable(2, 2 * WIDEST + 1)
        self.table.limit[:], self.table.widest[:], self.table.masks[:] = limit, WIDEST, 2
        self.table.stop_ids[:, 0] = STOP
        places = np.zeros((2, 2 * WIDEST))
        self.state = State(Windows(
            place=np.arange(2), token=np.full_like(places, 50, dtype=np.int64), filled=places.astype(bool),
            lead=np.full(2, drafts), length=np.full(2, drafts + 2),
        ))  # fmt: skip
        self.history = HistoryWindows(self.table, self.state, WIDEST, 1 << 20, CONSTANTS)
        self.history.is_on = True
        self.history.open(0, tuple(prompt))

    def step(self, tokens: list[int], *, offered: int = 0, price: float = LEAST, ended: bool = False) -> list[int]:
        """Commit tokens to slot 0, and return the drafts of its next window."""
        one, nothing = np.array([len(tokens)]), np.zeros((1, 1), dtype=np.float32)
        outcome = StepOutcome(
            count_D=one, next_rows_D=one, context_D=one, drafts_D=np.array([offered]), agreed_D=one - 1,
            offered_D=np.array([offered]), valid_D=np.ones(1, bool), next_valid_D=np.zeros(1, bool),
            token_DC=np.array([tokens], dtype=np.int64), entropy_DC=nothing, logprob_DC=nothing,
            early_DC=nothing.astype(bool),
        )  # fmt: skip
        self.table.generated[0] += len(tokens)
        self.history.draft(
            StepReport(
                slots_D=np.array([0]), rows_D=one, outcome=outcome, emit_D=one, ended_D=np.array([ended]),
                can_draft=True, prefill_rows=0, forward_rows=None, kv_tokens=0, seconds=None, forward_seconds=None,
            ),
            self.by_masks, price,
        )  # fmt: skip
        return self.state.windows.token[0, : self.state.windows.lead[0]].tolist()

    by_masks = np.repeat([[[0.1]], [[0.9]]], 2, axis=1).repeat(WIDEST, axis=2)  # stale drafts are poor, valid ones good

    @property
    def from_history(self) -> int:
        return int((self.table.source[0] == DraftSource.HISTORY).sum())


def test_a_window_has_the_drafts_of_history_then_masks_and_their_rows() -> None:
    job = Job(REPEATED)
    assert job.step([2]) == [3, 4, 5, 6, 1, 2, 3, 4], "no more than the window has places for"
    assert job.from_history == 8
    job = Job(REPEATED, limit=4)
    assert job.step([2]) == [3, 4, 5], "no more than the output has room for"
    assert job.table.rows[0] == 4
    job = Job(REPEATED)
    drafts = job.step([2], price=0.6)
    assert 0 < len(drafts) < 8, "no draft that is worth less than its row"
    windows = job.state.windows
    assert job.table.rows[0] == 1 + windows.length[0] == 1 + len(drafts) + 2
    assert windows.token[0, len(drafts) :].tolist() == [MASK] * (8 - len(drafts))
    assert windows.filled[0].tolist() == [place < len(drafts) for place in range(8)]


def test_nothing_stands_after_a_draft_that_stops() -> None:
    job = Job([1, 2, STOP, 4, 1])
    assert job.step([2]) == [STOP]
    assert job.state.windows.length[0] == 1


def test_good_drafts_of_masks_are_kept() -> None:
    job = Job(REPEATED, drafts=3)
    assert job.step([2], price=0.6)[:1] == [3], "stale drafts are poor"
    job = Job(REPEATED, drafts=3)
    job.by_masks = job.by_masks[::-1]
    assert job.step([2], price=0.6) == [50] * 3
    assert job.state.copies == 0


def test_drafts_that_followed_a_wrong_one_are_taken_back() -> None:
    job = Job(REPEATED)
    assert job.step([2])[:2] == [3, 4]
    assert job.step([40], offered=8) == []
    assert job.from_history == 0
    assert not job.history.placed
    copies = job.state.copies
    job.step([41])
    assert job.state.copies == copies, "and no window is written again"


def test_a_sequence_that_ended_gets_no_drafts_and_its_text_serves_others_if_it_is_kept() -> None:
    for keep in (True, False):
        job = Job([9])
        job.step([1, 2, 3, 4])
        assert job.step([1], ended=True) == []
        job.history.close(0, keep=keep)
        job.history.open(0, (1,))
        assert (job.step([2])[:1] == [3]) == keep
