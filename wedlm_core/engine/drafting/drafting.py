"""Decide the number and the source of each sequence's drafts. Torch-free.

The engine calls it in four places: :meth:`Drafting.admit` for new sequences, :meth:`Drafting.plan` before a forward,
:meth:`Drafting.observe` after it, and :meth:`Drafting.close` when a sequence ends. The output is columns of the slot
table: ``masks``, ``keep_valid``, ``keep_stale``, and with drafts from history ``source`` and ``rows``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property

import numpy as np

from wedlm_core.config.step_cost import StepCost
from wedlm_core.engine.drafting.acceptance import Acceptance
from wedlm_core.engine.drafting.constants import CONSTANTS, DraftingConstants
from wedlm_core.engine.drafting.controller import Arm, Controller
from wedlm_core.engine.drafting.masks import allocate, long_run
from wedlm_core.engine.drafting.step_time import HostTime, Load, StepReport
from wedlm_core.engine.drafting.windows import HistoryWindows, Suggestions
from wedlm_core.engine.scheduling.slots import IntArray, SlotTable


class Drafting:
    """Drafting of one engine.

    Args:
        table: slots.
        widest: most masks of any request's window.
        most_rows: the engine's budget of rows in a forward.
        cost: returns the step cost; called when the first plan needs it.
        overlap: a forward is launched before the outcome of the one before is known, so its rows are an upper bound.
        masks: whether the model has a mask token.
        history: writes drafts from history; None where they are not wanted.
        constants: of drafting.

    Attributes:
        decode_seconds: seconds of steps with adaptive windows only and without grammars, prefill left out.
        autoregressive_seconds: expected seconds of the arm ``NONE`` for the tokens of these steps, each with as many
            sequences as the step had.
    """

    def __init__(
        self, table: SlotTable, widest: int, most_rows: int, cost: Callable[[], StepCost], *,
        overlap: bool = False, masks: bool = True, history: HistoryWindows | None = None,
        constants: DraftingConstants = CONSTANTS,
    ) -> None:  # fmt: skip
        self._table, self._most_rows, self._measure, self._constants = table, most_rows, cost, constants
        self._overlap, self._masks, self._history = overlap, masks and widest > 0, history
        self._acceptance = Acceptance(len(table.limit), max(1, widest), constants)
        self._accepted_2SW = np.zeros((2, len(table.limit), max(1, widest)))  # drafts of masks, as the last plan saw it
        self._host_time = HostTime(constants.counts_kept)
        arms = frozenset(
            arm for arm in Arm if (self._masks or not arm.has_masks) and (history is not None or not arm.has_history)
        )
        self.controller = Controller(constants, arms)
        # Decayed: tokens (a job begins with many prompts), rows of prompts, forwards with any.
        self._counts_3 = np.array([1 / (1 - constants.slow_kept), 0.0, 0.0])
        self._since, self._interval = 0, 1  # forwards since the last plan, and between it and the next
        self._planned_for, self._alone = 0, 0.0  # sequences, and their expected rate without drafts
        self._new_masks, self._new_stale = 0, 0  # of new sequences: the mean of those that ran
        self._draft_price = 0.0
        self.decode_seconds, self.autoregressive_seconds = 0.0, 0.0

    @property
    def waits(self) -> bool:
        """Whether the next forward has to wait for the outcome of the one before: drafts follow its tokens."""
        return self._history is not None and self._history.waits

    def admit(self, slots_S: IntArray, running: int, prompts: Mapping[int, tuple[int, ...]]) -> None:
        """Give new sequences the mean of the windows of the last plan.

        Args:
            slots_S: int64, their slots.
            running: number of running sequences, the new ones included.
            prompts: slot -> prompt tokens, of the new sequences that may have drafts from history.
        """
        table = self._table
        self._acceptance.clear(slots_S, table.group[slots_S])
        if running > 2 * self._planned_for:
            self._interval = 0  # the last plan was for fewer sequences, and its windows are too wide for these
        own_S = slots_S[table.adaptive[slots_S]]
        masks_S = np.minimum(self._new_masks, table.widest[own_S])
        table.masks[own_S] = table.keep_valid[own_S] = masks_S
        table.keep_stale[own_S] = np.minimum(self._new_stale, masks_S)
        self._accepted_2SW[:, slots_S] = self._acceptance.by_kind(slots_S)
        if self._history is not None:
            for slot, prompt in prompts.items():
                self._history.open(slot, prompt)

    def plan(self, slots_R: IntArray, spare_tokens: Callable[[], int]) -> bool:
        """Plan the windows of running slots, if a plan is due.

        Args:
            slots_R: int64, all running slots.
            spare_tokens: returns the free KV entries; called if a plan is due.

        Returns:
            Whether the table's windows were rewritten.
        """
        due = self._since >= self._interval or 2 * len(slots_R) <= self._planned_for
        slots_S = slots_R[self._table.adaptive[slots_R]] if due else slots_R[:0]
        if not len(slots_S):
            return False
        before = self._table.masks[slots_S]
        load = self._load(slots_R, slots_S, spare_tokens())
        self._since, self._planned_for = 0, len(slots_R)
        self._alone = self._rate_alone(len(slots_R), load.kv_tokens)
        self._write(slots_S, load)
        constants = self._constants
        least, most = constants.plan_forwards
        least += len(slots_S) // 64
        same = np.array_equal(before, self._table.masks[slots_S])
        self._interval = min(2 * max(least, self._interval), most) if same else least
        return True

    @cached_property
    def cost(self) -> StepCost:
        """The step cost; the first call measures it."""
        return self._measure()

    def close(self, slot: int, *, keep: bool) -> None:
        """Forget a sequence; with ``keep`` its text stays in history for later ones."""
        if self._history is not None:
            self._history.close(slot, keep=keep)

    def observe(self, report: StepReport) -> Suggestions | None:
        """Learn from a step, and write drafts from history into the windows of sequences without a grammar.

        Returns:
            Drafts from history, for sequences with a grammar to choose from; None while history is off, or the
            next forward is in flight.
        """
        self._learn(report)
        if self._history is None:
            return None
        self._history.is_on = self.controller.arm.has_history
        return self._history.draft(report, self._accepted_2SW, self._draft_price)

    def _learn(self, report: StepReport) -> None:
        tokens = float(np.add.reduce(report.emit_D))
        self._since += 1
        self._counts_3 *= self._constants.slow_kept
        self._counts_3 += (tokens + 1, report.prefill_rows, report.prefill_rows > 0)
        slots_D, outcome = report.slots_D, report.outcome
        adaptive_D = self._table.adaptive[slots_D]
        drafts = int(np.add.reduce(report.rows_D)) > len(slots_D)
        if drafts:
            # An output that ended makes no use of its masks' proposals, and the next sequence begins without drafts.
            self._acceptance.observe(
                slots_D, outcome.valid_D, outcome.offered_D, outcome.agreed_D, outcome.next_valid_D & ~report.ended_D,
                self._table.source[slots_D], adaptive_D & (report.rows_D > 1),
            )  # fmt: skip
        if report.seconds is not None and len(slots_D) and adaptive_D.all():
            self._time(report, tokens, drafts=drafts)

    def _time(self, report: StepReport, tokens: float, *, drafts: bool) -> None:
        """Count the seconds of a step, without the share of its prefill."""
        rows, sequences, forward = report.forward_rows, len(report.slots_D), report.forward_seconds
        assert report.seconds is not None
        seconds, host = report.seconds, self._host_time
        if rows is not None and forward is not None and forward > 0:
            every, decoding = (
                float(self.cost(np.array([some]), report.kv_tokens, sequences)[0])
                for some in (rows, rows - report.prefill_rows)
            )
            host.record(report.seconds - forward, drafts=drafts)
            seconds -= forward * (1 - decoding / every)
            usual = (decoding + host.seconds(drafts=drafts)) / self.controller.correction
            seconds = min(seconds, self._constants.disturbed * usual)
        # If sequences ended or began since the plan, the controller hears of the seconds that its sequences would take.
        here = self._rate_alone(sequences, report.kv_tokens) if sequences != self._planned_for else self._alone
        share = here / self._alone if self._alone else 1.0
        alone = share * self.controller.rate_of(Arm.NONE)
        if alone > 0 and not np.count_nonzero(self._table.constrained[report.slots_D]):
            self.decode_seconds += seconds
            self.autoregressive_seconds += tokens / alone
        if self.controller.record(tokens, share * seconds):
            self._interval = 0

    def _rate_alone(self, sequences: int, kv_tokens: float) -> float:
        """Expected tokens per second of so many sequences without drafts."""
        quantum = self.cost.quantum
        rows = -(-sequences // quantum) * quantum
        forward = float(self.cost(np.array([rows]), kv_tokens, sequences)[0])
        return sequences / (forward + self._host_time.seconds(drafts=False))

    def _load(self, slots_R: IntArray, slots_S: IntArray, spare_tokens: int) -> Load:
        table = self._table
        every = float(table.rows[slots_R].sum())
        commits, prefill_rows, prefills = self._counts_3.tolist()
        return Load(
            cost=self.cost, host_seconds=self._host_time.seconds(drafts=True),
            kv_tokens=float(table.cached[slots_R].sum()), other_rows=every - float(table.rows[slots_S].sum()),
            most_rows=min(self._most_rows, int(every) + spare_tokens), prefill_rows=prefill_rows / commits,
            burst_rows=prefill_rows / prefills if prefills else 1.0, are_bounds=self._overlap,
        )  # fmt: skip

    def _write(self, slots_S: IntArray, load: Load) -> None:
        """Allocate masks, choose the arm, and write its windows to the table."""
        table, acceptance, overlap = self._table, self._acceptance, self._overlap
        stale_SW, valid_SW = self._accepted_2SW[:, slots_S] = acceptance.by_kind(slots_S)
        run = long_run(valid_SW, stale_SW, acceptance.agreement(slots_S), bounds=overlap)
        widest_S = table.widest[slots_S] if self._masks else np.zeros(len(slots_S), dtype=np.int64)
        none, masked = allocate(run, widest_S, load, self._constants)
        # Without prefill, as steps are measured: it takes as long for each commit of any arm.
        expected = {arm: none.commits_per_second for arm in Arm if not arm.has_masks}
        if masked is not None:
            expected |= {arm: masked.commits_per_second for arm in Arm if arm.has_masks}
        arm = self.controller.choose(expected, len(slots_S))
        chosen = masked if arm.has_masks and masked is not None else none
        rows = max(chosen.rows, load.other_rows + float(table.rows[slots_S].sum()))
        rate = max(chosen.commits_per_second, self.controller.rate_of(arm))
        self._draft_price = rate * load.slope(rows, len(slots_S))
        masks_S = chosen.masks_S
        most_S = np.maximum(table.masks[slots_S], masks_S)  # the next window may hold the present masks' drafts
        if overlap:  # more drafts than masks would exceed the rows that the plan counted
            most_S = np.where(masks_S > 0, masks_S, most_S)
        stale_S = np.minimum(run.kept_SW[np.arange(len(masks_S)), masks_S], most_S)
        table.masks[slots_S], table.keep_valid[slots_S], table.keep_stale[slots_S] = masks_S, most_S, stale_S
        self._new_masks, self._new_stale = round(float(masks_S.mean())), round(float(stale_S.mean()))
