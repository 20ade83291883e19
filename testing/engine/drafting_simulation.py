"""Drafting in a discrete-event simulation with the constants of an H200: no GPU and no model is involved.

Sequences with a context and an acceptance (each draft is right with this probability given that those before it are)
are decoded forward by forward as ``verified`` does: [head][drafts][masks]. A draft that was proposed after a token
that turned out wrong is right as often as others, or less often. A forward costs 3.2 ms for the weights or 19 us per
row, whichever is more, and 31 ns per cached token of each sequence (WeDLM-8B in bf16, by arithmetic). Drafting and
its estimates are the engine's own code; they are not told the acceptance.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from wedlm_core.config.step_cost import StepCost
from wedlm_core.engine.drafting.drafting import Drafting
from wedlm_core.engine.drafting.step_time import StepReport
from wedlm_core.engine.scheduling.slots import SlotTable, StepOutcome

WEIGHTS_SECONDS, ROW_SECONDS, KV_SECONDS = 3.2e-3, 19e-6, 31e-9
H200 = StepCost.linear(
    fixed=WEIGHTS_SECONDS,
    per_row=ROW_SECONDS,
    per_kv=KV_SECONDS,
    floor_rows=round(WEIGHTS_SECONDS / ROW_SECONDS),
)
WIDEST = 32
TOKENS = 256  # of a sequence

IntArray = np.ndarray[tuple[int, ...], np.dtype[np.int64]]
BoolArray = np.ndarray[tuple[int, ...], np.dtype[np.bool_]]


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """The text: ``acceptance`` of the sequences in turn, times ``stale`` after a wrong token.

    Attributes:
        tokens: outputs of a sequence; then another takes its place.
        prompt: rows of prefill of each new sequence, in the forward after the end of the last one.
        host_seconds: of a step besides its forward, without drafts and with some.
        overlap: whether forwards are padded to the rows that they have at most, as a host knows these that overlaps.
    """

    batch: int
    context: int
    acceptance: tuple[float, ...]
    stale: float = 1.0
    tokens: int = TOKENS
    prompt: int = 0
    host_seconds: tuple[float, float] = (0.0, 0.0)
    overlap: bool = False


@dataclass(frozen=True, kw_only=True)
class Step:
    """A forward as drafting hears of it."""

    outcome: StepOutcome
    ended: BoolArray
    prefill_rows: int
    forward_rows: int
    forward_seconds: float
    host_seconds: float


class Policy(Protocol):
    """Sets ``masks``, ``keep_valid`` and ``keep_stale`` of a slot table."""

    def start(self, slots: SlotTable) -> None:
        """Before the first forward."""
        ...

    def admit(self, taken: IntArray) -> None:
        """Other sequences begin in these slots."""
        ...

    def plan(self) -> None:
        """Before the windows of a forward are refilled."""
        ...

    def observe(self, step: Step) -> None:
        """After a forward."""
        ...


class FixedWindow:
    """The same window always; 0 is autoregressive."""

    def __init__(self, window: int) -> None:
        self._window = window

    def start(self, slots: SlotTable) -> None:
        """Set it once."""
        for array in (slots.masks, slots.keep_valid, slots.keep_stale):
            array[:] = self._window

    def admit(self, taken: IntArray) -> None:
        """Nothing changes."""

    def plan(self) -> None:
        """Nothing changes."""

    def observe(self, step: Step) -> None:
        """Nothing is learned."""


class Planned:
    """The engine's drafting, which sees outcomes and the seconds of forwards, and believes ``cost`` at first."""

    def __init__(self, cost: StepCost, *, overlap: bool = False) -> None:
        self._cost, self._overlap = cost, overlap

    def start(self, slots: SlotTable) -> None:
        """All slots are its own."""
        self._slots = slots
        self._every = np.arange(len(slots.masks))
        self.drafting = Drafting(
            slots, WIDEST, 1 << 30, lambda: self._cost, overlap=self._overlap
        )  # fmt: skip
        slots.adaptive[:], slots.widest[:] = True, WIDEST
        self.admit(self._every)

    def admit(self, taken: IntArray) -> None:
        """New sequences get the windows of the last plan."""
        self.drafting.admit(taken, len(self._every), {})

    def plan(self) -> None:
        """Plan where it is time to."""
        self.drafting.plan(self._every, lambda: 1 << 30)

    def observe(self, step: Step) -> None:
        """Learn how drafts fared."""
        self.drafting.observe(
            StepReport(
                slots_D=self._every,
                rows_D=self._slots.rows.copy(),
                outcome=step.outcome,
                emit_D=step.outcome.count_D,
                ended_D=step.ended,
                can_draft=True,
                prefill_rows=step.prefill_rows,
                forward_rows=step.forward_rows,
                kv_tokens=int(self._slots.cached.sum()),
                seconds=step.host_seconds + step.forward_seconds,
                forward_seconds=step.forward_seconds,
            )
        )


class _Machine:
    """State of the sequences, and the forward."""

    def __init__(self, scenario: Scenario, policy: Policy, cost: StepCost, seed: int) -> None:
        count = scenario.batch
        self._random = np.random.default_rng(seed)
        self._cost, self._policy, self._scenario = cost, policy, scenario
        self._acceptance = np.resize(np.array(scenario.acceptance), count)
        self.slots = SlotTable(count, 2 * WIDEST + 1)
        self.slots.limit[:] = scenario.tokens
        # Sequences are met half way, not all at their first token at once.
        self.slots.generated[:] = self._random.integers(0, scenario.tokens, count)
        self._candidates, self._valid = np.zeros(count, dtype=np.int64), np.ones(count, dtype=np.bool_)
        self._prefill = 0
        self._bound = np.ones(count, dtype=np.int64)
        policy.start(self.slots)

    def forward(self) -> tuple[float, int]:
        """Seconds and tokens of one step of all sequences."""
        slots, count, scenario = self.slots, len(self._acceptance), self._scenario
        slots.cached[:] = scenario.context + slots.generated
        self._policy.plan()
        left = slots.limit - slots.generated
        most = np.minimum(np.where(self._valid, slots.keep_valid, slots.keep_stale), left)
        drafts = np.clip(self._candidates, 0, np.maximum(most, 0))
        masks = np.clip(slots.masks, 0, np.maximum(left - drafts, 0))
        slots.rows[:] = 1 + drafts + masks
        rows, prefill = int(slots.rows.sum()), self._prefill
        padded = self._padded(masks, left) if scenario.overlap else rows
        host = scenario.host_seconds[int(rows > count)]
        seconds = float(self._cost(np.array([padded + prefill]), float(slots.cached.sum()), count)[0])
        agreed = np.minimum(self._run_of_hits(np.where(self._valid, 1.0, scenario.stale)), drafts)
        commits = agreed + 1
        self._candidates = np.maximum(drafts + masks - commits, 0)
        # The first mask proposes the token that the last draft's row decides: right as often as a draft.
        valid = (agreed == drafts) & (self._random.random(count) < self._acceptance)
        emitted = np.minimum(commits, left)
        outcome = outcome_of(drafts, agreed, self._valid, valid, emitted)
        self._valid = valid
        slots.generated += emitted
        ended = slots.generated >= slots.limit
        self._policy.observe(
            Step(outcome=outcome, ended=ended, prefill_rows=prefill, forward_rows=padded + prefill,
                 forward_seconds=seconds, host_seconds=host)
        )  # fmt: skip
        self._replace(np.flatnonzero(ended))
        return host + seconds, int(emitted.sum())

    def _padded(self, masks: IntArray, left: IntArray) -> int:
        """Rows at most, as :meth:`wedlm_core.decoding.strategies.verified.VerifiedDecoding.next_rows` bounds them."""
        kept = np.minimum(np.maximum(self.slots.keep_valid, self.slots.keep_stale), np.maximum(self._bound - 2, 0))
        self._bound = 1 + np.minimum(masks + kept, np.maximum(left - 1, 0))
        return int(self._bound.sum())

    def _run_of_hits(self, factor: np.ndarray) -> IntArray:
        hit = self._random.random((len(factor), 2 * WIDEST)) < (self._acceptance * factor)[:, None]
        return hit.cumprod(axis=1).sum(axis=1)

    def _replace(self, taken: IntArray) -> None:
        scenario = self._scenario
        self._prefill = scenario.prompt * len(taken)
        if len(taken):
            kinds = np.array(scenario.acceptance)
            self._acceptance[taken] = kinds[taken % len(kinds)]
            self.slots.generated[taken], self._candidates[taken], self._valid[taken] = 0, 0, True
            self._bound[taken] = 1
            self._policy.admit(taken)


def outcome_of(
    drafts: IntArray, agreed: IntArray, valid: np.ndarray, next_valid: np.ndarray, emitted: IntArray
) -> StepOutcome:
    """The outcome of a forward by its columns, [D]; tokens are 0."""
    nothing = np.zeros((len(drafts), 1))
    return StepOutcome(
        count_D=emitted, next_rows_D=drafts, context_D=agreed + 1, drafts_D=drafts, agreed_D=agreed,
        offered_D=drafts, valid_D=valid.copy(), next_valid_D=next_valid.copy(), token_DC=nothing.astype(np.int64),
        entropy_DC=nothing.astype(np.float32), logprob_DC=nothing.astype(np.float32), early_DC=nothing.astype(bool),
    )  # fmt: skip


def simulate(
    scenario: Scenario, policy: Policy, *, forwards: int, warm_up: int, cost: StepCost = H200, seed: int | None = None
) -> float:
    """Tokens per second over ``forwards`` forwards after ``warm_up`` others; the seed is the batch size by default."""
    machine = _Machine(scenario, policy, cost, scenario.batch if seed is None else seed)
    for _ in range(warm_up):
        machine.forward()
    seconds, tokens = (sum(part) for part in zip(*(machine.forward() for _ in range(forwards)), strict=True))
    return tokens / seconds
