"""Copies between host and pretend devices, and pinned host memory."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from testing.pretend.guard import guard
from testing.pretend.state import LOG, STATE, waits

_POISON = 0x5A  # fills a host buffer until the copy into it was waited for
_pinned: dict[int, int] = {}  # bytes by address


def pinned_empty(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """A host tensor in pinned memory."""
    LOG.used[guard().device] += 1
    count = int(np.prod(shape, dtype=np.int64))
    memory = np.empty(max(1, count * dtype.itemsize), dtype=np.uint8)
    address = memory.ctypes.data
    _pinned[address] = memory.nbytes
    weakref.finalize(memory, _pinned.pop, address, None)
    return torch.from_numpy(memory)[: count * dtype.itemsize].view(dtype).view(tuple(shape))


def is_pinned(tensor: Tensor) -> bool:
    """Whether a host tensor's memory is pinned."""
    return tensor.untyped_storage().data_ptr() in _pinned


@dataclass(frozen=True)
class _Copy:
    number: int
    run: Callable[[], object]


_under_way: deque[_Copy] = deque()  # pending copies to the host, in order
_count = 0


def mark() -> int:
    """A number for :func:`arrive`, to wait for all copies so far."""
    return _count


def arrive(number: int | None = None) -> None:
    """Carry out pending copies to the host: those before a mark, or all."""
    with torch.inference_mode():  # the buffers may be inference tensors
        while _under_way and (number is None or _under_way[0].number <= number):
            _under_way.popleft().run()


def to_device(target: Tensor, source: Tensor, *, non_blocking: bool) -> None:
    """Copy a host tensor into a device tensor's memory ``target``."""
    if not non_blocking:
        LOG.copies["to the device, waited for"] += 1
        waits("a copy to the device")
    elif not is_pinned(source):
        LOG.copies["to the device, from pageable memory"] += 1
        waits("a copy to the device from pageable memory")
    else:
        LOG.copies["to the device"] += 1
        if STATE.captured is not None:
            waits("a copy from the host")
    if STATE.memory != "meta":
        target.copy_(source)


def to_host(target: Tensor, source: Tensor, *, non_blocking: bool) -> None:
    """Copy a device tensor's memory ``source`` into a host tensor, now or (non-blocking) when it is waited for."""
    global _count
    if not (non_blocking and is_pinned(target)):
        LOG.copies["to the host, waited for"] += 1
        waits("a copy to the host")
        arrive()
        target.copy_(source)
        return
    LOG.copies["to the host"] += 1
    if STATE.captured is not None:
        waits("a copy to the host")
    held = source.clone()
    if target.is_contiguous():
        target.view(-1).view(torch.uint8).fill_(_POISON)
    _count += 1
    _under_way.append(_Copy(_count, lambda: target.copy_(held)))
