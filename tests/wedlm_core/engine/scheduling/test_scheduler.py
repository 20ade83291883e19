"""The scheduler as plain logic: random loads, tiny pools and budgets, no tensors."""

from __future__ import annotations

import random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from testing.engine.scheduling_oracle import spent_rows
from wedlm_core.config import EngineConfig
from wedlm_core.engine.scheduling.scheduler import ForwardPlan, Scheduler, context_length, most_rows
from wedlm_core.engine.scheduling.sequence import Sequence
from wedlm_core.engine.scheduling.slots import SlotTable
from wedlm_core.kernels.cpu.slot_kernels import booked_rows
from wedlm_core.kv.pages import PageManager
from wedlm_core.types import Request, SamplingParams


class Machine:
    """A scheduler with an engine that commits random numbers of tokens instead of running a model."""

    def __init__(self, config: EngineConfig, pages: int, seed: int) -> None:
        self.random = random.Random(seed)
        self.groups = self.random.choice([1, 3])
        self.table = SlotTable(config.max_num_seqs, 2 * config.max_window + 1)
        self.pages = PageManager(pages, config.page_size, prefix_caching=config.prefix_caching)
        self.scheduler = Scheduler(config, self.table, self.pages, self._set_up)
        self.config, self.unfinished = config, 0

    def add(self, arrival: int, prompt: int, tokens: int, window: int, head: bool) -> None:
        ids = tuple(self.random.randrange(3) for _ in range(prompt))
        width = self.random.choice([window, "auto"])  # "auto": all rows together may exceed the budget
        params = SamplingParams(max_tokens=tokens, window_size=width, strategy="verified")
        request = Request(request_id=str(arrival), prompt_token_ids=ids, params=params)
        self.scheduler.add(Sequence(request=request, arrival=arrival, head=head, widest=window))
        self.unfinished += 1

    def _rows(self, sequence: Sequence) -> int:
        return self.random.randint(1, most_rows(sequence))

    def _set_up(self, sequences: list[Sequence]) -> None:
        for s in sequences:
            self.table.context[s.slot] = context_length(s)
            self.table.set_limit(s.slot, s.request.params.max_tokens + 64)
            self.table.widest[s.slot], self.table.head[s.slot] = s.widest, s.head
            self.table.adaptive[s.slot] = s.request.params.adaptive
            self.table.group[s.slot] = s.arrival % self.groups
            self.table.rows[s.slot] = self._rows(s)

    def run(self, plan: ForwardPlan) -> None:
        """The engine's use of a plan, on counts alone."""
        for i, s in enumerate(plan.sequences):
            self.table.cached[s.slot] += plan.prefill_S[i]
            if not plan.decode_S[i]:
                continue
            committed = self.random.randint(0 if not s.head else 1, int(plan.decode_S[i]))
            for _ in range(committed):
                self.table.output[s.slot, self.table.generated[s.slot]] = self.random.randrange(3)
                self.table.generated[s.slot] += 1
            self.table.context[s.slot] += committed
            self.table.cached[s.slot] = self.table.context[s.slot]
            self.table.rows[s.slot] = self._rows(s)
            assert s.pages is not None
            self.pages.seal(s.pages, self.scheduler.known_tokens(s), int(self.table.cached[s.slot]))
            if self.table.generated[s.slot] >= s.request.params.max_tokens:
                self.scheduler.finish(s)
                self.unfinished -= 1


def check_equal(plan: ForwardPlan, scheduler: Scheduler) -> None:
    """A plan is that of arrays, from the same queues and the same table."""
    table, config, slots_R = scheduler.table, scheduler.config, scheduler.running_slots()
    places, *columns = spent_rows(table, slots_R, config.max_batch_rows, config.prefill_chunk)
    assert plan.sequences == [scheduler.running[place] for place in places.tolist()]
    for name, want in zip(("slots_S", "cached_S", "prefill_S", "decode_S"), (slots_R[places], *columns), strict=True):
        found = getattr(plan, name)
        np.testing.assert_array_equal(found, want, name)
        assert found.dtype == np.int64
        assert found.flags.writeable, "kernels would be compiled a second time"
        assert found.flags.c_contiguous, "as well"


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    running=st.integers(0, 9),
    groups=st.sampled_from([1, 2, 4]),
    budget=st.integers(9, 60),
    chunk=st.sampled_from([None, 1, 3, 20]),
    decoding=st.sampled_from([0.0, 0.5, 0.9, 1.0]),
    held=st.sampled_from([0.0, 0.3]),
)
def test_rows_are_spent_as_arrays_say(
    seed: int, running: int, groups: int, budget: int, chunk: int | None, decoding: float, held: float
) -> None:
    rng = np.random.default_rng(seed)
    config = EngineConfig(max_num_seqs=12, max_batch_rows=budget, max_window=4, page_size=4, prefill_chunk=chunk)
    machine = Machine(config, 40, seed)
    scheduler, table, slots = machine.scheduler, machine.table, rng.permutation(12)[:running]
    table.context[:] = rng.integers(1, 20, 12)
    table.cached[:] = np.where(rng.random(12) < decoding, table.context, rng.integers(0, table.context + 1))
    table.rows[:], table.group[:] = rng.integers(0, 9, 12), rng.integers(0, groups, 12)
    table.held[:] = rng.random(12) < held
    table.adaptive[:], table.widest[:] = rng.random(12) < 0.5, rng.integers(0, 5, 12)
    for arrival, slot in enumerate(slots.tolist()):
        machine.add(arrival, 3, 3, 2, True)
        sequence = scheduler.waiting.pop()
        sequence.slot = slot
        scheduler.running.append(sequence)
    check_equal(scheduler._pack(), scheduler)
    most = 2 * table.widest[slots] + table.head[slots]
    booked = booked_rows(scheduler.running_slots(), table.adaptive, table.rows, table.widest, table.head)
    assert booked == np.where(table.adaptive[slots], table.rows[slots], most).sum()


def check_plan(machine: Machine, plan: ForwardPlan) -> None:
    check_equal(plan, machine.scheduler)
    config, table = machine.config, machine.table
    assert plan.sequences, "requests wait, but nothing runs"
    assert int(plan.prefill_S.sum() + plan.decode_S.sum()) <= config.max_batch_rows
    assert np.all(plan.prefill_S + plan.decode_S > 0)
    decoding = int(np.count_nonzero(plan.decode_S))
    assert np.all(plan.decode_S[:decoding] > 0), "decoding sequences stand first"
    groups = table.group[plan.slots_S[:decoding]]
    assert np.all(np.diff(groups) >= 0), "sequences of one decoding stand together"
    for i, s in enumerate(plan.sequences):
        context, rows = int(table.context[s.slot]), int(plan.prefill_S[i] + plan.decode_S[i])
        assert plan.prefill_S[i] <= (config.prefill_chunk or config.max_batch_rows)
        assert s.pages is not None
        assert plan.cached_S[i] + rows <= len(s.pages.pages) * config.page_size, "a row has no page"
        if plan.decode_S[i]:
            assert plan.cached_S[i] + plan.prefill_S[i] == context, "decode rows before the prefill is done"
    machine.pages.check_integrity()


loads = st.lists(
    st.tuples(st.integers(1, 40), st.integers(1, 20), st.integers(1, 4), st.booleans()), min_size=1, max_size=12
)


@settings(max_examples=60, deadline=None)
@given(
    loads=loads,
    page_size=st.sampled_from([1, 4, 16]),
    spare=st.integers(0, 30),
    slots=st.integers(1, 5),
    chunk=st.sampled_from([None, 1, 7]),
    caching=st.booleans(),
    seed=st.integers(0, 2**20),
)
def test_every_request_finishes_within_pages_rows_and_slots(
    loads: list[tuple[int, int, int, bool]],
    page_size: int,
    spare: int,
    slots: int,
    chunk: int | None,
    caching: bool,
    seed: int,
) -> None:
    largest = max(prompt + 2 * tokens + 2 * window + 8 for prompt, tokens, window, _ in loads)
    config = EngineConfig(
        max_num_seqs=slots, max_batch_rows=9 + seed % 20, max_window=4, page_size=page_size, prefill_chunk=chunk,
        prefix_caching=caching,
    )  # fmt: skip
    pages = -(-largest // page_size) + spare // page_size
    machine = Machine(config, pages, seed)
    for arrival, (prompt, tokens, window, head) in enumerate(loads):
        machine.add(arrival, prompt, tokens, window, head)
    for _ in range(20_000):
        if not machine.unfinished:
            break
        plan = machine.scheduler.schedule()
        check_plan(machine, plan)
        machine.run(plan)
    assert machine.unfinished == 0
    assert machine.pages.num_free == pages
    assert not machine.scheduler.running
    assert not machine.scheduler.waiting


def test_page_pressure_preempts_the_youngest_and_keeps_its_slot() -> None:
    config = EngineConfig(max_num_seqs=2, max_batch_rows=9, max_window=4, page_size=1, prefix_caching=False)
    machine = Machine(config, 26, 0)
    machine.add(0, 5, 30, 1, True)
    machine.add(1, 5, 30, 1, True)
    plan = machine.scheduler.schedule()
    old, young = machine.scheduler.running
    slot = young.slot
    while young.pages is not None:
        machine.run(plan)
        plan = machine.scheduler.schedule()
    assert young.slot == slot
    assert young.preemptions == 1
    assert old.preemptions == 0
    assert machine.table.cached[slot] == 0
    assert machine.scheduler.waiting[0] is young


def test_adaptive_windows_that_are_too_many_together_take_turns_by_age() -> None:
    config = EngineConfig(max_num_seqs=5, max_batch_rows=9, max_window=4, page_size=16, prefix_caching=False)
    short = 0
    for seed in range(10):
        machine = Machine(config, 60, seed)
        for arrival in range(8):
            machine.add(arrival, 5, 20, 4, True)
        while machine.unfinished:
            plan = machine.scheduler.schedule()
            short += len(plan.sequences) < len(machine.scheduler.running)
            check_plan(machine, plan)
            machine.run(plan)
    assert short, "the budget held for all at once"
