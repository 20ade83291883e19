"""Lists that requests bring (stop tokens, biases, bad words), kept on the device once for all slots that share them.

The rows of a job mostly bring the same list, so it is copied when the first of them is set up, and never per forward.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from wedlm_core.engine.forward.transfer import to_device

_NUMPY = {torch.int64: np.int64, torch.float32: np.float32}
_BLANK = {torch.int64: -1, torch.float32: 0}


class SharedLists:
    """Distinct lists by row; row 0 is the empty one, which slots without a list have.

    Args:
        slots: of the engine.
        kinds: dtype and dimensions of each part of a list: int64 ids, with -1 where there is none, or float32
            values, with 0.
        device: where the parts are.

    Attributes:
        parts: by name ``[U, ...]``, at least as large as the largest list in any direction.
        row_S: int64 ``[slots]`` on the device, each slot's row.
    """

    def __init__(self, slots: int, kinds: Mapping[str, tuple[torch.dtype, int]], device: torch.device) -> None:
        self._device = device
        self.parts = {name: _widened(None, (1,) * (1 + axes), dtype, device) for name, (dtype, axes) in kinds.items()}
        self.row_S = torch.zeros(slots, dtype=torch.int64, device=device)
        self._host_row_S = np.zeros(slots, dtype=np.int64)
        self._rows: dict[Hashable, int] = {}
        self._keys: dict[int, Hashable] = {}
        self._uses: dict[int, int] = {}
        self._free: list[int] = []

    def assign(self, slots: Sequence[int], lists: Sequence[Mapping[str, np.ndarray] | None]) -> None:
        """Give slots their lists in place of those they had; None is no list. All parts of a list have one shape."""
        if not any(found is not None for found in lists) and not self._host_row_S[list(slots)].any():
            return
        for slot in slots:
            self._release(int(self._host_row_S[slot]))
        rows = [0 if found is None else self._row_of(found) for found in lists]
        self._host_row_S[list(slots)] = rows
        index_S = to_device(np.array(slots, dtype=np.int64), self._device)
        self.row_S.index_copy_(0, index_S, to_device(np.array(rows, dtype=np.int64), self._device))

    def _release(self, row: int) -> None:
        if row:
            self._uses[row] -= 1
            if not self._uses[row]:
                del self._rows[self._keys.pop(row)]
                self._free.append(row)

    def _row_of(self, parts: Mapping[str, np.ndarray]) -> int:
        key = tuple((name, value.shape, value.tobytes()) for name, value in sorted(parts.items()))
        row = self._rows.get(key)
        if row is None:
            row = self._rows[key] = self._free.pop() if self._free else len(self._keys) + 1
            self._keys[row], self._uses[row] = key, 0
            self._write(row, parts)
        self._uses[row] += 1
        return row

    def _write(self, row: int, given: Mapping[str, np.ndarray]) -> None:
        for name, value in given.items():
            part, shape = self.parts[name], (row + 1, *value.shape)
            if any(has < needs for has, needs in zip(part.shape, shape, strict=True)):
                part = self.parts[name] = _widened(part, shape, part.dtype, self._device)
            whole = np.full(part.shape[1:], _BLANK[part.dtype], dtype=_NUMPY[part.dtype])
            # Words stand at the end of their places, in the first rows, after blanks.
            whole[tuple(_corner(value.shape))] = value
            part[row] = to_device(whole, self._device)


def _corner(shape: tuple[int, ...]) -> list[Any]:
    """Where a list stands in a larger part: from the first place on; of the last of two directions, at the end."""
    return [slice(0, shape[0])] if len(shape) == 1 else [slice(0, shape[0]), slice(-shape[1], None)]


def _widened(old: Tensor | None, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """A larger part with the contents of the old one, sizes rounded up so that growth is rare."""
    had = (0,) * len(shape) if old is None else tuple(old.shape)
    size = [max(has, 1 << (needs - 1).bit_length()) for has, needs in zip(had, shape, strict=True)]
    part = torch.full(size, _BLANK[dtype], dtype=dtype, device=device)
    if old is not None:
        part[(slice(0, had[0]), *_corner(had[1:]))] = old
    return part
