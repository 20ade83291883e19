"""Who gets how many masks in the coming forwards: acceptance, cost and load brought together. Torch-free.

Sequences with ``window_size="auto"`` are planned together every few forwards; a new one gets what the last
plan would give a sequence without a past. What is decided takes effect when windows are refilled at the end
of the next forward, so a decision never waits for the device.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from wedlm_core.config.step_cost import StepCost
from wedlm_core.engine.scheduling.slots import BoolArray, IntArray, SlotTable, StepOutcome
from wedlm_core.engine.windows.acceptance import Acceptance, FloatArray
from wedlm_core.engine.windows.allocation import Allocation, LongRun, allocate, expected_rate, long_run, newcomer
from wedlm_core.engine.windows.step_time import HostTime, Load
from wedlm_core.engine.windows.tuning import DEFAULT_TUNING, PlannerTuning

__all__ = ["WindowPlanner", "corrected"]


class WindowPlanner:
    """Keeps ``masks``, ``keep_valid`` and ``keep_stale`` of the slot table up to date for adaptive slots.

    Args:
        table: slots; ``adaptive``, ``widest``, ``limit``, ``generated``, ``cached`` and ``rows`` are read.
        widest: the largest window of any request.
        most_rows: the engine's row budget.
    """

    def __init__(self, table: SlotTable, widest: int, most_rows: int, tuning: PlannerTuning = DEFAULT_TUNING) -> None:
        self._tuning = tuning
        slots = len(table.limit)
        self._table, self._most_rows = table, most_rows
        # The last place stands for a sequence without a past, so that each plan says what the next one gets.
        self._acceptance = Acceptance(slots + 1, max(1, widest), tuning)
        self._nobody, self._widest = slots, max(1, widest)
        self._fresh: tuple[int, int, int] | None = None  # masks, valid and stale drafts of such a sequence
        self._flow = np.zeros(3)  # commits, rows of prefill that went with them, and outputs that ended
        self._host = (HostTime(tuning), HostTime(tuning))  # of steps without masks, and with some
        self._turnover, self._masked = 0, False  # sequences that came and went in this step; whether it had masks
        # Real over measured seconds, by rows (half octaves), and whether forwards have told of it.
        self._factor = np.ones(32)
        self._seen = np.zeros(32, dtype=np.bool_)
        # Windows are chosen where estimates are high, hence rather too high: what they bring in truth corrects that.
        # [stale or valid, slot, drafts]: how many of so many drafts are expected to be committed; and of those that
        # were forwarded: expected, real.
        self._promise = np.zeros((2, slots + 1, max(1, widest) + 1))
        self._gain = np.zeros(2)
        self._unforeseen = np.zeros(2)  # the same since the job's past was last doubted
        self._age, self._wait, self._planned_for = 0, 0, 0  # forwards since the last plan, until the next; sequences
        self._credit, self._row_price = 0.0, 0.0
        self._advantage = 0.0  # of masks over none, as a ratio of rates; 0: not known for so many sequences
        self._free_probes = self._tuning.first_probes
        self._last_probe = np.zeros(slots, dtype=np.int64)
        self._plans = 0

    def admit(self, slots_S: IntArray, running: int) -> bool:
        """Give new sequences what the last plan has for them; False where a new plan is due at once.

        Args:
            slots_S: their slots.
            running: sequences that run, these included. A plan for far fewer would be lavish with rows.
        """
        table = self._table
        self._turnover += len(slots_S)
        self._acceptance.clear(slots_S, table.group[slots_S])
        self._promise[:, slots_S] = self._promise[:, self._nobody, None]
        if self._fresh is None or running > self._tuning.grown * self._planned_for:
            self._fresh = None
            return False
        mine_S = slots_S[table.adaptive[slots_S]]
        windows = (table.masks, table.keep_valid, table.keep_stale)
        for array, value in zip(windows, self._fresh, strict=True):
            array[mine_S] = np.minimum(value, table.widest[mine_S])
        return True

    def observe(
        self,
        slots_D: IntArray,
        rows_D: IntArray,
        outcome: StepOutcome,
        emit_D: IntArray,
        ended_D: BoolArray,
        prefill_rows: int,
    ) -> None:
        """Take in the outcome of a forward of ``rows_D`` decode rows.

        Args:
            slots_D: its decoding sequences.
            rows_D: decode rows of each.
            outcome: what it committed.
            emit_D: how much of that is output.
            ended_D: sequences that it ended.
            prefill_rows: rows of prefill that went with it.
        """
        ended = int(ended_D.sum())
        self._flow = self._flow * self._tuning.flow_kept + (emit_D.sum(), prefill_rows, ended)
        self._turnover += ended
        self._masked = bool((rows_D > 1).any())
        self._age += 1
        mine = self._table.adaptive[slots_D] & (rows_D > 1)  # a head alone tells nothing
        if mine.any():
            self._compare(slots_D[mine], outcome.valid_D[mine], outcome.offered_D[mine], emit_D[mine])
            self._acceptance.observe(
                slots_D[mine],
                outcome.valid_D[mine],
                outcome.offered_D[mine],
                outcome.agreed_D[mine],
                outcome.next_valid_D[mine],
                ~ended_D[mine],
            )

    def _compare(self, slots_D: IntArray, valid_D: BoolArray, offered_D: IntArray, emit_D: IntArray) -> None:
        """Count what drafts were expected to bring, and brought."""
        drafts_D = np.minimum(offered_D, self._widest)
        expected = float(self._promise[valid_D.astype(np.int64), slots_D, drafts_D].sum())
        told = expected, float((emit_D - 1)[drafts_D > 0].sum())
        self._gain += told
        self._unforeseen += told

    def _surprised(self) -> bool:
        """Whether masks bring far more or less than chance has it: the job is no longer what it was."""
        expected, real = self._unforeseen.tolist()
        # What comes varies about twice as it counts.
        return abs(expected - real) > self._tuning.surprise * math.sqrt(2 * expected + 1)

    def _forwards(self, sequences: int) -> int:
        return self._tuning.plan_base + sequences // self._tuning.plan_per

    def finished(self, tokens: int) -> None:
        """An adaptive sequence's output ended at this length."""
        self._acceptance.finished(tokens)

    def took(self, host_seconds: float) -> None:
        """What the step that was observed last cost besides its forward."""
        self._host[self._masked].took(host_seconds, self._turnover)
        self._turnover = 0

    def ran(self, rows: int, kv_tokens: int, sequences: int, seconds: float, cost: StepCost) -> None:
        """What a forward of these rows really took: the measured table is corrected where forwards are run."""
        expected = cost.one(rows, kv_tokens, sequences)
        if expected <= 0:
            return
        place = min(round(math.log2(max(1, rows)) * 2), len(self._factor) - 1)
        ratio = min(max(seconds / expected, 1 / self._tuning.trust), self._tuning.trust)
        self._factor[place] += self._tuning.correct * (ratio - self._factor[place])
        self._seen[place] = True

    def plan(self, slots_R: IntArray, cost: StepCost, spare_tokens: int) -> bool:
        """Plan for the running slots where it is time to; True if the table's windows were rewritten.

        Args:
            slots_R: all running slots.
            cost: of forwards.
            spare_tokens: KV entries that are free: windows do not grow into what is not there.
        """
        slots_S = slots_R[self._table.adaptive[slots_R]]
        if not len(slots_S):
            return False
        shortest, surprised = self._forwards(len(slots_S)), self._surprised()
        if self._fresh is not None and self._age < (shortest if surprised else self._wait):
            return False
        kept = self._tuning.gain_kept ** (self._age / shortest)
        self._gain *= kept
        self._unforeseen *= kept
        if surprised:
            self._acceptance.doubt()
            self._unforeseen[:] = 0
        if not 1 / self._tuning.grown <= len(slots_R) / max(1, self._planned_for) <= self._tuning.grown:
            self._advantage = 0.0
        self._age, self._planned_for = 0, len(slots_R)
        before_S = self._table.masks[slots_S]
        self._apply(slots_S, self._load(slots_R, slots_S, cost, spare_tokens))
        calm = not surprised and (self._table.masks[slots_S] == before_S).all()
        self._wait = min(2 * self._wait, self._tuning.calm * shortest) if calm else shortest
        self._plans += 1
        return True

    def _load(self, slots_R: IntArray, slots_S: IntArray, cost: StepCost, spare_tokens: int) -> Load:
        table, (plain, masked) = self._table, self._host
        if not self._tuning.host:
            plain = masked = HostTime(self._tuning)
        if not self._tuning.split_host:
            plain = masked
        every = float(table.rows[slots_R].sum())
        return Load(
            cost=corrected(cost, self._factor, self._seen),
            host_seconds=masked.per_step() if masked.known else plain.per_step(),
            plain_host_seconds=plain.per_step() if plain.known else masked.per_step(),
            kv_tokens=float(table.cached[slots_R].sum()),
            other_rows=every - float(table.rows[slots_S].sum()),
            most_rows=min(self._most_rows, int(every) + spare_tokens),
        )

    def _apply(self, slots_S: IntArray, load: Load) -> None:
        """Allocate, and write what follows to the table."""
        table, acceptance = self._table, self._acceptance
        with_fresh = np.append(slots_S, self._nobody)
        # Newcomers are taken to be decoded as most are.
        acceptance.clear(with_fresh[-1:], int(np.bincount(table.group[slots_S]).argmax()))
        stale_SW, valid_SW = acceptance.by_kind(with_fresh)
        alive_W = acceptance.alive()
        prefill, ends = (self._flow[1:] / (self._flow[0] + self._tuning.flow_prior)).tolist()
        run = long_run(valid_SW, stale_SW, acceptance.agreement(with_fresh), alive_W, self._row_price, self._tuning)
        run = run.with_prefill(prefill if self._tuning.prefill else 0.0)
        widest_S = np.append(np.minimum(table.widest[slots_S], table.limit[slots_S] - table.generated[slots_S]), 0)
        widest_S = np.minimum(widest_S, np.count_nonzero(alive_W >= self._tuning.reached))
        whole = run.from_the_start(ends) if self._tuning.whole_outputs else run
        own = whole.first(len(slots_S))
        before_S = np.append(table.masks[slots_S], 0)
        chosen = self._checked(
            allocate(own, widest_S[:-1], load, before_S[:-1], self._tuning), before_S[:-1], own, load
        )
        # Where masks pay for nobody, they do not for a newcomer: newcomers come in bursts.
        fresh = 0
        if chosen.masks_S.any():
            commits = whole.commits_SW[np.arange(len(slots_S)), chosen.masks_S].sum()
            fresh = newcomer(whole, chosen.masks_S, load, ends * commits * self._forwards(len(slots_S)), self._tuning)
        masks_S = np.append(self._probed(slots_S, chosen.masks_S, widest_S[:-1]), fresh)
        self._row_price = chosen.row_price
        stale_S, valid_S = self._kept(stale_SW, valid_SW, np.maximum(before_S, masks_S), prefill)
        # Where masks follow stale drafts it counts besides what becomes of those.
        stale_S = np.where(masks_S > 0, run.kept_SW[np.arange(len(masks_S)), masks_S], stale_S)
        for kind, acceptance_SW in enumerate((stale_SW, valid_SW)):
            self._promise[kind, with_fresh, 1:] = acceptance_SW.cumsum(axis=-1)
        table.masks[slots_S] = masks_S[:-1]
        table.keep_valid[slots_S], table.keep_stale[slots_S] = valid_S[:-1], stale_S[:-1]
        self._fresh = int(fresh), int(valid_S[-1]), int(stale_S[-1])

    def _kept(
        self, stale_SW: FloatArray, valid_SW: FloatArray, most_S: IntArray, prefill: float
    ) -> tuple[IntArray, IntArray]:
        """How many (stale, valid) drafts are worth their rows by themselves, of ``most_S``.

        A draft that is there costs one row, and ``prefill`` rows where it is accepted.
        """
        least = self._row_price / (1 - min(0.9, prefill * self._row_price))
        if not self._tuning.drop_drafts:
            return most_S, most_S
        stale_S, valid_S = (
            np.minimum((acceptance_SW >= least).sum(axis=-1), most_S) for acceptance_SW in (stale_SW, valid_SW)
        )
        return stale_S, valid_S

    def _checked(self, chosen: Allocation, before_S: IntArray, run: LongRun, load: Load) -> Allocation:
        """What was chosen; or no masks at all, where what masks bring in truth would not pay for them."""
        honest = replace(run, commits_SW=1 + (run.commits_SW - 1) * self._honesty())
        nothing_S = np.zeros_like(chosen.masks_S)
        now = expected_rate(honest, chosen.masks_S, load) / expected_rate(honest, nothing_S, load)
        self._advantage += (now - self._advantage) * (self._tuning.advantage if self._advantage else 1.0)
        masked = 2 * np.count_nonzero(before_S > 0) > len(before_S)
        # Masks for a few of many take the whole batch from the kind of step that costs the host less.
        crowd = len(before_S) >= self._tuning.crowd and load.host_seconds > 0
        few = crowd and self._tuning.few * np.count_nonzero(chosen.masks_S) < len(before_S)
        pays = not few and self._advantage >= (1.0 if masked else self._tuning.margin)
        return chosen if pays or not self._tuning.check else allocate(run, nothing_S, load, tuning=self._tuning)

    def _honesty(self) -> float:
        """Commits that masks bring, as a share of what is expected of them."""
        expected, real = self._gain
        low, high = self._tuning.gain_range
        return min(max((real + self._tuning.gain_prior) / (expected + self._tuning.gain_prior), low), high)

    def _probed(self, slots_S: IntArray, masks_S: IntArray, widest_S: IntArray) -> IntArray:
        """Give one sequence without masks a few, now and then: else a sequence that got easier is never found out."""
        forwards = self._forwards(len(slots_S))
        self._credit += self._tuning.probe_share * self._wait * len(slots_S)
        price = forwards * 2 * self._tuning.probe_masks
        idle: BoolArray = (masks_S < 2) & (widest_S >= self._tuning.probe_masks)
        young = self._free_probes > 0 and len(slots_S) >= self._tuning.crowd
        if not idle.any() or (self._credit < price and not young):
            self._credit = min(self._credit, price)
            return masks_S
        if young:
            self._free_probes -= 1
        else:
            self._credit -= price
        place = int(np.where(idle, self._last_probe[slots_S], np.iinfo(np.int64).max).argmin())
        self._last_probe[slots_S[place]] = self._plans
        probed = masks_S.copy()
        probed[place] = self._tuning.probe_masks
        return probed


def corrected(cost: StepCost, factor: np.ndarray, seen: np.ndarray) -> StepCost:
    """The table times ``factor`` by half octaves of rows, where ``seen``; in between, between their factors."""
    told = np.flatnonzero(seen)
    if not len(told):
        return cost
    place = np.log2(np.maximum(1, np.array(cost.rows))) * 2
    seconds = np.maximum.accumulate(np.array(cost.seconds) * np.interp(place, told, factor[told]))
    overall = float(factor[told].mean())
    return replace(
        cost,
        seconds=tuple(seconds.tolist()),
        per_sequence=cost.per_sequence * overall,
        per_kv=cost.per_kv * overall,
        per_row_kv=cost.per_row_kv * overall,
    )
