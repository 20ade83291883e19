"""The tally against simulated processes: it pins every row that kills and no other, in few deaths, and ends."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pipeline.worker.crash_bisection import Attempt, Tally
from pipeline.worker.row_isolation import Gate, RowWatch


class Died(BaseException):
    """The process is gone; what ran in it is lost."""


class Cluster:
    """Slots whose processes hold up to ``width`` units at once; a unit stays in its slot's queue until staged.

    ``deadly``: rows (unit, row) that kill their process as soon as they run. ``chance``: called before rows run;
    True kills the process whatever they are.
    """

    def __init__(self, tally: Tally, deadly: set[tuple[int, int]], chance: Callable[[], bool] = lambda: False) -> None:
        self.tally = tally
        self.deadly = deadly
        self.chance = chance
        self.deaths = 0
        self.chance_deaths = 0
        self.results: dict[int, list[object]] = {}
        self.gave_up = False

    def run(self, sizes: Sequence[int], width: int) -> None:
        queue = list(range(len(sizes)))
        while queue and not self.gave_up:
            process = f"p{self.deaths}"
            if not self.tally.start("slot").go_on:
                self.gave_up = True
                return
            try:
                while queue:
                    self._batch(queue, sizes, width, process)
            except Died:
                self.deaths += 1

    def _batch(self, queue: list[int], sizes: Sequence[int], width: int, process: str) -> None:
        """The first units as threads would: those with any company together, then the others as they may."""
        watch = RowWatch(self.tally, process)
        attempts = {unit: self.tally.begin(str(unit), sizes[unit], process) for unit in queue[:width]}
        free = [unit for unit, attempt in attempts.items() if attempt.company is None]
        if free:
            self._together(free, queue, sizes, watch)
            return
        company = min(attempt.company or 1 for attempt in attempts.values())
        if company > 1:
            group = list(attempts)[:company]
            for unit in group:
                self.tally.enter(str(unit), process, ((0, sizes[unit]),))
            self._together(group, queue, sizes, watch)
            return
        alone = next(unit for unit, attempt in attempts.items() if attempt.company == 1)
        self.results[alone] = watch.run(
            str(alone), sizes[alone], lambda rows: self._run([(alone, r) for r in rows]),
            lambda row, deaths: f"quarantined after {deaths}",
        )  # fmt: skip
        queue.remove(alone)
        watch.finish(str(alone))

    def _together(self, units: list[int], queue: list[int], sizes: Sequence[int], watch: RowWatch) -> None:
        self._run([(u, r) for u in units for r in range(sizes[u])])
        for unit in units:
            self.results[unit] = list(range(sizes[unit]))
            queue.remove(unit)
            watch.finish(str(unit))

    def _run(self, rows: list[tuple[int, int]]) -> list[object]:
        if self.chance():
            self.chance_deaths += 1
            raise Died
        if self.deadly & set(rows):
            raise Died
        return [row for _, row in rows]


@st.composite
def jobs(draw: st.DrawFn) -> tuple[list[int], set[tuple[int, int]], int]:
    sizes = draw(st.lists(st.integers(1, 40), min_size=1, max_size=40))
    every = [(u, r) for u, size in enumerate(sizes) for r in range(size)]
    return sizes, draw(st.sets(st.sampled_from(every), max_size=4)), draw(st.integers(1, 40))


@given(job=jobs(), max_row_deaths=st.integers(1, 3))
@example(job=([4], {(0, row) for row in range(4)}, 1), max_row_deaths=3)
@settings(max_examples=150, deadline=None)
def test_exactly_the_rows_that_kill_are_quarantined(
    job: tuple[list[int], set[tuple[int, int]], int], max_row_deaths: int
) -> None:
    sizes, deadly, width = job
    cluster = Cluster(Tally(max_row_deaths, max_engine_deaths=3), deadly)
    cluster.run(sizes, width)
    assert not cluster.gave_up
    assert set(cluster.results) == set(range(len(sizes)))
    for unit, results in cluster.results.items():
        killers = {row for u, row in deadly if u == unit}
        assert [isinstance(r, str) for r in results] == [row in killers for row in range(sizes[unit])]
        assert [r for r in results if not isinstance(r, str)] == [r for r in range(sizes[unit]) if r not in killers]
    halvings = sum(math.ceil(math.log2(sizes[u])) + 1 for u, _ in deadly)
    # Per unit with a killer two deaths beside any others and one in small company (40 / 8 = 5, then alone), the
    # halvings, and what is allowed to a single row.
    assert cluster.deaths <= 3 * len({u for u, _ in deadly}) + halvings + max_row_deaths * len(deadly)


def test_innocent_units_are_not_all_run_alone() -> None:
    """Of 64 units that died together twice, those that had company of a killer once more are alone: 8."""
    tally = Tally(2, 3)
    cluster = Cluster(tally, {(5, 3)})
    seen: list[int | None] = []
    begin = tally.begin

    def watched(unit_id: str, rows: int, process: str, *, alone: bool = False) -> Attempt:
        attempt = begin(unit_id, rows, process, alone=alone)
        seen.append(attempt.company)
        return attempt

    tally.begin = watched  # type: ignore[method-assign]
    cluster.run([16] * 64, 64)
    assert not cluster.gave_up
    assert cluster.deaths == 2 + 1 + 4 + 2, "any company, company of 8, 16 rows to 2, the row"
    assert set(seen) == {None, 8, 1}


@given(sizes=st.lists(st.integers(1, 30), min_size=2, max_size=12), width=st.integers(1, 12), data=st.data())
@settings(max_examples=60, deadline=None)
def test_a_unit_of_which_every_row_kills_costs_its_rows_and_not_the_job(
    sizes: list[int], width: int, data: st.DataObject
) -> None:
    bad = data.draw(st.integers(1, len(sizes) - 1))  # the first unit shows that processes can do rows
    tally = Tally(2, max_engine_deaths=3)
    cluster = Cluster(tally, set())
    cluster.run([sizes[0]], 1)
    cluster.deadly = {(bad, row) for row in range(sizes[bad])}
    cluster.run(sizes, width)
    assert not cluster.gave_up
    for unit, results in cluster.results.items():
        assert [isinstance(result, str) for result in results] == [unit == bad] * sizes[unit]


def test_rows_are_not_left_out_one_and_all_where_processes_cannot_do_any_more() -> None:
    tally = Tally(2, max_engine_deaths=3)
    cluster = Cluster(tally, set())
    cluster.run([4], 1)
    cluster.deadly = {(unit, row) for unit in range(1, 50) for row in range(4)}
    cluster.run([4] * 50, 8)
    assert cluster.gave_up
    assert sum(isinstance(result, str) for results in cluster.results.values() for result in results) <= 16


def test_an_engine_that_dies_of_everything_ends_the_job_in_bounded_deaths() -> None:
    cluster = Cluster(Tally(2, max_engine_deaths=3), set(), lambda: True)
    cluster.run([32] * 1000, 64)
    assert cluster.gave_up
    assert cluster.deaths <= 3 + 4 + 5 + 6 + 1


def test_a_unit_of_many_killers_is_done_all_the_same() -> None:
    deadly = {(1, row) for row in range(3, 29)}
    cluster = Cluster(Tally(2, 3), deadly)
    cluster.run([32] * 4, 4)
    assert not cluster.gave_up
    assert sum(isinstance(r, str) for r in cluster.results[1]) == len(deadly)


@given(job=jobs(), kills=st.lists(st.booleans(), max_size=25), max_row_deaths=st.integers(1, 3))
@example(job=([33], set(), 1), kills=[True] * 8, max_row_deaths=1)
@settings(max_examples=150, deadline=None)
def test_processes_that_are_taken_away_cost_no_row_of_a_unit_with_enough_rows(
    job: tuple[list[int], set[tuple[int, int]], int], kills: list[bool], max_row_deaths: int
) -> None:
    """Kills by chance never end the job, and quarantine nothing that they did not hit alone again and again."""
    sizes, _, width = job
    left = list(kills)
    cluster = Cluster(Tally(max_row_deaths, 10**6), set(), lambda: bool(left) and left.pop(0))
    cluster.run(sizes, width)
    assert not cluster.gave_up
    for unit, results in cluster.results.items():
        lost = [r for r in results if isinstance(r, str)]
        # At least; company only adds to it. The shorter half of an odd number of rows is halved less often.
        needed = 2 + math.floor(math.log2(sizes[unit])) + max_row_deaths
        assert not lost or cluster.chance_deaths >= needed


def test_innocent_rows_beside_a_killer_are_not_run_alone_forever() -> None:
    """Rows that live one by one and die together (memory) end as done, one by one."""
    tally = Tally(2, 3)
    cluster = Cluster(tally, set())
    cluster._run = lambda rows: (_ for _ in ()).throw(Died) if len(rows) > 3 else [r for _, r in rows]  # type: ignore[method-assign]
    cluster.run([13], 1)
    assert cluster.results[0] == list(range(13))
    assert not cluster.gave_up


def test_deaths_without_progress_end_the_job_and_progress_forgives() -> None:
    tally = Tally(2, max_engine_deaths=2)
    assert [tally.start("a").go_on for _ in range(4)] == [True, True, True, False]
    tally.finish("unit")
    assert [tally.start("a").go_on for _ in range(3)] == [True, True, False]
    fresh = Tally(2, max_engine_deaths=0)
    assert all(fresh.start(slot).go_on for slot in "abc"), "the first process of a slot is no replacement"
    assert not fresh.start("b").go_on


def test_a_unit_that_raised_leaves_no_suspicion() -> None:
    tally = Tally(2, 3)
    watch = RowWatch(tally, "p")

    def fails(rows: Sequence[int]) -> list[int]:
        raise OSError("disk full")

    for _ in range(5):
        with pytest.raises(OSError, match="disk full"):
            watch.run("u", 3, fails, lambda row, deaths: -1)
    assert tally.begin("u", 3, "q").company is None


@pytest.mark.parametrize("company", [1, 3])
def test_company_is_limited_and_newcomers_wait(company: int) -> None:
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

    threads = [threading.Thread(target=visit, args=(company if i % 2 else None,)) for i in range(24)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert len(snapshots) == 24
    limited = [names for names in snapshots if company in names]
    assert all(None not in names and len(names) <= company for names in limited)
    assert max(len(names) for names in limited) == company
    assert max(len(names) for names in snapshots if None in names) > 1


def test_newcomers_wait_for_those_in_limited_company_and_for_those_that_wait_for_it() -> None:
    gate = Gate()
    entered: list[str] = []

    def visit(name: str, company: int | None) -> threading.Thread:
        def body() -> None:
            with gate.enter(company):
                entered.append(name)

        thread = threading.Thread(target=body)
        thread.start()
        thread.join(0.05)
        return thread

    with gate.enter(None):
        threads = [visit("alone", 1), visit("newcomer", None)]
        assert entered == [], "one waits to be alone, the other for him"
    for thread in threads:
        thread.join(10)
    assert sorted(entered) == ["alone", "newcomer"]
    with gate.enter(2):
        threads = [visit("newcomer", None), visit("company", 2)]
        assert entered[2:] == ["company"]
    for thread in threads:
        thread.join(10)
    assert entered[2:] == ["company", "newcomer"]
