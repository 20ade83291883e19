"""The clock that prices forwards."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch


def step_clock(device: torch.device) -> Callable[[], float]:
    """A clock of the cost of a step on ``device``, in seconds.

    A step on one CPU thread never waits, so the CPU time of its thread is its cost. The wall clock would add the time
    of other processes and threads, and windows would follow the machine's load instead of the model's cost. Where other
    threads or a device do the work, only the wall clock sees all of it.
    """
    if device.type == "cpu" and torch.get_num_threads() == 1:
        return time.thread_time
    return time.perf_counter
