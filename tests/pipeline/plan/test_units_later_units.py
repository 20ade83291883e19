"""The queue of units of later stages."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

from pipeline.plan.units import LaterUnits
from pipeline.types import Slice, Unit


def unit(name: str, stage: int = 1) -> Unit:
    return Unit(unit_id=name, index=0, rows=Slice(file=0, first_row=0, num_rows=1), stage=stage)


def names(units: tuple[Unit, ...]) -> str:
    return "".join(own.unit_id for own in units)


def test_what_arrives_goes_before_what_was_ready_and_a_take_is_of_one_stage() -> None:
    later = LaterUnits(iter([unit("a"), unit("b"), unit("c", 2)]))
    later.put(unit("x", 2))
    later.put(unit("y", 1))
    later.end()
    assert [names(later.take()) for _ in range(5)] == ["x", "y", "ab", "c", ""]
    assert later.exhausted


def test_what_is_ready_is_drawn_as_it_is_taken() -> None:
    drawn = []

    def ready() -> Iterator[Unit]:
        for number in range(1000):
            drawn.append(number)
            yield unit(f"{number} ")

    later = LaterUnits(ready())
    assert not drawn
    assert len(later.take()) == 32
    assert len(drawn) < 100
    assert not later.exhausted


def test_a_take_waits_for_what_comes_and_ends_with_the_queue() -> None:
    later = LaterUnits(iter(()))
    assert later.take() == ()
    assert not later.exhausted
    for act, expected in ((lambda: later.put(unit("a")), "a"), (later.end, "")):
        timer = threading.Timer(0.05, act)
        timer.start()
        begin = time.monotonic()
        assert names(later.take(seconds=None)) == expected
        assert time.monotonic() - begin >= 0.04
    assert later.exhausted
