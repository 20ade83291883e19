"""The clock of steps sees the work of a step and not the machine's load, where it can."""

from __future__ import annotations

import threading
import time

import pytest
import torch

from wedlm_core.engine.clock import step_clock


def test_on_one_cpu_thread_waiting_costs_nothing_and_work_costs_its_time() -> None:
    clock = step_clock(torch.device("cpu"))
    begin = clock()
    threading.Event().wait(0.05)
    waited = clock()
    until = time.perf_counter() + 0.02
    while time.perf_counter() < until:
        pass
    assert waited - begin < 0.02
    assert clock() > waited


def test_what_other_threads_or_a_device_do_is_seen_by_the_wall_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    assert step_clock(torch.device("cuda")) is time.perf_counter
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert step_clock(torch.device("cpu")) is time.perf_counter
