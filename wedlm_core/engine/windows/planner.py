"""Apply: estimates of acceptance, prices of forwards and allocation brought together in the slot table. Torch-free.

Sequences with ``window_size="auto"`` are planned together every few forwards. A new one gets what the last plan would
have given a sequence without a past. A decision takes effect when windows are refilled at the end of the next forward,
so it never waits for the device.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from wedlm_core.config.step_cost import StepCost
from wedlm_core.engine.scheduling.slots import BoolArray, IntArray, SlotTable, StepOutcome
from wedlm_core.engine.windows.acceptance import Acceptance
from wedlm_core.engine.windows.allocation import Allocation, Rival, allocate
from wedlm_core.engine.windows.long_run import LongRun, long_run
from wedlm_core.engine.windows.mask_race import MaskRace
from wedlm_core.engine.windows.output_lengths import EndedOutputs
from wedlm_core.engine.windows.pace import Pace
from wedlm_core.engine.windows.padded_rows import PaddedRows
from wedlm_core.engine.windows.probes import Probes
from wedlm_core.engine.windows.step_time import CostCorrection, HostTime, Load
from wedlm_core.engine.windows.tuning import DEFAULT_TUNING, PlannerTuning
from wedlm_core.kernels.cpu.grammar_rows import count_forced
from wedlm_core.kernels.cpu.purchase import Prices, mean_row_price

__all__ = ["WindowPlanner"]

_PLANS_OF_VISIT = 3  # one that begins it, one that ends it, and one that learns what it told
_PLANS_OF_PROBE = 2  # one that ends it, and the next, which is due sooner as that one changed windows

_ABOUT_TO_END = 3  # tokens to go at most


class WindowPlanner:
    """Keeps ``masks``, ``keep_valid`` and ``keep_stale`` of the slot table up to date for adaptive slots.

    Args:
        table: slots; ``adaptive``, ``constrained``, ``widest``, ``limit``, ``generated``, ``cached`` and ``rows`` are
            read.
        widest: the largest window of any request.
        most_rows: the engine's row budget.
        tuning: constants.
        unread_row: cost of a row that chooses no token, relative to one that does.
        overlap: whether a forward is launched before the outcome of the last one is known, so that rows are bounds.
        masks: whether the model has a mask token. Windows without masks still have drafts from other sources.
        clock: in seconds, by which plans are timed.

    Attributes:
        by_masks_2SW: float64, probability that masks' drafts up to each offset are all accepted (stale ones, valid
            ones), by slot, as of the last plan; of a sequence that came in since without masks it says nothing.
    """

    def __init__(
        self,
        table: SlotTable,
        widest: int,
        most_rows: int,
        tuning: PlannerTuning = DEFAULT_TUNING,
        *,
        unread_row: float = 1.0,
        overlap: bool = False,
        masks: bool = True,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._clock, self._masks = clock, masks
        self._overlap, self._padded = overlap, PaddedRows(len(table.limit))
        self._table, self._most_rows, self._tuning, self._unread_row = table, most_rows, tuning, unread_row
        # The last place stands for a sequence without a past: each plan says what the next new sequence gets.
        self._nobody = len(table.limit)
        self._acceptance = Acceptance(self._nobody + 1, max(1, widest), tuning)
        self._correction = CostCorrection(tuning)
        self._host = HostTime(tuning)
        self._race = MaskRace(tuning)
        self._commits, self._prefill_rows = tuning.prior_commits, 0.0  # that went together
        self._prefills = 0.0  # forwards with prefill among these
        self._outputs, self._ends = tuning.prior_commits, 0.0  # tokens of sequences that are planned; ends among these
        self._ended = EndedOutputs(tuning)
        self._forced, self._chosen = 0.0, 0.0  # tokens that grammars forced, and the others of these sequences
        # Of the forward observed last, if its host time is not known yet; sequences that came in with it.
        self._committed, self._drafted, self._admitted = 0.0, False, 0
        self._is_mixed = False  # the forward observed last had sequences whose windows are not planned
        self._is_foreign = False  # it had no others
        self._last = 0.0, 0, 0  # tokens, sequences and rows of prefill of the forward observed last
        # Forwards since one without drafts, a wide one counting as several, and since one with as many rows again, of
        # about as many sequences.
        self._since_2 = [float(tuning.rival_interval), float(tuning.rival_interval)]
        self._rival_wait = tuning.first_rival_interval  # of these that the next timing waits for
        self._timing, self._corrects = False, False  # the last plan is for timing these; forwards are timed at all
        self._pace = Pace(tuning)
        self._planned_for = 0  # running sequences in the last plan
        self._new_windows: tuple[int, int] | None = None  # masks and stale drafts of a new sequence
        self._chosen_windows: IntArray = np.zeros(0, dtype=np.int64)  # the best masks of the last plan
        self._learned, self._kept_plans = True, 0  # since the last full plan: drafts were seen; plans that stayed
        self._row_price, self._seconds_per_commit = 0.0, 0.0  # in the last plan; of drafts, without prefill
        self._load: Load | None = None  # of the last plan
        self._prices: Prices | None = None  # of the last plan, once they were asked for
        self.by_masks_2SW = np.zeros((2, self._nobody + 1, max(1, widest)))
        self._probes = Probes(tuning)

    def admit(self, slots_S: IntArray, running: int) -> bool:
        """Give new sequences what the last plan has for them; False where a new plan is due at once.

        Args:
            slots_S: their slots.
            running: sequences that run, these included. A plan for far fewer would be lavish with rows.
        """
        table = self._table
        self._admitted += len(slots_S)
        self._acceptance.clear(slots_S, table.group[slots_S])
        # By a job that ended in a visit. Where one sequence runs at a time it goes on: each follows one that ended.
        left_over = self._race.is_comparing and running <= len(slots_S) and running != self._planned_for
        if self._new_windows is None or running > 2 * self._planned_for or left_over:
            self._new_windows, self._chosen_windows = None, np.zeros(0, dtype=np.int64)
            return False
        masks, stale = self._new_windows
        for slot in slots_S.tolist():  # they come by ones and twos: plain indices are quicker than an array of them
            if not masks and not self._overlap and table.adaptive[slot]:  # what drafts of masks would be like is open
                table.masks[slot] = table.keep_valid[slot] = table.keep_stale[slot] = 0
                continue
            self.by_masks_2SW[:, slot] = self.by_masks_2SW[:, self._nobody]
            if table.adaptive[slot]:
                own = min(masks, int(table.widest[slot]))
                own = self._padded.admit(slot, own) if self._overlap else own
                table.masks[slot] = table.keep_valid[slot] = own
                table.keep_stale[slot] = min(stale, own)
        return True

    def observe(
        self,
        slots_D: IntArray,
        rows_D: IntArray,
        outcome: StepOutcome,
        emit_D: IntArray,
        ended_D: BoolArray,
        prefill_rows: int,
        source_DC: np.ndarray,
    ) -> None:
        """Take in the outcome of a forward of ``rows_D`` decode rows.

        Args:
            slots_D: its decoding sequences.
            rows_D: decode rows of each.
            outcome: what it committed.
            emit_D: how much of that is output.
            ended_D: sequences that it ended.
            prefill_rows: rows of prefill that went with it.
            source_DC: int8, where the drafts came from: only those of masks tell of masks.
        """
        kept, tokens, rows = self._tuning.prefill_kept, float(np.add.reduce(emit_D)), int(np.add.reduce(rows_D))
        sequences = len(slots_D)
        self._commits = self._commits * kept + tokens + (1 - kept) * self._tuning.prior_commits
        self._prefill_rows = self._prefill_rows * kept + prefill_rows * self._unread_row
        self._prefills = self._prefills * kept + (prefill_rows > 0)
        planned_D = self._table.adaptive[slots_D]
        planned = int(np.count_nonzero(planned_D))
        own = tokens if planned == sequences else float(np.add.reduce(emit_D[planned_D]))
        self._observe_outputs(own, slots_D[ended_D & planned_D])
        self._committed, self._drafted, self._last = tokens, rows > sequences, (tokens, sequences, prefill_rows)
        self._is_mixed, self._is_foreign = planned != sequences, sequences > 0 and not planned
        kinds, as_many = (not self._drafted, 2 * sequences <= rows), 2 * sequences >= self._planned_for
        passed = rows / max(1, sequences), 1.0  # in forwards of sequences that have a row each; in forwards
        self._since_2 = [
            0.0 if of and as_many else since + more
            for of, since, more in zip(kinds, self._since_2, passed, strict=True)
        ]
        self._pace.age += 1
        if np.count_nonzero(self._table.constrained):  # a tenth of what counting takes
            self._observe_forced(slots_D, outcome.agreed_D, emit_D, source_DC)
        if not self._drafted:  # heads alone tell nothing
            return
        self._learned = True
        self._probes.observe(slots_D, outcome.agreed_D, source_DC)
        own_D = planned_D & (rows_D > 1)
        self._acceptance.observe(
            slots_D,
            outcome.valid_D,
            outcome.offered_D,
            outcome.agreed_D,
            outcome.next_valid_D,
            ~ended_D,
            source_DC,
            own_D,
        )

    def _observe_outputs(self, tokens: float, ended_E: IntArray) -> None:
        """Count tokens and ends of sequences whose windows are planned: others have lengths of their own."""
        kept = self._tuning.prefill_kept
        self._outputs = self._outputs * kept + tokens + (1 - kept) * self._tuning.prior_commits
        self._ends = self._ends * kept + len(ended_E)
        if len(ended_E):
            self._ended.record(self._table.generated[ended_E])

    def _observe_forced(self, slots_D: IntArray, agreed_D: IntArray, emit_D: IntArray, source_DC: np.ndarray) -> None:
        """Count what grammars forced of what was committed."""
        table = self._table
        forced, tokens = count_forced(slots_D, source_DC, agreed_D, emit_D, table.constrained, table.adaptive)
        if tokens:
            kept = self._tuning.job_kept
            self._forced = self._forced * kept + forced
            self._chosen = self._chosen * kept + tokens - forced

    def record_host_time(self, seconds: float) -> None:
        """Take in what the step that was observed last cost besides its forward."""
        self._host.record(seconds, self._committed, drafts=self._drafted, admitted=self._admitted)
        self._committed, self._admitted = 0.0, 0

    def record_step(self, seconds: float, *, elsewhere: bool = False) -> None:
        """Take in what the whole step took whose forward was observed last.

        Args:
            seconds: of it.
            elsewhere: whether drafts came from other sources than masks.
        """
        self._pace.seconds += seconds
        if not self._corrects:
            return
        if elsewhere is not self._race.elsewhere:
            self._race.turn(elsewhere)
            self._pace.hurry()
        if not self._is_mixed:
            self._race.record(seconds, *self._last, elsewhere=elsewhere)

    @property
    def is_visiting(self) -> bool:
        """Whether windows are those that come second, to compare: what is seen meanwhile tells of nothing else."""
        return self._race.visits > 0

    def wants_forward(self) -> bool:
        """Whether to :meth:`record_forward` the last one; comparing all of them would take 2% of the smallest.

        One whose sequences are all decoded otherwise tells nothing: they may do other work for as many rows.
        Who asks has costs that were measured, so now and then a forward is planned to be compared.
        """
        self._corrects = True
        if self._is_foreign:
            return False
        return self._timing or self._pace.is_timed

    def record_forward(
        self, rows: int, kv_tokens: int, sequences: int, seconds: float, cost: StepCost, *, unread: int = 0
    ) -> None:
        """Take in what a forward of these rows took, where ``cost`` was measured of rows on which tokens are chosen.

        Args:
            rows: of the forward.
            kv_tokens: cached tokens of its sequences.
            sequences: of the forward.
            seconds: that it took.
            cost: what it was thought to take.
            unread: rows on which no token was chosen.
        """
        alike = round(rows - unread + self._unread_row * unread)
        expected = float(cost(np.array([alike]), kv_tokens, sequences)[0])
        self._correction.record(alike, seconds, expected, times=2 if self._timing else 1)  # of which there are few

    def is_due(self, running: int) -> bool:
        """Whether it is time to :meth:`plan` for so many running sequences; for far fewer than before at once.

        If nothing is owed for plans: where short requests come together, again and again, each burst has some of these.
        """
        if self._new_windows is None or self._pace.is_due:
            return True
        return 2 * running <= self._planned_for and self._pace.affords_plan()

    def plan(self, slots_R: IntArray, cost: StepCost, spare_tokens: int) -> bool:
        """Plan for the running slots where it is time to; True if the table's windows were rewritten.

        Args:
            slots_R: all running slots.
            cost: of forwards.
            spare_tokens: KV entries that are free: windows do not grow into what is not there.
        """
        if not self.is_due(len(slots_R)):
            return False
        slots_S = slots_R[self._table.adaptive[slots_R]]
        if not len(slots_S):
            return False
        begin, stays = self._clock(), self._stays(slots_R, slots_S)
        least = self._tuning.least_interval + len(slots_S) // self._tuning.sequences_per_forward
        waited = self._pace.begin()
        if stays:
            self._kept_plans += 1
            changed = self._probe_again(slots_S, waited, least)
        else:
            changed, self._planned_for = True, len(slots_R)
            self._learned, self._kept_plans = False, 0
            self._load, self._prices = self._load_of(slots_R, slots_S, cost, spare_tokens), None
            self._plan_anew(slots_S, self._load, waited, least)
        self._pace.record_plan(self._clock() - begin, whole=not stays)
        return changed

    def _plan_anew(self, slots_S: IntArray, load: Load, waited: int, least: int) -> None:
        """A whole plan."""
        before = self._chosen_windows
        self._race.overhead = self._pace.forwards_of(_PLANS_OF_VISIT)
        tried = self._apply(slots_S, load, waited=waited, lasts=least)
        same, masks = np.array_equal(self._chosen_windows, before), bool(self._chosen_windows.any())
        self._pace.follow(least, same=same, masks=masks, tried=tried, visits=self._race.to_come)

    def _stays(self, slots_R: IntArray, slots_S: IntArray) -> bool:
        """Whether a plan without any masks would be made again: nothing was learned, and nothing is due to be timed."""
        table, tuning = self._table, self._tuning
        return (
            not self._learned
            and self._new_windows == (0, 0)
            and self._kept_plans < tuning.most_kept_plans
            and not self._chosen_windows.any()
            and not table.masks[slots_S].any()
            and 8 * abs(len(slots_R) - self._planned_for) <= self._planned_for
            and not (self._corrects and self._since_2[1] >= self._rival_wait)
            and not (self._race.is_comparing or self._race.is_due(len(slots_S)))
        )

    def _probe_again(self, slots_S: IntArray, waited: int, lasts: int) -> bool:
        """A plan that changes nothing but for a probe, if one is due; True in that case."""
        table = self._table
        masks_S = np.zeros(len(slots_S), dtype=np.int64)
        widest_S = np.minimum(self._widest(slots_S), table.limit[slots_S] - table.generated[slots_S])
        self._timing = False
        tried = self._load is not None and self._probes.place(
            slots_S, masks_S, widest_S, self._load, self._seconds_per_commit, waited=waited, lasts=lasts,
            overhead=self._pace.seconds_of(_PLANS_OF_PROBE),
        )  # fmt: skip
        if tried:
            table.masks[slots_S] = table.keep_valid[slots_S] = masks_S
            self.by_masks_2SW[:, self._probes.slots] = self.by_masks_2SW[:, [self._nobody]]
        self._pace.follow(lasts, same=True, masks=False, tried=tried)
        return tried

    # ---- drafts from elsewhere ------------------------------------------------------------------------

    def price_of(self, rows: int, drafts: int) -> float:
        """Commits that each draft's row has to bring where ``drafts`` are bought beside ``rows``; 0 before any plan."""
        prices = self.prices
        return 0.0 if prices is None or not drafts else float(mean_row_price(prices, float(rows), drafts))

    def seconds_of(self, commits: float) -> float:
        """By how much so many commits come earlier than in the last plan; 0 before the first.

        The rows of prefill that come with commits are not spared: they come earlier too.
        """
        return commits * self._seconds_per_commit

    @property
    def prices(self) -> Prices | None:
        """What rows cost and commits are worth, as of the last plan; None before the first."""
        if self._prices is None and self._load is not None:
            self._prices = self._load.prices(
                self._planned_for, float(self._most_rows), near_optimal=self._tuning.near_optimal,
                seconds_per_commit=self._seconds_per_commit,
            )  # fmt: skip
        return self._prices

    def _load_of(self, slots_R: IntArray, slots_S: IntArray, cost: StepCost, spare_tokens: int) -> Load:
        table = self._table
        every, host = float(table.rows[slots_R].sum()), self._host.fixed(drafts=True)
        return Load(
            cost=self._correction.corrected(cost),
            host_seconds=host,
            spared_alone=max(0.0, host - self._host.fixed(drafts=False)),
            kv_tokens=float(table.cached[slots_R].sum()),
            other_rows=every - float(table.rows[slots_S].sum()),
            most_rows=min(self._most_rows, int(every) + spare_tokens),
            prefill_rows=self._prefill_rows / self._commits,
            burst_rows=self._prefill_rows / self._prefills if self._prefills else 1.0,
            are_bounds=self._overlap,
        )

    def _apply(self, slots_S: IntArray, load: Load, *, waited: int, lasts: int) -> bool:
        """Allocate, and write what follows to the table; True if it is to try something out.

        Args:
            slots_S: adaptive slots that run.
            load: what forwards cost.
            waited: forwards since the last plan.
            lasts: forwards until the next one, if this one changes a window.
        """
        table, acceptance = self._table, self._acceptance
        slots_N = np.append(slots_S, self._nobody)
        # New sequences are taken to be decoded as most are.
        acceptance.clear(slots_N[-1:], int(np.bincount(table.group[slots_S]).argmax()))
        stale_NW, valid_NW = acceptance.by_kind(slots_N)
        if self._masks:
            self.by_masks_2SW[:, slots_N] = stale_NW, valid_NW
        if self._ended.outgrown(table.generated[slots_S]):
            self._outputs, self._ends = self._tuning.prior_commits, 0.0
        # Where forwards are padded to what they may have, a draft that is kept costs nothing.
        kept_price = 0.0 if self._overlap else self._row_price
        run = long_run(valid_NW, stale_NW, acceptance.agreement(slots_N), kept_price)
        constrained_N = np.append(table.constrained[slots_S], table.constrained[slots_S].all()).astype(np.float64)
        run = run.with_outputs(
            self._ended.lengths(self._outputs / max(self._ends, 1e-3)),
            forced_S=constrained_N * (self._forced / max(1.0, self._chosen)),
            forced_row=self._unread_row,
        )
        run = run.with_bounds() if self._overlap else run
        most_S = self._widest(slots_S)
        widest_S = np.minimum(most_S, table.limit[slots_S] - table.generated[slots_S])
        # Where all are about to end, the plan is for those that follow; windows end with their sequences anyway.
        planned_S = most_S if (widest_S <= _ABOUT_TO_END).all() else widest_S
        widest_N = np.append(planned_S, most_S.max())
        chosen = self._allocate(run, widest_N, load)
        self._chosen_windows = chosen.masks_S
        if chosen.masks_S.any():
            self._probes.patience = 1
        self._row_price, self._seconds_per_commit = chosen.row_price, chosen.seconds_per_commit
        masks_N: IntArray = chosen.masks_S.copy()
        second = self._second(chosen, len(slots_S)) if self._corrects else None
        self._timing = tried = second is not None
        if second is not None:
            masks_N = second.masks_S
            self._probes.stop()
        else:
            tried = self._probes.place(
                slots_S, masks_N[:-1], widest_S, load, chosen.seconds_per_commit, waited=waited, lasts=lasts,
                overhead=self._pace.seconds_of(_PLANS_OF_PROBE),
            )  # fmt: skip
        most_N = np.maximum(np.append(table.masks[slots_S], 0), masks_N)  # drafts that are there or to come
        if self._overlap:  # more drafts than masks would go beyond the rows that were paid for
            most_N = np.where(masks_N > 0, masks_N, most_N)
        stale_N = np.minimum(run.kept_SW[np.arange(len(masks_N)), masks_N], most_N)
        table.masks[slots_S], table.keep_valid[slots_S], table.keep_stale[slots_S] = (
            masks_N[:-1], most_N[:-1], stale_N[:-1]
        )  # fmt: skip
        self._new_windows = int(masks_N[-1]), int(stale_N[-1])
        if self._overlap:
            self._padded.plan(slots_S, masks_N[:-1], widest_S, int(masks_N[-1]), load)
        return tried

    def _widest(self, slots_S: IntArray) -> IntArray:
        """Masks that the window of each slot may have."""
        return self._table.widest[slots_S] if self._masks else np.zeros(len(slots_S), dtype=np.int64)

    def _allocate(self, run: LongRun, widest_N: IntArray, load: Load) -> Allocation:
        """Allocate by what is known of masks, and of a visit that ends with this plan."""
        sequences, weight_N = len(widest_N) - 1, np.append(np.ones(len(widest_N) - 1), 0.0)

        def chosen(bias: float) -> Allocation:
            return allocate(run, widest_N, load, weight_N, self._tuning, bias=bias)

        race = self._race
        compares, own = race.arrive(sequences), race.bias(sequences)
        shift = self._shift(chosen(0.0).masks_over_none, sequences) if race.elsewhere else 0.0
        found = chosen(own - shift)
        if not compares:
            return found
        ratio = found.masks_over_none
        race.learn(sequences, None if ratio is None else ratio - own)
        return chosen(race.bias(sequences) - shift)

    def _shift(self, expected: float | None, sequences: int) -> float:
        """By how much less is expected of masks beside drafts from elsewhere, as a logarithm of rates.

        What masks bring alone says nothing of what they add to these. Where they lose alone, they do not gain there.

        Args:
            expected: of masks alone, over none, before correction; None if unknown.
            sequences: that the plan is for.
        """
        if expected is None:
            return 0.0
        return expected - min(0.0, expected + self._race.bias(sequences, elsewhere=False))

    def _second(self, chosen: Allocation, sequences: int) -> Rival | None:
        """What comes second, where it is to be done for some forwards: to compare, or to time its rows."""
        self._race.follow(sequences, chosen.masks_over_none, chosen.has_masks)
        if self._race.is_due(sequences):
            self._race.begin(sequences)
            return chosen.lasting_rival
        if self._race.is_comparing or not self._wants_timing(chosen):
            return None
        self._race.pause()
        return chosen.rival

    def _wants_timing(self, chosen: Allocation) -> bool:
        """Whether to do for once what comes second: nothing else corrects the cost of forwards that are not run."""
        if chosen.rival is None or chosen.rival.rate < self._tuning.rival_within * chosen.rate:
            return False
        kind = int(chosen.rival.masks_S.any())
        if self._since_2[kind] < self._rival_wait:
            return False
        # Its forwards may have fewer rows than those that count as wide: none the less it is done now.
        self._since_2[kind] = 0.0
        self._rival_wait = min(2 * self._rival_wait, self._tuning.rival_interval)
        return True
