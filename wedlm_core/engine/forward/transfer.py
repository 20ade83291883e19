"""Copies between host and device that the host does not wait for.

On CUDA they go through pinned memory of torch's caching host allocator, which gives a block out again only when
the copies that use it have finished: no buffer has to be guarded here. On CPU nothing is copied.
"""

from __future__ import annotations

import time

import numpy as np
import torch
from torch import Tensor


def to_device(value: Tensor | np.ndarray, device: torch.device) -> Tensor:
    """A host tensor or array on ``device``; on CPU it shares memory with ``value``."""
    tensor = torch.from_numpy(value) if isinstance(value, np.ndarray) else value
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def put(column: Tensor, slots_S: np.ndarray, values: np.ndarray | float) -> None:
    """Write values from the host to these slots of a column, ``[S, ...]`` or a shape that broadcasts to it.

    On a CPU nothing lies between: tensors around a few numbers take several times as long as to write them.
    """
    if column.device.type == "cpu":
        column.numpy()[slots_S] = values
    else:
        whole = torch.as_tensor(np.broadcast_to(values, (len(slots_S), *column.shape[1:])).copy()).to(column.dtype)
        column.index_copy_(0, to_device(slots_S, column.device), to_device(whole, column.device))


def put_line(table: Tensor, line: int, values: np.ndarray) -> None:
    """Write values from the host to the beginning of a line of a table ``[S, L]``."""
    if table.device.type == "cpu":
        table.numpy()[line, : len(values)] = values
    else:
        table[line, : len(values)] = to_device(values, table.device)


def get(column: Tensor, slots_S: np.ndarray) -> np.ndarray:
    """The values of these slots of a column; waits for the device."""
    if column.device.type == "cpu":
        return np.take(column.numpy(), slots_S, axis=0)
    return column.index_select(0, to_device(slots_S, column.device)).cpu().numpy()


class AsyncCopy:
    """A copy of a device tensor to the host, and the device time of its end."""

    def __init__(self, value: Tensor) -> None:
        self._event: torch.cuda.Event | None = None
        if value.device.type == "cuda":
            self._host = torch.empty(value.shape, dtype=value.dtype, pin_memory=True)
            self._host.copy_(value, non_blocking=True)
            self._event = torch.cuda.Event(enable_timing=True)
            self._event.record(torch.cuda.current_stream(value.device))
        else:
            self._host = value
        self._at = time.perf_counter()

    def wait(self) -> np.ndarray:
        """The values; blocks until the copy has ended."""
        if self._event is not None:
            self._event.synchronize()
        return self._host.numpy()

    def seconds_since(self, earlier: AsyncCopy) -> float:
        """Device time between the ends of two copies, both waited for."""
        if self._event is None or earlier._event is None:
            return self._at - earlier._at
        return earlier._event.elapsed_time(self._event) / 1e3
