"""Threads that run a forward together: who is there takes part, and no one waits for those whose core is taken."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from wedlm_core.model import team
from wedlm_core.model.panels import PanelWeight, pack
from wedlm_core.model.team import Attendance, Team

WORK, USUAL = 1 << 20, 1e-3


@pytest.fixture(autouse=True)
def three_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    monkeypatch.setattr(team, "_TEAM_BYTES", 1)
    yield
    torch.set_num_threads(before)


def a_product(seed: int = 0) -> tuple[PanelWeight, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return pack(torch.randn(300, 70, generator=generator), "float32"), torch.randn(13, 70, generator=generator)


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, in an array of one."""
    found = [100.0]
    monkeypatch.setattr(team.time, "perf_counter", lambda: found[0])
    return found


@pytest.mark.parametrize("late", [False, True])
def test_after_a_forward_that_was_disturbed_others_are_run_alone_and_twice_as_long_each_time(
    late: bool, now: list[float]
) -> None:
    attendance = Attendance()

    def alone() -> float:
        """Seconds for which it does not pay."""
        begin = now[0]
        while not attendance.pays():
            now[0] += 1e-4
        return now[0] - begin

    for _ in range(100):
        assert attendance.pays()
        attendance.record(WORK, USUAL, all_there=True, waited=False)
    for seconds in (0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.2, 0.2):
        attendance.record(WORK, USUAL if late else 5e-3, all_there=not late, waited=not late)
        assert alone() == pytest.approx(seconds, rel=0.05)
    for _ in range(64):
        attendance.record(WORK, USUAL, all_there=True, waited=False)
    attendance.record(WORK, 5e-3, all_there=True, waited=True)
    assert alone() == pytest.approx(0.005, rel=0.05), "short again, after a while without"


def test_what_takes_long_without_long_waits_is_not_disturbed() -> None:
    attendance = Attendance()
    for turn in range(400):
        attendance.record(WORK, 10e-3 * (1 + turn / 400), all_there=True, waited=False)
        attendance.record(WORK << 5, 0.3 * (1 + turn % 3), all_there=True, waited=True)  # a slice is no part of that
        attendance.record(WORK << 2, 2e-3 * (1 + turn % 5), all_there=True, waited=False)  # more to attend to
        assert attendance.pays()


def test_helpers_that_sleep_are_woken() -> None:
    weight, x_RI = a_product()
    expected = Team().product(weight, x_RI)
    found, lead = [], team.lead
    attendance, looks = Attendance(), 1 << 24

    def counted(*given: object) -> int:
        found.append(lead(*given[:-1], looks))
        return found[-1]

    pool = team._Pool()
    pool._attendance = attendance
    team_of_pool, before = Team(), team._POOL
    try:
        team._POOL, team.lead = pool, counted
        for pause in (0.0, 0.05, 0.05):
            time.sleep(pause)
            attendance._until = 0.0
            assert torch.equal(team_of_pool.product(weight, x_RI), expected)
    finally:
        team._POOL, team.lead = before, lead
        pool.end()
    assert found == [3, 3, 3]
    assert not pool._threads


def test_whoever_finds_the_helpers_taken_goes_alone() -> None:
    weights = [a_product(seed) for seed in range(3)]
    expected, wrong = [Team().product(*one) for one in weights], list[int]()

    def many(number: int) -> None:
        own = Team()
        for _ in range(200):
            if not torch.equal(own.product(*weights[number]), expected[number]):
                wrong.append(number)

    threads = [threading.Thread(target=many, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_child_process_has_helpers_of_its_own() -> None:
    weight, x_RI = a_product()
    expected = Team().product(weight, x_RI)
    child = os.fork()
    if not child:
        os._exit(0 if torch.equal(Team().product(weight, x_RI), expected) and team._POOL._threads else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_a_process_ends_though_helpers_look_at_the_gate() -> None:
    program = (
        "import torch; torch.set_num_threads(2)\n"
        "from wedlm_core.model import team\n"
        "from wedlm_core.model.panels import pack\n"
        "team._TEAM_BYTES = 1\n"
        "print(team.Team().product(pack(torch.ones(64, 64), 'float32'), torch.ones(4, 64)).sum().item())\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)
    assert float(done.stdout) == 64 * 64 * 4
    assert done.stderr == ""


def test_the_state_of_a_team_is_left_as_it_was_found() -> None:
    own, (weight, x_RI) = Team(), a_product()
    for _ in range(50):
        own.product(weight, x_RI)
        assert not own.state[[0, 32]].any(), "no one counted as there, no piece as taken"
    assert np.all(own.state >= 0)
