"""Who does which unit: everything is done once, nobody is overtaken for ever, and nobody holds up the end."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.cluster.dispatcher import Assignment, Dispatcher
from pipeline.cluster.prepare_task import prefix_histogram
from pipeline.codec import EngineConfig
from pipeline.config import RunConfig
from testing.pipeline.simulated_job import JobTimes, SimulatedJob, SimulatedRow

# --- any order of events --------------------------------------------------------------------------


@given(data=st.data(), actors=st.integers(1, 6), usual=st.integers(1, 5), count=st.integers(0, 30))
@settings(max_examples=80, deadline=None)
def test_every_unit_is_done_once_whatever_happens_in_whatever_order(
    data: st.DataObject, actors: int, usual: int, count: int
) -> None:
    """Actors join, hold different numbers, retire and leave; results of actors that have left come late or never."""
    dispatcher = Dispatcher(held=usual, max_overtakes=6)
    held: dict[int, int] = {}
    """Actors that are here, and how many units each may be given."""
    runs: list[Assignment] = []
    orphans: list[Assignment] = []
    """Executions on actors that have left: their results may still come."""
    done: Counter[str] = Counter()
    offered, joined, ended, now = 0, 0, False, 0.0
    while not dispatcher.finished:
        now += data.draw(st.floats(0, 5), label="time passes")
        choices = ["end"] * (offered == count and not ended) + ["done"] * bool(runs) + ["late"] * bool(orphans)
        choices += ["offer"] * (offered < count) + ["join"] * (joined < actors or not any(held.values()))
        choices += ["decline"] * any(run.execution for run in runs)
        choices += ["leave", "retire"] * (bool(held) and joined < 3 * actors)
        what = data.draw(st.sampled_from(choices))
        back: list[str] = []
        if what == "offer":
            histogram = data.draw(st.dictionaries(st.integers(0, 5), st.integers(1, 9), max_size=3))
            dispatcher.offer(str(offered), histogram)
            offered += 1
        elif what == "join":
            own = data.draw(st.none() | st.integers(1, 7), label="held")
            dispatcher.join(joined, now, own)
            held[joined] = usual if own is None else own
            joined += 1
        elif what == "retire":
            actor = data.draw(st.sampled_from(sorted(held)))
            dispatcher.retire(actor)
            held[actor] = 0
        elif what == "leave":
            actor = data.draw(st.sampled_from(sorted(held)))
            own = {run.unit_id for run in runs if run.actor == actor and run.unit_id not in done}
            others = {run.unit_id for run in runs if run.actor != actor}
            assert dispatcher.held_by(actor) == len(own)
            back = dispatcher.leave(actor)
            assert set(back) == own - others, "units that no other actor runs go back, and no others"
            assert len(back) == len(set(back))
            del held[actor]
            orphans += [run for run in runs if run.actor == actor]
            runs = [run for run in runs if run.actor != actor]
        elif what == "end":
            dispatcher.end_input()
            ended = True
        elif what == "decline":
            run = data.draw(st.sampled_from([run for run in runs if run.execution]))
            runs.remove(run)
            dispatcher.decline(run.unit_id, run.actor)
        else:
            some = runs if what == "done" else orphans
            run = data.draw(st.sampled_from(some))
            some.remove(run)
            first = run.unit_id not in done
            late = dispatcher.done(run.unit_id, run.actor, now)
            assert (late is not None) == first
            done[run.unit_id] += first
            assert set(late or []) == {other for other in runs if first and other.unit_id == run.unit_id}
        while (new := dispatcher.next(now)) is not None:
            if back:
                assert new.unit_id == back.pop(0), "units of an actor that left go first"
            assert new.unit_id not in done
            assert new.actor in held, "nothing is given to an actor that has left"
            same = [run for run in runs if run.unit_id == new.unit_id]
            assert new.actor not in {run.actor for run in same}
            assert len(same) <= 1
            assert (new.execution == 0) == (not same)
            assert not any(run.execution == new.execution for run in same)
            assert new.execution == 0 or ended, "backups run at the end only"
            runs.append(new)
            live = [run for run in runs if run.unit_id not in done]
            assert sum(run.actor == new.actor for run in live) <= held[new.actor]
    assert done == Counter(map(str, range(count)))


def test_an_actor_that_may_hold_more_is_given_more_and_shares_are_equal() -> None:
    dispatcher = Dispatcher(held=2, max_overtakes=6)
    dispatcher.join(0, 0.0)
    dispatcher.join(1, 0.0, held=8)
    for number in range(5):
        dispatcher.offer(str(number), {})
    given = Counter(run.actor for run in iter(lambda: dispatcher.next(0.0), None))
    assert given == {0: 1, 1: 4}


def test_a_unit_whose_first_actor_left_and_whose_backup_is_declined_runs_again() -> None:
    dispatcher = Dispatcher(held=1, max_overtakes=6)
    dispatcher.join(0, 0.0)
    dispatcher.join(1, 0.0)
    for name in "ab":
        dispatcher.offer(name, {})
    dispatcher.end_input()
    first, other = dispatcher.next(0.0), dispatcher.next(0.0)
    assert first is not None
    assert other is not None
    dispatcher.done(other.unit_id, other.actor, 1.0)
    backup = dispatcher.next(100.0)
    assert backup == Assignment(unit_id=first.unit_id, actor=other.actor, execution=1)
    assert dispatcher.leave(first.actor) == []
    dispatcher.decline(backup.unit_id, backup.actor)
    assert dispatcher.next(100.0) == Assignment(unit_id=first.unit_id, actor=other.actor, execution=0)


@given(histograms=st.lists(st.dictionaries(st.integers(0, 3), st.integers(1, 9), max_size=2), max_size=60))
@settings(max_examples=60, deadline=None)
def test_no_unit_is_overtaken_more_often_than_the_limit_allows(histograms: list[dict[int, int]]) -> None:
    limit = 8
    dispatcher = Dispatcher(held=1, max_overtakes=limit)
    dispatcher.join(0, 0.0)
    waiting: list[int] = []
    overtaken: Counter[int] = Counter()
    left = iter(enumerate(histograms))
    while True:
        for number, histogram in left:
            dispatcher.offer(str(number), histogram)
            waiting.append(number)
            if len(waiting) >= limit:
                break
        given = dispatcher.next(0.0)
        if given is None:
            break
        number = int(given.unit_id)
        overtaken.update(other for other in waiting if other < number)
        waiting.remove(number)
        dispatcher.done(given.unit_id, 0, 0.0)
    assert not waiting
    assert max(overtaken.values(), default=0) <= 2 * limit


# --- prefixes -------------------------------------------------------------------------------------


def test_a_prefix_histogram_weighs_prefixes_by_the_tokens_that_a_cache_would_save() -> None:
    shared = list(range(40))
    histogram = prefix_histogram([[*shared, 1], [*shared, 2], [*shared[:16], 5, 6], [1]], page=8)
    # 8 and 16 tokens are shared by three rows, 32 by two.
    assert sorted(histogram.values()) == [24, 24, 32]
    assert prefix_histogram([[*shared, 9]], page=8).keys() == histogram.keys()
    assert not prefix_histogram([shared[:8]], page=8), "of a prompt that is one page, the last token is computed"


def test_units_that_begin_alike_meet_on_one_actor_and_all_actors_work() -> None:
    """Nine families in turns after a system prompt that all share; three actors."""
    system, draw = list(range(64)), random.Random(0)
    families = [[draw.randrange(100) for _ in range(64)] for _ in range(9)]
    dispatcher, places, work = Dispatcher(held=2, max_overtakes=27), defaultdict(set), Counter()
    for actor in range(3):
        dispatcher.join(actor, 0.0)
    offered, running, now = 0, [], 0.0
    while offered < 270 or running:
        while offered < 270 and dispatcher.waiting < 27:
            family = families[draw.randrange(9)]
            dispatcher.offer(
                f"{families.index(family)}/{offered}", prefix_histogram([[*system, *family, offered]], page=16)
            )
            offered += 1
        while (given := dispatcher.next(now)) is not None:
            running.append(given)
            places[given.unit_id.split("/")[0]].add(given.actor)
            work[given.actor] += 1
        now += 1.0
        done = running.pop(draw.randrange(len(running)))
        dispatcher.done(done.unit_id, done.actor, now)
    assert min(work.values()) > 60
    seen = sum(len(actors) for actors in places.values())
    assert seen <= 14, f"9 families were each begun on {seen / 9:.1f} actors"


# --- actors of different speed --------------------------------------------------------------------


def simulated(units: Sequence[Sequence[float]], speeds: Sequence[float]) -> JobTimes:
    """A job whose rows have these lengths in seconds, unknown to the dispatcher."""
    config = RunConfig(input="-", output="-", actors=len(speeds), engine=EngineConfig(max_num_seqs=16))
    rows = [[SimulatedRow(tokens=length) for length in unit] for unit in units]
    return SimulatedJob(config, rows, speeds, ordered=False).run()


@pytest.mark.parametrize("speeds", [(1.0, 1.0), (1.0, 0.25), (1.0, 1.0, 1.0, 0.2), (1.0, 1.0, 0.02), (1.0, 1.0, 0.0)])
def test_a_slow_actor_or_one_that_hangs_does_not_hold_up_the_end(speeds: tuple[float, ...]) -> None:
    draw = random.Random(0)
    units = [[draw.expovariate(1 / 10) + 1 for _ in range(8)] for _ in range(600)]
    ideal = sum(map(sum, units)) / (16 * sum(speeds))
    longest = max(map(max, units))
    assert simulated(units, speeds).seconds < 1.06 * ideal + longest


def test_one_actor_is_full_to_the_end_whatever_its_rows_are() -> None:
    draw = random.Random(1)
    units = [[draw.paretovariate(1.5) for _ in range(8)] for _ in range(400)]
    ideal = sum(map(sum, units)) / 16
    times = simulated(units, (1.0,))
    assert times.seconds < 1.1 * ideal + max(map(max, units))
    assert times.utilisation > 0.8
