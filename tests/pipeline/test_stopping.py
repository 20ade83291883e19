"""Signals to a run: the first drains, the second and any at another moment act as they would without us."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import pipeline
from pipeline.stopping import Stop, stop_budget
from testing.repository import ROOT


@pytest.mark.parametrize(
    ("setting", "wait", "seconds"),
    [("auto", None, 1.5), ("auto", "3", 1.5), ("auto", "60", 55.0), ("auto", "soon", 1.5), (0, "60", 0.0),
     (7, None, 7.0)],
)  # fmt: skip
def test_the_time_of_units_in_flight_fits_in_the_time_that_a_stopped_job_gets(
    setting: Any, wait: str | None, seconds: float
) -> None:
    assert stop_budget(setting, {} if wait is None else {"RAY_JOB_STOP_WAIT_TIME_S": wait}) == seconds


@pytest.mark.parametrize("value", [-1, "soon", True, None])
def test_other_times_are_refused(value: Any) -> None:
    with pytest.raises(pipeline.ConfigError, match="stop_seconds"):
        pipeline.RunConfig(input="a", output="b", stop_seconds=value)


def send(number: int) -> None:
    os.kill(os.getpid(), number)
    time.sleep(0.01)


@pytest.fixture(autouse=True)
def interrupts() -> Iterator[None]:
    """Ctrl-C raises KeyboardInterrupt, also where the tests were started in the background, which ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def exits_on_sigterm() -> Iterator[None]:
    def leave(number: int, frame: Any) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    yield
    assert signal.getsignal(signal.SIGTERM) is leave, "handlers are as they were"
    signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize(("number", "end"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)])
@pytest.mark.usefixtures("exits_on_sigterm")
def test_the_first_signal_lets_the_block_end_and_then_has_its_usual_effect(
    number: int, end: type[BaseException]
) -> None:
    stop, done = Stop(60), False
    with pytest.raises(end) as caught, stop.on_signals(), stop.draining():  # noqa: PT012
        send(number)
        assert stop.asked
        assert not stop.overdue
        done = True
    assert done
    assert "StoppedError" not in "".join(traceback.format_exception(caught.value)), "users see one traceback"


@pytest.mark.usefixtures("exits_on_sigterm")
def test_a_second_signal_acts_at_once() -> None:
    stop, reached = Stop(60), 0
    with pytest.raises(SystemExit), stop.on_signals(), stop.draining():  # noqa: PT012
        send(signal.SIGINT)
        reached = 1
        send(signal.SIGTERM)
        reached = 2
    assert reached == 1


def test_a_signal_while_nothing_is_in_flight_acts_at_once() -> None:
    stop, reached = Stop(60), 0
    with pytest.raises(KeyboardInterrupt), stop.on_signals():  # noqa: PT012
        with stop.draining():
            pass
        send(signal.SIGINT)
        reached = 1
    assert not reached
    assert not stop.asked


def test_units_in_flight_get_their_time_and_no_more() -> None:
    stop = Stop(0.1)
    assert not stop.overdue
    stop.ask()
    first = stop.seconds_left
    time.sleep(0.15)
    stop.ask()
    assert 0 < first <= 0.1
    assert stop.overdue, "asking again gives no more time"


def test_a_handler_that_does_nothing_leaves_an_error_that_says_so() -> None:
    before = signal.signal(signal.SIGTERM, lambda number, frame: None)
    try:
        stop = Stop(0)
        with pytest.raises(pipeline.StoppedError, match="asked to stop"), stop.on_signals(), stop.draining():
            send(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)


def test_an_ignored_signal_stays_ignored_and_another_thread_changes_nothing() -> None:
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        stop = Stop(0)
        with stop.on_signals(), stop.draining():
            send(signal.SIGTERM)
        assert not stop.asked
        seen: list[Any] = []

        def work() -> None:
            with Stop(0).on_signals():
                seen.append(signal.getsignal(signal.SIGINT))

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert seen == [signal.getsignal(signal.SIGINT)]
    finally:
        signal.signal(signal.SIGTERM, before)


ALONE = """
import os, signal, time
from pipeline.stopping import Stop
stop = Stop(60)
with stop.on_signals(), stop.draining():
    signal.alarm(1)  # as Ray's own handler does, before it calls ours
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(1.5)
    print("drained", flush=True)
"""


def test_a_program_without_a_handler_drains_and_then_ends_by_the_signal_whatever_rays_handler_armed() -> None:
    done = subprocess.run([sys.executable, "-c", ALONE], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout == "drained\n"
    assert done.returncode == -signal.SIGTERM


@pytest.mark.usefixtures("cluster")
def test_ctrl_c_in_a_users_program_commits_what_is_in_flight_and_a_second_call_does_the_rest(
    qwen3_folder: Path, tmp_path: Path
) -> None:
    rows = [{"prompt": f"Count from {i} to 99.", "k": i} for i in range(32)]
    at_signal: list[int] = []

    def interrupt(progress: pipeline.Progress) -> None:
        if progress.done.units and not at_signal:
            at_signal.append(progress.done.units)
            os.kill(os.getpid(), signal.SIGINT)

    given: dict[str, Any] = {
        "model": str(qwen3_folder), "output": tmp_path / "out", "unit_rows": 2, "units_in_flight": 4,
        "sampling": {"max_tokens": 40, "ignore_eos": True, "window_size": 4}, "stop_seconds": 30,
    }  # fmt: skip
    with pytest.raises(KeyboardInterrupt):
        pipeline.run(rows, on_progress=interrupt, **given)
    found = pipeline.status(tmp_path / "out")
    assert at_signal[0] < found["units_committed"] < 16
    assert not found["being_written"]
    assert pipeline.run(rows, **given).summary.session.units == 16 - found["units_committed"]
    assert [row["k"] for row in pipeline.read(tmp_path / "out", format="arrow").to_pylist()] == list(range(32))
