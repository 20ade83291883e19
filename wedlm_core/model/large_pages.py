"""Memory in large pages, where the system has them.

Every forward reads all weights. In pages of 4 KiB the processor spends part of that time on finding out where they are.
"""

from __future__ import annotations

import contextlib
import mmap

import torch
from torch import Tensor

__all__ = ["large"]

_FEWEST_BYTES = 4 << 20  # two of the usual large pages: less would waste much of one


def large(count: int) -> Tensor:
    """uint8 ``[count]``, not initialised."""
    if count < _FEWEST_BYTES or not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.empty(count, dtype=torch.uint8)
    block = mmap.mmap(-1, count, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a kernel without them: pages are small
        block.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(block, dtype=torch.uint8)
