"""The crash bisection against simulated processes: finds every row that kills and no other, in few deaths, and ends."""

from __future__ import annotations

import math
import random
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pipeline.errors import EngineDiedError
from pipeline.worker.crash_bisection import CrashBisection, Machine
from pipeline.worker.crash_trial import Attempt
from pipeline.worker.row_isolation import ChildDiedError, Gate, RowIsolation


class Died(BaseException):
    """The process is gone; its units are lost."""


class Cluster:
    """A worker whose processes hold up to ``width`` units at once; a unit stays in the queue until it is staged.

    Args:
        bisection: of the session.
        deadly: rows (unit, row) that kill their process as soon as they run.
        chance: called before rows run; True kills the process whatever they are.
        forks: whether processes run rows in children where the bisection asks for it.
        strikes: the row of a process, counted from 1, that kills it, whichever it is. None: no such fault.
    """

    def __init__(
        self, bisection: CrashBisection, deadly: set[tuple[int, int]], chance: Callable[[], bool] = lambda: False,
        *, forks: bool = False, strikes: int | None = None,
    ) -> None:  # fmt: skip
        self.bisection = bisection
        self.deadly = deadly
        self.chance = chance
        self.forks = forks
        self.strikes = strikes
        self.ran = 0
        self.deaths = 0
        self.child_deaths = 0
        self.chance_deaths = 0
        self.results: dict[int, list[object]] = {}
        self.gave_up = False

    def run(self, sizes: Sequence[int], width: int) -> None:
        queue = list(range(len(sizes)))
        while queue and not self.gave_up:
            process = f"p{self.deaths}"
            if not self.bisection.start_process("worker", process, f"machine of {process}").go_on:
                self.gave_up = True
                return
            self.ran = 0
            try:
                while queue:
                    self._batch(queue, sizes, width, process)
            except Died:
                self.deaths += 1
            except EngineDiedError:
                self.gave_up = True

    def _batch(self, queue: list[int], sizes: Sequence[int], width: int, process: str) -> None:
        """The first units as threads would: those without a limit in one go, else the others as they may."""
        isolation = RowIsolation(self.bisection, process)
        attempts = {
            unit: self.bisection.begin_unit(str(unit), sizes[unit], process, forks=self.forks) for unit in queue[:width]
        }
        free = [unit for unit, attempt in attempts.items() if attempt.concurrent_units is None]
        if free and not any(attempt.in_children for attempt in attempts.values()):
            self._run_beside(free, queue, sizes, isolation)
            return
        concurrent_units = min(attempt.concurrent_units or width for attempt in attempts.values())
        if concurrent_units > 1:
            group = list(attempts)[:concurrent_units]
            for unit in group:
                self.bisection.begin_step(str(unit), process, (0, sizes[unit]))
            self._run_beside(group, queue, sizes, isolation)
            return
        alone = next(unit for unit, attempt in attempts.items() if attempt.concurrent_units == 1)
        self.results[alone] = isolation.run(
            str(alone), sizes[alone], lambda rows: self._run([(alone, r) for r in rows]),
            lambda row, deaths: f"quarantined after {deaths}",
            (lambda rows: self._in_child([(alone, r) for r in rows])) if self.forks else None,
        )  # fmt: skip
        queue.remove(alone)
        isolation.finish(str(alone))

    def _run_beside(self, units: list[int], queue: list[int], sizes: Sequence[int], isolation: RowIsolation) -> None:
        self._run([(u, r) for u in units for r in range(sizes[u])])
        for unit in units:
            self.results[unit] = list(range(sizes[unit]))
            queue.remove(unit)
            isolation.finish(str(unit))

    def _in_child(self, rows: list[tuple[int, int]]) -> list[object]:
        before, self.ran = self.ran, 0
        try:
            return self._run(rows)
        except Died:
            self.child_deaths += 1
            raise ChildDiedError from None
        finally:
            self.ran = before

    def _run(self, rows: list[tuple[int, int]]) -> list[object]:
        self.ran += len(rows)
        if self.chance():
            self.chance_deaths += 1
            raise Died
        if self.deadly & set(rows) or (self.strikes is not None and self.ran >= self.strikes):
            raise Died
        return [row for _, row in rows]


@st.composite
def jobs(draw: st.DrawFn) -> tuple[list[int], set[tuple[int, int]], int]:
    sizes = draw(st.lists(st.integers(1, 40), min_size=1, max_size=40))
    every = [(u, r) for u, size in enumerate(sizes) for r in range(size)]
    return sizes, draw(st.sets(st.sampled_from(every), max_size=4)), draw(st.integers(1, 40))


@given(job=jobs(), max_row_deaths=st.integers(1, 3))
@example(job=([4], {(0, row) for row in range(4)}, 1), max_row_deaths=3)
@settings(max_examples=60, deadline=None)
def test_exactly_the_rows_that_kill_are_quarantined(
    job: tuple[list[int], set[tuple[int, int]], int], max_row_deaths: int
) -> None:
    sizes, deadly, width = job
    cluster = Cluster(CrashBisection(max_row_deaths, max_engine_deaths=3), deadly)
    cluster.run(sizes, width)
    if len(deadly) == sum(sizes) and len(sizes) > 1:
        return  # no row can be done, so the end comes when some units are done
    assert not cluster.gave_up
    assert set(cluster.results) == set(range(len(sizes)))
    for unit, results in cluster.results.items():
        killers = {row for u, row in deadly if u == unit}
        assert [isinstance(r, str) for r in results] == [row in killers for row in range(sizes[unit])]
        assert [r for r in results if not isinstance(r, str)] == [r for r in range(sizes[unit]) if r not in killers]
    halvings = sum(math.ceil(math.log2(sizes[u])) + 1 for u, _ in deadly)
    # Per unit with a killer two deaths beside any others and one with few concurrent units (40 / 8 = 5, then alone),
    # the halvings, and the allowance of a single row.
    assert cluster.deaths <= 3 * len({u for u, _ in deadly}) + halvings + max_row_deaths * len(deadly)


def test_innocent_units_are_not_all_run_alone() -> None:
    """Of 64 units that died in one process twice, those that ran beside a killer once more run alone: 8."""
    bisection = CrashBisection(2, 3)
    cluster = Cluster(bisection, {(5, 3)})
    seen: list[int | None] = []
    begin = bisection.begin_unit

    def watched(unit_id: str, rows: int, process: str, *, alone: bool = False, forks: bool = False) -> Attempt:
        attempt = begin(unit_id, rows, process, alone=alone, forks=forks)
        seen.append(attempt.concurrent_units)
        return attempt

    bisection.begin_unit = watched  # type: ignore[method-assign]
    cluster.run([16] * 64, 64)
    assert not cluster.gave_up
    assert cluster.deaths == 2 + 1 + 4 + 2, "no limit, 8 concurrent units, 16 rows to 2, the row"
    assert set(seen) == {None, 8, 1}


@given(sizes=st.lists(st.integers(1, 30), min_size=2, max_size=12), width=st.integers(1, 12), data=st.data())
@settings(max_examples=40, deadline=None)
def test_a_unit_of_which_every_row_kills_costs_its_rows_and_not_the_job(
    sizes: list[int], width: int, data: st.DataObject
) -> None:
    bad = data.draw(st.integers(1, len(sizes) - 1))  # the first unit shows that processes can do rows
    bisection = CrashBisection(2, max_engine_deaths=3)
    cluster = Cluster(bisection, set())
    cluster.run([sizes[0]], 1)
    cluster.deadly = {(bad, row) for row in range(sizes[bad])}
    cluster.run(sizes, width)
    assert not cluster.gave_up
    for unit, results in cluster.results.items():
        assert [isinstance(result, str) for result in results] == [unit == bad] * sizes[unit]


def test_rows_are_not_left_out_one_and_all_where_processes_cannot_do_any_more() -> None:
    bisection = CrashBisection(2, max_engine_deaths=3)
    cluster = Cluster(bisection, set())
    cluster.run([4], 1)
    cluster.deadly = {(unit, row) for unit in range(1, 50) for row in range(4)}
    cluster.run([4] * 50, 8)
    assert cluster.gave_up
    assert sum(isinstance(result, str) for results in cluster.results.values() for result in results) <= 16


def test_an_engine_that_dies_of_everything_ends_the_job_in_bounded_deaths() -> None:
    cluster = Cluster(CrashBisection(2, max_engine_deaths=3), set(), lambda: True)
    cluster.run([32] * 1000, 64)
    assert cluster.gave_up
    assert cluster.deaths <= 3 + 4 + 5 + 6 + 1


@given(job=jobs(), kills=st.lists(st.booleans(), max_size=25), max_row_deaths=st.integers(1, 3))
@example(job=([33], set(), 1), kills=[True] * 8, max_row_deaths=1)
@settings(max_examples=60, deadline=None)
def test_processes_that_are_taken_away_cost_no_row_of_a_unit_with_enough_rows(
    job: tuple[list[int], set[tuple[int, int]], int], kills: list[bool], max_row_deaths: int
) -> None:
    """Kills by chance never end the job, and quarantine nothing that they did not hit alone again and again."""
    sizes, _, width = job
    left = list(kills)
    cluster = Cluster(CrashBisection(max_row_deaths, 10**6), set(), lambda: bool(left) and left.pop(0))
    cluster.run(sizes, width)
    assert not cluster.gave_up
    for unit, results in cluster.results.items():
        lost = [r for r in results if isinstance(r, str)]
        # At least; concurrent units only add to it. The shorter half of an odd number of rows is halved less often.
        needed = 2 + math.floor(math.log2(sizes[unit])) + max_row_deaths
        assert not lost or cluster.chance_deaths >= needed


def test_innocent_rows_beside_a_killer_are_not_run_alone_forever() -> None:
    """Rows that survive singly and kill in a group (memory) end as done, one by one."""
    bisection = CrashBisection(2, 3)
    cluster = Cluster(bisection, set())
    cluster._run = lambda rows: (_ for _ in ()).throw(Died) if len(rows) > 3 else [r for _, r in rows]  # type: ignore[method-assign]
    cluster.run([13], 1)
    assert cluster.results[0] == list(range(13))
    assert not cluster.gave_up


@pytest.mark.parametrize("forks", [False, True])
@pytest.mark.parametrize("sizes", [[12], [64], [16] * 6, [1] * 50], ids=["12", "64", "6 x 16", "50 x 1"])
@pytest.mark.parametrize("width", [1, 4])
def test_a_fault_of_the_kth_row_of_a_process_ends_with_all_rows_done(sizes: list[int], width: int, forks: bool) -> None:
    """A counter, a leak: no row is to blame. Where the first row of every process strikes, the job ends clearly."""
    for k in range(1, 41):
        cluster = Cluster(CrashBisection(2, max_engine_deaths=3), set(), forks=forks, strikes=k)
        cluster.run(sizes, width)
        if k == 1:
            assert cluster.gave_up
            assert cluster.deaths <= 3 + 4 + 6 + 6 + 1
            continue
        assert not cluster.gave_up, k
        assert cluster.results == {unit: list(range(size)) for unit, size in enumerate(sizes)}, k
        assert cluster.deaths <= 4 + 2 * sum(sizes), k
        if forks and width == 1 and max(sizes) > 1:
            assert cluster.deaths <= 4 + sum(sizes) / k, "after trouble in two units only children die"


@given(job=jobs(), seed=st.integers(0, 10**6), share=st.floats(0.0, 1.0), forks=st.booleans())
@settings(max_examples=60, deadline=None)
def test_a_fault_that_strikes_at_random_ends_in_results_quarantine_or_a_clear_end(
    job: tuple[list[int], set[tuple[int, int]], int], seed: int, share: float, forks: bool
) -> None:
    sizes, deadly, width = job
    draw = random.Random(seed)
    cluster = Cluster(CrashBisection(2, max_engine_deaths=3), deadly, lambda: draw.random() < share, forks=forks)
    cluster.run(sizes, width)
    rows = sum(sizes)
    assert cluster.gave_up or sorted(cluster.results) == list(range(len(sizes)))
    # Each death halves a piece, is one of those of a row, or comes between two rows that are done.
    assert cluster.deaths + cluster.child_deaths <= (rows + 1) * (3 + 4 + 6 + 6 + 1) + 3 * rows


@pytest.mark.parametrize("unit_rows", [1, 4, 16, 100])
@pytest.mark.parametrize("spread", [True, False])
@pytest.mark.parametrize("width", [1, 8])
def test_after_two_quarantined_rows_poison_costs_children_and_no_process(
    unit_rows: int, spread: bool, width: int
) -> None:
    """100 of 1,000 rows kill their process, each by itself or one after the other."""
    bad = {10 * i if spread else 400 + i for i in range(100)}
    cluster = Cluster(CrashBisection(2, 3), {divmod(row, unit_rows) for row in bad}, forks=True)
    cluster.run([unit_rows] * (1000 // unit_rows), width)
    assert not cluster.gave_up
    found = [isinstance(result, str) for unit in range(1000 // unit_rows) for result in cluster.results[unit]]
    assert {row for row, is_lost in enumerate(found) if is_lost} == bad
    assert cluster.deaths <= 5
    assert cluster.child_deaths <= 100 * (2 + 7)


@pytest.mark.parametrize("order", ["aabb", "abab", "abba", "baab"])
def test_units_that_run_one_after_the_other_may_each_lose_two_processes(order: str) -> None:
    """After a death, the next process may begin with another unit than the last one."""
    bisection = CrashBisection(2, max_engine_deaths=3)
    for number, unit in enumerate(order):
        assert bisection.start_process("worker", f"p{number}").go_on
        bisection.begin_unit(unit, 12, f"p{number}", forks=True)
    assert bisection.start_process("worker", "last").go_on
    assert bisection.begin_unit(order[-1], 12, "last", forks=True).in_children


def test_rows_that_are_done_are_not_run_again() -> None:
    """Not even where the process dies at a later row, nor after the unit was done and before it was staged."""
    ran: list[int] = []

    def do(rows: Sequence[int]) -> list[int]:
        ran.extend(rows)
        if 5 in rows:
            raise Died
        return list(rows)

    bisection = CrashBisection(2, 3)
    for number in range(20):
        isolation = RowIsolation(bisection, f"p{number}", alone=True)
        with suppress(Died):
            found = isolation.run("u", 8, do, lambda row, deaths: -1)
            break
    assert found == [0, 1, 2, 3, 4, -1, 6, 7]
    assert [ran.count(row) for row in (0, 1, 2, 3)] == [2] * 4, "with the others at first, then in their half"
    ran.clear()
    assert RowIsolation(bisection, "another", alone=True).run("u", 8, do, lambda row, deaths: -1) == found
    assert ran == []


def test_a_row_is_quarantined_only_if_it_kills_a_process_that_ran_nothing_before() -> None:
    bisection = CrashBisection(1, 10**6)
    bisection.begin_unit("u", 2, "p0", alone=True)
    bisection.begin_step("u", "p0", (0, 2))
    bisection.begin_unit("u", 2, "p1", alone=True)
    bisection.begin_step("u", "p1", (0, 1))
    bisection.finish_step("u", "p1", (0, 1), b"")
    bisection.begin_step("u", "p1", (1, 2))
    assert bisection.begin_unit("u", 2, "p2", alone=True).quarantined == {}, "it may have been the last straw"
    bisection.begin_step("u", "p2", (1, 2))
    assert bisection.begin_unit("u", 2, "p3", alone=True).quarantined == {1: 2}


def test_deaths_without_progress_end_the_job_and_progress_forgives() -> None:
    bisection = CrashBisection(2, max_engine_deaths=2)
    assert [bisection.start_process("a").go_on for _ in range(4)] == [True, True, True, False]
    bisection.finish_unit("unit")
    assert [bisection.start_process("a").go_on for _ in range(3)] == [True, True, False]
    fresh = CrashBisection(2, max_engine_deaths=0)
    assert all(fresh.start_process(worker).go_on for worker in "abc"), "the first process of a worker replaces none"
    assert not fresh.start_process("b").go_on


def lose(bisection: CrashBisection, times: int) -> tuple[Attempt, list[bool]]:
    """A unit of eight rows comes to one process after another; its last attempt, and whether each process may begin."""
    goes_on = []
    for number in range(times + 1):
        goes_on.append(bisection.start_process("actor", f"p{number}", f"m{number}").go_on)
        attempt = bisection.begin_unit("u", 8, f"p{number}")
    return attempt, goes_on


@pytest.mark.parametrize("fate", ["drained", "lost"])
def test_a_process_that_goes_with_its_machine_is_no_evidence_against_rows(fate: Machine) -> None:
    times = 20 if fate == "drained" else 2
    attempt, goes_on = lose(CrashBisection(2, max_engine_deaths=0, machine=lambda name: fate), times)
    assert attempt.concurrent_units is None
    assert all(goes_on), "nor does it count as the death of an engine"
    attempt, goes_on = lose(CrashBisection(2, max_engine_deaths=0), times)
    assert attempt.concurrent_units == 1
    assert goes_on[:3] == [True, False, False]


def test_a_loss_is_forgiven_once_units_are_done_in_between() -> None:
    bisection = CrashBisection(2, max_engine_deaths=0, machine=lambda name: "lost")
    for number in range(20):
        assert bisection.start_process("actor", f"p{number}", f"m{number}").go_on
        assert bisection.begin_unit(f"u{number}", 8, f"p{number}").concurrent_units is None
        bisection.finish_unit(f"u{number}")


def test_a_row_that_takes_its_machine_down_is_found_all_the_same() -> None:
    cluster = Cluster(CrashBisection(2, 10**6, machine=lambda name: "lost"), {(1, 3)})
    cluster.run([4, 8, 4], 3)
    assert cluster.results == {0: [0, 1, 2, 3], 1: [0, 1, 2, "quarantined after 2", 4, 5, 6, 7], 2: [0, 1, 2, 3]}


def test_an_actor_that_is_ended_on_purpose_leaves_no_suspicion() -> None:
    bisection = CrashBisection(2, max_engine_deaths=0)
    for number in range(9):
        assert bisection.start_process(f"actor {number}", f"p{number}", "m").go_on
        assert bisection.begin_unit("u", 8, f"p{number}").concurrent_units is None
        bisection.end_process(f"actor {number}")
    assert not bisection.is_suspect("u")


def test_a_unit_that_raised_leaves_no_suspicion() -> None:
    bisection = CrashBisection(2, 3)
    isolation = RowIsolation(bisection, "p")

    def fails(rows: Sequence[int]) -> list[int]:
        raise OSError("disk full")

    for _ in range(5):
        with pytest.raises(OSError, match="disk full"):
            isolation.run("u", 3, fails, lambda row, deaths: -1)
    assert bisection.begin_unit("u", 3, "q").concurrent_units is None


@pytest.mark.parametrize("concurrent_units", [1, 3])
def test_concurrent_units_are_limited_and_new_units_wait(concurrent_units: int) -> None:
    gate = Gate()
    inside: list[int | None] = []
    snapshots: list[list[int | None]] = []
    lock = threading.Lock()

    def visit(limit: int | None) -> None:
        with gate.enter(limit):
            with lock:
                inside.append(limit)
                snapshots.append(list(inside))
            time.sleep(0.01)
            with lock:
                inside.remove(limit)

    threads = [threading.Thread(target=visit, args=(concurrent_units if i % 2 else None,)) for i in range(24)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert len(snapshots) == 24
    limited = [names for names in snapshots if concurrent_units in names]
    assert all(None not in names and len(names) <= concurrent_units for names in limited)
    assert max(len(names) for names in limited) == concurrent_units
    assert max(len(names) for names in snapshots if None in names) > 1


def test_new_units_wait_for_limited_units_and_for_those_that_wait_to_be_limited() -> None:
    gate = Gate()
    entered: list[str] = []

    def visit(name: str, concurrent_units: int | None) -> threading.Thread:
        def body() -> None:
            with gate.enter(concurrent_units):
                entered.append(name)

        thread = threading.Thread(target=body)
        thread.start()
        thread.join(0.05)
        return thread

    with gate.enter(None):
        threads = [visit("alone", 1), visit("new", None)]
        assert entered == [], "one waits to be alone, the other for him"
    for thread in threads:
        thread.join(10)
    assert sorted(entered) == ["alone", "new"]
    with gate.enter(2):
        threads = [visit("new", None), visit("limited", 2)]
        assert entered[2:] == ["limited"]
    for thread in threads:
        thread.join(10)
    assert entered[2:] == ["limited", "new"]
