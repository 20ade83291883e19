"""Lists that requests bring (stop tokens, biases, bad words) on the device, a line a slot; no forward copies them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from wedlm_core.engine.forward.transfer import to_device

_NUMPY = {torch.int64: np.int64, torch.float32: np.float32}
_BLANK = {torch.int64: -1, torch.float32: 0}


class SlotLists:
    """The lists of one kind, of all slots.

    Args:
        slots: of the engine.
        kinds: dtype and dimensions of each part of a list: int64 ids, with -1 where there is none, or float32
            values, with 0.
        device: where the parts are.

    Attributes:
        parts: by name ``[slots, ...]``, at least as large as the largest list in any direction.
    """

    def __init__(self, slots: int, kinds: Mapping[str, tuple[torch.dtype, int]], device: torch.device) -> None:
        self._device, self._has_S = device, np.zeros(slots, dtype=np.bool_)
        self.parts = {
            name: torch.full((slots, *[1] * axes), _BLANK[dtype], dtype=dtype, device=device)
            for name, (dtype, axes) in kinds.items()
        }

    def assign(self, slots: Sequence[int], lists: Sequence[Mapping[str, np.ndarray] | None]) -> None:
        """Give slots their lists in place of those they had; None is no list. All parts of a list have one shape."""
        for slot, found in zip(slots, lists, strict=True):
            if found is not None or self._has_S[slot]:
                self._has_S[slot] = found is not None
                for name in self.parts:
                    self._write(name, slot, None if found is None else found[name])

    def _write(self, name: str, slot: int, value: np.ndarray | None) -> None:
        part = self.parts[name]
        if value is not None and any(has < needs for has, needs in zip(part.shape[1:], value.shape, strict=True)):
            part = self.parts[name] = _widened(part, value.shape)
        line = np.full(part.shape[1:], _BLANK[part.dtype], dtype=_NUMPY[part.dtype])
        if value is not None:
            line[_corner(value.shape)] = value
        part[slot] = to_device(line, self._device)


def _corner(shape: tuple[int, ...]) -> tuple[Any, ...]:
    """Where a list stands in a line: first, but words, the last of two directions, stand at the end, after blanks."""
    return (slice(0, shape[0]), *(slice(-width, None) for width in shape[1:]))


def _widened(old: Tensor, shape: tuple[int, ...]) -> Tensor:
    """A larger part with the contents of the old one, sizes rounded up so that growth is rare."""
    size = [max(has, 1 << (needs - 1).bit_length()) for has, needs in zip(old.shape[1:], shape, strict=True)]
    part = torch.full((len(old), *size), _BLANK[old.dtype], dtype=old.dtype, device=old.device)
    part[(slice(None), *_corner(tuple(old.shape[1:])))] = old
    return part
