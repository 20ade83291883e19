"""Threads that run one kernel of :mod:`wedlm_core.kernels.cpu.forward` together."""

from __future__ import annotations

import atexit
import ctypes
import functools
import os
import threading
import time
from typing import Any

import numpy as np
import torch
from torch import Tensor

from wedlm_core.kernels.cpu.forward import attend_of, join_entry, place_of, product_of
from wedlm_core.kernels.cpu.panel_products import line_units
from wedlm_core.kernels.cpu.records import TASK
from wedlm_core.kernels.cpu.team_kernels import LONG, POOL_SIZE, STATE_SIZE, dismiss, lead, serve_entry
from wedlm_core.model.panels import PanelWeight, units_of

_TEAM_BYTES = 1 << 19
"""Least weights times rows for a second thread to pay off."""
_LOOKS = 2000
"""Looks at the gate before a forward begins without helpers, some 50 microseconds."""
_FAR_LONGER, _AWAY = 1.5, 1e-3  # times as long as usual, and seconds more: at least a time slice of the system
_LARGE = 50e-3  # seconds of forwards for a slice to be a small part
_DRIFT = 0.02  # of the usual time towards longer ones
_SHORTLY, _AT_LONGEST = 5e-3, 0.2  # seconds with fewer threads, at first and at most
_CALM = 64  # it is short again after so many usual forwards in a row
_DIGITS = 3  # of the work: forwards are alike that differ by a quarter at most
_WORK_OF_A_LOOK = 1 << 15
"""One look more is worth it for so many bytes of weights times rows: about a tenth of a helper's gain."""


class Team:
    """Threads, and the record that they read.

    Attributes:
        tasks: the record, alone in an array.
        task: the same without it.
        fields: each field as an array of one number: those are written ten times as fast.
    """

    def __init__(self) -> None:
        self.state = np.zeros(STATE_SIZE, dtype=np.int64)
        self.tasks = np.zeros(1, dtype=TASK)
        self.task: Any = self.tasks[0]
        self.task["state"], self._address = self.state.ctypes.data, self.tasks.ctypes.data
        self.fields = {name: self.tasks[name] for name in TASK.names or ()}
        self._scratch: dict[str, Tensor] = {}
        self._numbers, self._held = "", ""  # the record has functions for these

    def scratch(self, name: str, count: int) -> int:
        """The address of at least ``count`` units of four bytes, which stay until more are asked for."""
        held = self._scratch.get(name)
        if held is None or held.shape[0] < count:
            held = self._scratch[name] = torch.zeros(count)
        return held.data_ptr()

    def held(self, name: str) -> Tensor:
        """All of a scratch memory, float32."""
        return self._scratch[name]

    def tensor(self, name: str, rows: int, columns: int) -> Tensor:
        """A view of scratch memory, float32 ``[rows, columns]``."""
        return self._scratch[name][: rows * columns].view(rows, columns)

    def run(self, numbers: str, work: int, held: str = "") -> None:
        """Run the task.

        Args:
            numbers: of the weights.
            work: bytes of weights times rows, for the number of threads.
            held: numbers of keys and values; empty for a product alone.
        """
        if numbers != self._numbers or held != self._held:
            self._tell(numbers, held)
        members = min(torch.get_num_threads(), 1 + work // _TEAM_BYTES)
        _POOL.run(join_entry(), self._address, members, work, self.state)

    def _tell(self, numbers: str, held: str) -> None:
        """Fill the record of the functions for these numbers."""
        task, self._numbers, self._held = self.task, numbers, held
        task["product"] = product_of(numbers)
        if held:
            task["place"], task["attend"] = place_of(held), attend_of(held)

    def narrow(self, rows: int, widest: int, numbers: str) -> None:
        """Make room for rows as they meet weights."""
        step = line_units(numbers)(units_of(widest, numbers))
        self.task["narrow"] = self.scratch("narrow", rows * step)
        self.task["narrow_step"] = 4 * step
        self.task["row_scale"] = self.scratch("row_scale", rows)
        self.task["row_sum"] = self.scratch("row_sum", rows)

    def product(self, weight: PanelWeight, x_RI: Tensor) -> Tensor:
        """``[R, I]`` -> float32 ``[R, O]``."""
        rows = x_RI.shape[0]
        x_RI, out_RO = x_RI.contiguous(), torch.empty(rows, weight.outputs)
        self.narrow(rows, weight.inputs, weight.numbers)
        task = self.task
        layers = int(task["layers"])
        task["rows"], task["layers"], task["head"] = rows, 0, weight.record()
        normed = int(task["normed"])
        task["normed"], task["out"] = x_RI.data_ptr(), out_RO.data_ptr()
        if rows:
            self.run(weight.numbers, weight.data.numel() * weight.data.element_size() * rows)
        task["layers"], task["normed"] = layers, normed
        return out_RO


_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_int64)


@functools.cache
def _function(entry: int) -> Any:
    return _FUNCTION(entry)


class Attendance:
    """How many threads work together, as other processes may take the cores from some of those who wait for each other.

    A thread that loses its core is away for milliseconds, as long as tens of small forwards take, and the others wait.
    So after a forward that took far longer than its like, half as many work together for a while; after one with
    missing helpers, as many as came. Each time it is for twice as long.
    """

    def __init__(self) -> None:
        self._usual: dict[tuple[int, int], float] = {}  # seconds of forwards, by members and digits of the work
        self._most, self._until, self._while, self._calm = 1, 0.0, _SHORTLY, 0

    def members(self, wanted: int) -> int:
        """How many of the threads that are wanted to ask for the next forward."""
        return min(wanted, self._most) if time.perf_counter() < self._until else wanted

    def record(self, work: int, seconds: float, *, asked: int, there: int, waited: bool) -> None:
        """Record the seconds of a forward of several threads.

        Args:
            work: bytes of weights times rows.
            seconds: that it took.
            asked: threads that were asked for.
            there: threads that came.
            waited: whether any of them waited for long.
        """
        digits = max(0, work.bit_length() - _DIGITS)
        like = there, (digits << _DIGITS) + (work >> digits)
        usual = self._usual.get(like, seconds)
        disturbed = waited and _FAR_LONGER * usual + _AWAY < seconds < _LARGE
        if not disturbed:
            self._usual[like] = seconds if seconds < usual else usual + _DRIFT * (seconds - usual)
        if there == asked and not disturbed:
            self._calm += 1
            if self._calm >= _CALM:
                self._while = _SHORTLY
            return
        self._most = there // 2 if disturbed else there
        self._until, self._calm = time.perf_counter() + self._while, 0
        self._while = min(2 * self._while, _AT_LONGEST)


class _Pool:
    """Threads of this process that help with tasks, one task at a time."""

    def __init__(self) -> None:
        self._numbers = np.zeros(POOL_SIZE, dtype=np.int64)
        self._own = np.zeros(3, dtype=np.int64)
        self._threads: list[threading.Thread] = []
        self._leads = threading.Lock()
        self._attendance = Attendance()

    def run(self, entry: int, address: int, members: int, work: int, state: np.ndarray) -> None:
        """Call ``entry`` with a task in at most so many threads, this one included, and wait for them.

        Helpers are waited for as long as may pay for so much work. Where others are being helped there are none.

        Args:
            entry: address of a function.
            address: of the task.
            members: threads at most.
            work: bytes of weights times rows.
            state: of the team.
        """
        members = self._attendance.members(members) if members > 1 else 1
        if members == 1 or not self._leads.acquire(blocking=False):
            alone = np.array([address, 0, 1], dtype=np.int64)
            _function(entry)(alone.ctypes.data)
            return
        try:
            if len(self._threads) < members - 1:
                self._start(members - 1)
            begin, waits = time.perf_counter(), int(state[LONG])
            there = lead(self._numbers, entry, address, self._own, members - 1, _LOOKS + work // _WORK_OF_A_LOOK)
            seconds, waited = time.perf_counter() - begin, int(state[LONG]) != waits
            self._attendance.record(work, seconds, asked=members, there=there, waited=waited)
        finally:
            self._leads.release()

    def _start(self, helpers: int) -> None:
        serve = _function(serve_entry())
        while len(self._threads) < helpers:
            thread = threading.Thread(target=serve, args=(self._numbers.ctypes.data,), daemon=True, name="team")
            thread.start()
            self._threads.append(thread)

    def end(self) -> None:
        """Let the threads end: they read memory that goes away with the process's modules."""
        dismiss(self._numbers)
        for thread in self._threads:
            thread.join()
        self._threads.clear()


_POOL = _Pool()


def _begin_again() -> None:
    """In a child process, where no thread was copied to."""
    global _POOL
    _POOL = _Pool()


atexit.register(lambda: _POOL.end())
os.register_at_fork(after_in_child=_begin_again)
