"""Threads that run one kernel of :mod:`wedlm_core.kernels.cpu.forward` together."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from wedlm_core.kernels.cpu.forward import TASK, entry_of
from wedlm_core.kernels.cpu.team import STATE_SIZE
from wedlm_core.model.panels import PanelWeight, units_of

__all__ = ["Team"]

_TEAM_BYTES = 1 << 19
"""Weights times rows from which a second thread pays off."""


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

    def run(self, numbers: str, work: int, held: str = "float32") -> None:
        """Run the task.

        Args:
            numbers: of the weights.
            work: bytes of weights times rows, for the number of threads.
            held: numbers of keys and values.
        """
        members = min(torch.get_num_threads(), 1 + work // _TEAM_BYTES)
        _run_members(entry_of(numbers, held), self.fields, self._address, members)

    def narrow(self, rows: int, widest: int, numbers: str) -> None:
        """Make room for rows in the numbers of weights."""
        self.task["narrow"] = self.scratch("narrow", rows * units_of(widest, numbers))
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


def _run_members(entry: int, fields: Mapping[str, np.ndarray], address: int, members: int) -> None:
    """Call ``entry(address)`` in so many threads and wait for them."""
    fields["team_size"][0], fields["members"][0] = 0, members
    if members == 1:
        _function(entry)(address)
    elif (library := _threads_of_torch()) is not None:
        fields["team_size"][0] = library.size
        library.run(entry, address, members, 0)
    else:
        function = _function(entry)
        pool = _pool(members - 1)
        waiting = [pool.submit(function, address) for _ in range(members - 1)]
        function(address)
        for future in waiting:
            future.result()


_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_int64)


@functools.cache
def _function(entry: int) -> Any:
    return _FUNCTION(entry)


@dataclass(frozen=True, kw_only=True)
class _Library:
    """``run(entry, address, threads, 0)`` calls an entry in threads; ``size`` is the function that counts these."""

    run: Any
    size: int


@functools.cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="team")


@functools.cache
def _threads_of_torch() -> _Library | None:
    """The library that runs torch's own threads, if it is GNU's: they are there, and start in a few microseconds."""
    folder = Path(torch.__file__).parent
    found = [*folder.glob("lib/libgomp*"), *folder.parent.glob("torch.libs/libgomp*")]
    if not found:
        return None
    try:
        library = ctypes.CDLL(str(found[0]))
        library.GOMP_parallel.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
        library.GOMP_parallel.restype = None
        size = ctypes.cast(library.omp_get_num_threads, ctypes.c_void_p).value
    except (OSError, AttributeError):
        return None
    return _Library(run=library.GOMP_parallel, size=size) if size else None
