"""The thread that shows snapshots: how often, to whom, and after failures of observers."""

from __future__ import annotations

import logging
import threading
import time

import pytest

from pipeline.progress.snapshot import Snapshot
from pipeline.progress.views import PULSE_SECONDS, Pulse


class Counting:
    def __init__(self) -> None:
        self.updates = self.closes = 0
        self.threads: set[str] = set()

    def update(self, snapshot: Snapshot) -> None:
        self.updates += 1
        self.threads.add(threading.current_thread().name)

    def close(self, snapshot: Snapshot) -> None:
        self.closes += 1


class Failing(Counting):
    def update(self, snapshot: Snapshot) -> None:
        super().update(snapshot)
        raise ValueError("no screen")


def test_snapshots_come_in_a_thread_of_their_own_at_most_four_times_a_second() -> None:
    assert PULSE_SECONDS >= 0.25
    taken = []
    observer = Counting()
    pulse = Pulse(lambda: taken.append(1) or Snapshot(), [observer], seconds=0.02)  # type: ignore[func-returns-value]
    pulse.start()
    time.sleep(0.2)
    pulse.close()
    pulse_over = len(taken)
    time.sleep(0.05)
    assert len(taken) == pulse_over, "the thread has ended"
    assert 2 <= observer.updates <= 12
    assert observer.closes == 1
    assert observer.threads == {threading.current_thread().name, "progress"}


def test_an_observer_that_fails_is_left_out_and_the_others_go_on(caplog: pytest.LogCaptureFixture) -> None:
    failing, other = Failing(), Counting()
    with caplog.at_level(logging.WARNING):
        pulse = Pulse(Snapshot, [failing, other], seconds=0.01)
        pulse.start()
        time.sleep(0.1)
        pulse.close()
    assert failing.updates == 1
    assert other.updates > 2
    assert other.closes == 1
    assert "Failing failed; it is shown nothing more" in caplog.text


def test_observers_are_closed_also_where_nothing_can_be_read(caplog: pytest.LogCaptureFixture) -> None:
    def read() -> Snapshot:
        raise RuntimeError("Ray is gone")

    observer = Counting()
    with caplog.at_level(logging.WARNING):
        pulse = Pulse(read, [observer], seconds=5.0)
        pulse.start()
        pulse.close()
    assert observer.closes == 1
