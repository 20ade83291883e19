"""Drafting: decides how many drafts each sequence gets, and from which source. Torch-free.

The engine calls it in four places: :meth:`Drafting.admit` for new sequences, :meth:`Drafting.plan` before a forward,
:meth:`Drafting.observe` after it, and :meth:`Drafting.close` when a sequence ends. The output is columns of the slot
table: ``masks``, ``keep_valid``, ``keep_stale``, and with drafts from history ``source`` and ``rows``.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from wedlm_core.config.step_cost import StepCost
from wedlm_core.engine.drafting.acceptance import Acceptance
from wedlm_core.engine.drafting.constants import CONSTANTS, DraftingConstants
from wedlm_core.engine.drafting.controller import Arm, Controller, Measured
from wedlm_core.engine.drafting.masks import LongRun, allocate, long_run
from wedlm_core.engine.drafting.report import StepReport
from wedlm_core.engine.drafting.step_time import MOST_OFF, Load, StepTime
from wedlm_core.engine.drafting.windows import HistoryWindows, Suggestions, WindowState
from wedlm_core.engine.scheduling.slots import IntArray, SlotTable

__all__ = ["Drafting"]

_PRIOR_COMMITS = 500.0  # commits without prefill that the prefill counts begin with: a job begins with many prompts


class Drafting:
    """The drafting of one engine.

    Args:
        table: slots.
        widest: the largest window of any request.
        most_rows: the engine's row budget.
        cost: gives the table of forwards; called when the first plan needs it.
        is_given: the table was given by the user.
        overlap: a forward is launched before the outcome of the one before is known, so rows are bounds.
        masks: whether the model has a mask token.
        history: drafts from history; None where they are not wanted.
        constants: of drafting.

    Attributes:
        decode_seconds: of steps without prefill, a grammar and fixed windows.
        autoregressive_seconds: that ``NONE`` was expected to take for the tokens of these steps.
    """

    def __init__(
        self, table: SlotTable, widest: int, most_rows: int, cost: Callable[[], StepCost], *, is_given: bool = False,
        overlap: bool = False, masks: bool = True,
        history: HistoryWindows | None = None, constants: DraftingConstants = CONSTANTS,
    ) -> None:  # fmt: skip
        self._table, self._most_rows, self._measure, self._constants = table, most_rows, cost, constants
        self._table_of_forwards: StepCost | None = None
        self._overlap, self._masks, self.history = overlap, masks and widest > 0, history
        self.by_masks_2SW = np.zeros((2, len(table.limit), max(1, widest)))
        self._nobody = len(table.limit)  # the last place of the counts: a sequence without a past
        self._acceptance = Acceptance(self._nobody + 1, max(1, widest), constants)
        self._step_time = StepTime(constants, is_given=is_given)
        arms = frozenset(
            arm for arm in Arm if (self._masks or not arm.has_masks) and (history is not None or not arm.has_history)
        )
        self.controller = Controller(constants, arms, self._step_time)
        self._commits, self._prefill_rows, self._prefills = _PRIOR_COMMITS, 0.0, 0.0
        self._since, self._interval = 0, 1  # forwards since the last plan, and to the next
        self._planned_for = 0  # sequences
        self._of_new_2W = np.zeros((2, max(1, widest)))
        self._new_masks, self._new_stale = -1, 0  # of a new sequence; -1 before the first plan
        self._row_price, self._draft_price = 0.0, 0.0
        self.decode_seconds, self.autoregressive_seconds = 0.0, 0.0

    def leave_out_history(self) -> None:
        """Go on without drafts from history."""
        self.history = None
        self.controller.keep_to(arm for arm in Arm if not arm.has_history)

    @property
    def waits(self) -> bool:
        """Whether the next forward has to wait for the outcome of the one before, which drafts follow."""
        return self.history is not None and self.history.waits

    def admit(self, slots_S: IntArray, running: int) -> None:
        """Give new sequences the windows that the last plan has for them.

        Args:
            slots_S: their slots.
            running: sequences that run, these included.
        """
        table = self._table
        self._acceptance.clear(slots_S, table.group[slots_S])
        if self._new_masks < 0 or running > 2 * self._planned_for:
            self._interval = 0  # a plan for far fewer would be lavish with rows
        own_S = slots_S[table.adaptive[slots_S]]
        masks_S = np.minimum(max(0, self._new_masks), table.widest[own_S])
        table.masks[own_S] = table.keep_valid[own_S] = masks_S
        table.keep_stale[own_S] = np.minimum(self._new_stale, masks_S)
        self.by_masks_2SW[:, slots_S] = self._of_new_2W[:, None]

    def plan(self, slots_R: IntArray, spare_tokens: int) -> bool:
        """Plan the windows of running slots if it is time to; True if the table's windows were rewritten.

        Args:
            slots_R: all running slots.
            spare_tokens: KV entries that are free.
        """
        due = self._since >= self._interval or self.controller.is_due or 2 * len(slots_R) <= self._planned_for
        slots_S = slots_R[self._table.adaptive[slots_R]] if due else slots_R[:0]
        if not len(slots_S):
            return False
        before = self._table.masks[slots_S]
        self._since, self._planned_for = 0, len(slots_R)
        self._write(slots_S, self._load(slots_R, slots_S, spare_tokens))
        constants = self._constants
        least = constants.plan_forwards + len(slots_S) // 64
        same = np.array_equal(before, self._table.masks[slots_S]) and not self.controller.in_trial
        self._interval = min(2 * max(least, self._interval), constants.most_plan_forwards) if same else least
        return True

    @property
    def cost(self) -> StepCost:
        """The table of forwards, measured with the first call."""
        if self._table_of_forwards is None:
            self._table_of_forwards = self._measure()
        return self._table_of_forwards

    def draft(self, report: StepReport, state: WindowState) -> Suggestions | None:
        """Draft from history after a forward: windows of sequences without a grammar are written.

        Returns:
            Drafts that a grammar may choose from; None where there are none.
        """
        history = self.history
        if history is None:
            return None
        history.is_on = self.controller.arm.has_history
        found = history.suggest(report, self.by_masks_2SW, self._draft_price, state)
        history.write(report, found, state)
        return found

    def close(self, slot: int, output: tuple[int, ...] | None = None) -> None:
        """Forget a sequence; with its output, later sequences may draw on its text."""
        if self.history is not None:
            self.history.close(slot, output)

    def learn(self, report: StepReport) -> None:
        """Learn from a step."""
        kept = self._constants.prefill_kept
        tokens = float(np.add.reduce(report.emit_D))
        self._since += 1
        self._commits = self._commits * kept + tokens + (1 - kept) * _PRIOR_COMMITS
        self._prefill_rows = self._prefill_rows * kept + report.prefill_rows
        self._prefills = self._prefills * kept + (report.prefill_rows > 0)
        slots_D, outcome = report.slots_D, report.outcome
        adaptive_D = self._table.adaptive[slots_D]
        drafts = int(np.add.reduce(report.rows_D)) > len(slots_D)
        if drafts:
            self._acceptance.observe(
                slots_D, outcome.valid_D, outcome.offered_D, outcome.agreed_D, outcome.next_valid_D, ~report.ended_D,
                self._table.source[slots_D], adaptive_D & (report.rows_D > 1),
            )  # fmt: skip
        if report.seconds is not None and len(slots_D) and adaptive_D.all():
            self._time(report, tokens, drafts=drafts)

    def _time(self, report: StepReport, tokens: float, *, drafts: bool) -> None:
        """Count the seconds of a step."""
        rows, sequences, forward = report.forward_rows, len(report.slots_D), report.forward_seconds
        assert report.seconds is not None
        seconds, expected, off = report.seconds, 0.0, 0.0
        if rows is not None and forward is not None and forward > 0:
            cost, decoding = self.cost, rows - report.prefill_rows
            every = self._step_time.expected(cost, rows, report.kv_tokens, sequences)
            expected = every
            if report.prefill_rows:
                expected = self._step_time.expected(cost, decoding, report.kv_tokens, sequences)
                seconds *= 1 - forward / report.seconds * (1 - expected / every)
            off = math.log(forward / every)
            usual = expected + self._step_time.host_seconds(drafts=drafts)
            seconds = min(seconds, math.exp(MOST_OFF) * usual)  # by more, the step was disturbed
            if not self.controller.in_trial:
                self._step_time.record(rows, off)
            if not self._step_time.is_given:
                is_usual = not (report.prefill_rows or np.count_nonzero(report.ended_D))
                self._step_time.record_host(report.seconds - forward, drafts=drafts, is_usual=is_usual)
        alone = self.controller.rate_of(Arm.NONE)
        if alone > 0 and not np.count_nonzero(self._table.constrained[report.slots_D]):
            self.decode_seconds += seconds
            self.autoregressive_seconds += tokens / alone
        self.controller.record(Measured(tokens=tokens, seconds=seconds, rows=rows or 0.0, expected=expected, off=off))

    def _load(self, slots_R: IntArray, slots_S: IntArray, spare_tokens: int) -> Load:
        table, time = self._table, self._step_time
        every = float(table.rows[slots_R].sum())
        return Load(
            cost=time.corrected(self.cost), host_seconds=time.host_seconds(drafts=True),
            spared_alone=max(0.0, time.host_seconds(drafts=True) - time.host_seconds(drafts=False)),
            kv_tokens=float(table.cached[slots_R].sum()), other_rows=every - float(table.rows[slots_S].sum()),
            most_rows=min(self._most_rows, int(every) + spare_tokens), prefill_rows=self._prefill_rows / self._commits,
            burst_rows=self._prefill_rows / self._prefills if self._prefills else 1.0, are_bounds=self._overlap,
        )  # fmt: skip

    def _write(self, slots_S: IntArray, load: Load) -> None:
        """Allocate masks, choose the arm, and write its windows to the table."""
        table, acceptance = self._table, self._acceptance
        slots_N = np.append(slots_S, self._nobody)
        acceptance.clear(slots_N[-1:], int(np.bincount(table.group[slots_S]).argmax()))  # decoded as most are
        stale_NW, valid_NW = acceptance.by_kind(slots_N)
        run = long_run(valid_NW, stale_NW, acceptance.agreement(slots_N), self._row_price, bounds=self._overlap)
        most_S = table.widest[slots_S] if self._masks else np.zeros(len(slots_S), dtype=np.int64)
        own = LongRun(commits_SW=run.commits_SW[:-1], rows_SW=run.rows_SW[:-1], kept_SW=run.kept_SW[:-1])
        none, masked = allocate(own, most_S, load)
        expected = {arm: none.rate for arm in Arm if not arm.has_masks}
        if masked is not None:
            expected |= {arm: masked.rate for arm in Arm if arm.has_masks}
        arm = self.controller.choose(expected, len(slots_S))
        chosen = masked if arm.has_masks and masked is not None else none
        self._row_price = 0.0 if self._overlap else chosen.row_price
        rows = max(chosen.rows, self._step_time.usual_rows)
        rate = max(chosen.commits_per_second, self.controller.rate_of(arm))
        self._draft_price = rate * load.slope(rows, len(slots_S))
        if self._masks:
            self.by_masks_2SW[:, slots_S] = stale_NW[:-1], valid_NW[:-1]
            self._of_new_2W[:] = stale_NW[-1], valid_NW[-1]
        new = round(float(chosen.masks_S.mean()))  # as those that run have in the mean
        masks_N = np.append(chosen.masks_S, new)
        most_N = np.maximum(np.append(table.masks[slots_S], 0), masks_N)  # drafts that are there or to come
        if self._overlap:  # more drafts than masks would go beyond the rows that were paid for
            most_N = np.where(masks_N > 0, masks_N, most_N)
        stale_N = np.minimum(run.kept_SW[np.arange(len(masks_N)), masks_N], most_N)
        table.masks[slots_S], table.keep_valid[slots_S], table.keep_stale[slots_S] = (
            masks_N[:-1], most_N[:-1], stale_N[:-1]
        )  # fmt: skip
        self._new_masks, self._new_stale = int(masks_N[-1]), int(stale_N[-1])
