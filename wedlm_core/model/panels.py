"""Weights in panels, as the kernels of :mod:`wedlm_core.kernels.cpu.panel_products` read them, and their making."""

from __future__ import annotations

import contextlib
import math
import mmap
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from wedlm_core.errors import IntegrityError
from wedlm_core.kernels.cpu.eight_bits import round_narrow_rows, round_rows
from wedlm_core.kernels.cpu.panel_packing import look_up, look_up_bfloat16, pack_units
from wedlm_core.kernels.cpu.panel_products import PANEL, depth_step, numeric_kind

_HALF = PANEL // 2
_THREAD_BYTES = 1 << 20  # that another thread packs
_STORED = {"float32": torch.float32, "bfloat16": torch.bfloat16, "int8": torch.uint8, "int16": torch.int8}
_PER_UNIT = {"float32": 1, "bfloat16": 2, "int8": 4, "int16": 2}
_SCALED = ("int8", "int16")
_FEWEST_BYTES = 4 << 20  # two of the usual large pages: less would waste much of one
_PUT_NUMBERS = 1 << 15  # converted at once: they stay in the cache, and torch starts no threads for so few
_PUT_BFLOAT16 = 1 << 18  # the same where torch converts nothing
_SIGN, _SIGNS = 128, 0x80808080
_ZERO = {"float32": 0, "bfloat16": 0, "int8": _SIGN, "int16": 0}
_UNITS = {2: (np.uint16, torch.int16), 4: (np.uint32, torch.int32)}
"""By the bytes of a unit of stored weights: its type in numpy, and a type of that length in torch."""


def units_of(inputs: int, numbers: str) -> int:
    """Units of four bytes of a row."""
    step, per = depth_step(numbers), _PER_UNIT[numeric_kind(numbers)]
    return -(-inputs // (per * step)) * step


@dataclass(frozen=True, kw_only=True, eq=False)
class PanelWeight:
    """A packed weight.

    Attributes:
        numbers: name of :func:`wedlm_core.kernels.cpu.panel_products.numbers_here`.
        data: panels ``[ceil(O / 64), 2, depth, 32, numbers of a unit]``; outputs and inputs beyond the last are zero.
        scale: float32, as long as the panels; empty for floats that are stored as they are.
        bias: float32, as long as the panels.
        outputs: O.
        inputs: I.
    """

    numbers: str
    data: Tensor
    scale: Tensor
    bias: Tensor
    outputs: int
    inputs: int

    @classmethod
    def empty(cls, outputs: int, inputs: int, numbers: str, *, bias_O: Tensor | None = None) -> PanelWeight:
        """Room for a weight, whose outputs are to be put there.

        Args:
            outputs: O.
            inputs: I.
            numbers: see :func:`wedlm_core.kernels.cpu.panel_products.numbers_here`.
            bias_O: None is zero.
        """
        kind, count, units = numeric_kind(numbers), -(-outputs // PANEL), units_of(inputs, numbers)
        per, dtype = _PER_UNIT[kind], _STORED[kind]
        shape = (count, PANEL // _HALF, units, _HALF, per)
        data = _large(math.prod(shape) * dtype.itemsize).view(dtype).view(shape)
        if outputs % PANEL:
            _bytes_of(data[-1])[:] = _ZERO[kind]  # memory after the last output
        return cls(
            numbers=numbers, data=data, outputs=outputs, inputs=inputs,
            scale=torch.zeros(PANEL * count if kind in _SCALED else 0),
            bias=_as_long(torch.zeros(0) if bias_O is None else bias_O, PANEL * count),
        )  # fmt: skip

    def put(self, start: int, weight_RI: Tensor) -> None:
        """Put outputs from ``start`` on in their places. Threads may put different ones at the same time.

        Args:
            start: the first output.
            weight_RI: of any floating dtype: rounded to bfloat16 where panels hold that, and as
                :class:`wedlm_core.model.int8.Int8Linear` does it where they hold integers.
        """
        kind, rows = numeric_kind(self.numbers), len(weight_RI)
        floats = kind in ("float32", "bfloat16")
        if floats and weight_RI.dtype in (torch.bfloat16, self.data.dtype):
            self.copy_in(start, self._in_whole_units(weight_RI))
            return
        at_once = _PUT_BFLOAT16 if weight_RI.dtype == torch.bfloat16 else _PUT_NUMBERS
        step = max(1, at_once // max(1, self.inputs))
        for first in range(0, rows, step):
            part_RI = weight_RI[first : first + step]
            narrow_RI = part_RI.to(self.data.dtype) if floats else self._rounded(start + first, part_RI)
            self.copy_in(start + first, self._in_whole_units(narrow_RI))

    def _in_whole_units(self, weight_RI: Tensor) -> Tensor:
        short = -weight_RI.shape[1] % self.data.shape[-1]
        return torch.nn.functional.pad(weight_RI, (0, short)) if short else weight_RI.contiguous()

    def _rounded(self, start: int, weight_RI: Tensor) -> Tensor:
        """Outputs as int8; their scales are noted."""
        byte_RI = torch.empty(weight_RI.shape, dtype=torch.int8)
        scale_R = self.scale[start : start + len(weight_RI)].numpy()
        if weight_RI.dtype == torch.bfloat16:
            bits = weight_RI.contiguous().view(torch.int16).numpy().view(np.uint16)
            round_narrow_rows(bits, byte_RI.numpy(), scale_R, 0, len(weight_RI))
        else:
            round_rows(weight_RI.float().contiguous().numpy(), byte_RI.numpy(), scale_R, 0, len(weight_RI))
        return byte_RI

    def copy_in(self, start: int, weight_RI: Tensor) -> None:
        """Copy outputs from ``start`` on to their places.

        Args:
            start: the first output.
            weight_RI: int8 or floats as the panels have them, or bfloat16 for float32; in whole units, contiguous.
        """
        per, stored = self.data.shape[-1], weight_RI.element_size()
        factor = np.uint32(1 << 8 * (self.data.element_size() - stored))
        unit, plain = _UNITS[per * stored]
        units = weight_RI.view(plain).numpy().view(unit)
        unit, plain = _UNITS[per * self.data.element_size()]
        panels = self.data.flatten(3).view(plain).numpy().view(unit)
        flip = np.uint32(_SIGNS if self.data.dtype == torch.uint8 else 0)
        pack_units(units, factor, flip, panels, start, 0, len(weight_RI))

    def with_bias(self, bias_O: Tensor | None) -> PanelWeight:
        """The same weight with a bias; None is zero."""
        return self if bias_O is None else replace(self, bias=_as_long(bias_O, len(self.bias)))

    def holds(self, start: int, weight_RI: Tensor) -> bool:
        """Whether outputs from ``start`` on are those that :meth:`put` would make of this, bit for bit."""
        other = PanelWeight.empty(len(weight_RI), self.inputs, self.numbers)
        other.put(0, weight_RI)
        ids = torch.arange(len(weight_RI))
        return torch.equal(other.rows(ids), self.rows(ids + start))

    @property
    def depth(self) -> int:
        """Units of a row that is multiplied."""
        return units_of(self.inputs, self.numbers)

    def record(self) -> tuple[int, ...]:
        """The fields of :data:`wedlm_core.kernels.cpu.records.PRODUCT`; valid while this object lives."""
        scale = self.scale.data_ptr() if self.scale.numel() else self.bias.data_ptr()
        return self.data.data_ptr(), scale, self.bias.data_ptr(), self.depth, self.outputs, self.inputs

    def look_up(self, ids: Tensor, out: Tensor, count: int) -> None:
        """Rows of the weight, as :meth:`rows` gives them; that is the oracle.

        So a tied embedding needs no memory of its own. A row lies in as many places as it has units, which takes some
        ten times as long as to copy it in one piece: microseconds of a forward's milliseconds.

        Args:
            ids: int64 ``[T]``.
            out: float32 ``[T, I]``, written.
            count: of the first so many ids.

        Raises:
            IntegrityError: an id is outside of the panels.
        """
        if numeric_kind(self.numbers) == "bfloat16":
            bits = out.view(torch.int32).numpy().view(np.uint32)
            found = look_up_bfloat16(self._array, ids.numpy(), bits, 0, count)
        else:
            offset = _SIGN if numeric_kind(self.numbers) == "int8" else 0
            found = look_up(self._array, offset, self._scale_array, ids.numpy(), out.numpy(), 0, count)
        if not found:
            low, high = int(ids[:count].min()), int(ids[:count].max())
            raise IntegrityError(f"ids from {low} to {high} of a table of {self.outputs} rows")

    @cached_property
    def _array(self) -> np.ndarray:
        """The panels as kernels take them: bfloat16 as its bits."""
        if self.data.dtype == torch.bfloat16:
            return self.data.view(torch.int16).numpy().view(np.uint16)
        return self.data.numpy()

    @cached_property
    def _scale_array(self) -> np.ndarray:
        return self.scale.numpy()

    def rows(self, ids: Tensor) -> Tensor:
        """Rows of the weight as float32 ``[T, I]``: the slow way back."""
        half = self.data.shape[3]
        units = self.data[ids // PANEL, ids % PANEL // half, :, ids % half].reshape(len(ids), -1)
        wide = units[:, : self.inputs].float()
        if numeric_kind(self.numbers) == "int8":
            wide -= _SIGN
        return wide * self.scale[ids][:, None] if self.scale.numel() else wide


@torch.inference_mode()
def pack(
    weight_OI: Tensor,
    numbers: str,
    *,
    scale_O: Tensor | None = None,
    bias_O: Tensor | None = None,
) -> PanelWeight:
    """Pack a weight.

    Args:
        weight_OI: float32, bfloat16 or int8, as ``numbers`` says ("int16" takes int8).
        numbers: see :func:`wedlm_core.kernels.cpu.panel_products.numbers_here`.
        scale_O: of int8 outputs.
        bias_O: None is zero.
    """
    outputs, inputs = weight_OI.shape
    packed = PanelWeight.empty(outputs, inputs, numbers, bias_O=bias_O)
    if scale_O is not None:
        packed.scale[:outputs] = scale_O.detach()
    elif packed.scale.numel():
        packed = replace(packed, scale=torch.empty(0))
    whole_OI = packed._in_whole_units(weight_OI)

    def fill(first: int, last: int) -> None:
        packed.copy_in(first, whole_OI[first:last])

    members, count = min(torch.get_num_threads(), 1 + packed.data.nbytes // _THREAD_BYTES), len(packed.data)
    edges = [min(PANEL * (count * i // members), outputs) for i in range(members + 1)]
    with ThreadPoolExecutor(members) as pool:
        list(pool.map(fill, edges, edges[1:]))
    return packed


def _large(count: int) -> Tensor:
    """uint8 ``[count]``, not initialised, in large pages where the system has them.

    Every forward reads all weights: in pages of 4 KiB the processor spends part of that time on finding them.
    """
    if count < _FEWEST_BYTES or not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.empty(count, dtype=torch.uint8)
    block = mmap.mmap(-1, count, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a kernel without them: pages are small
        block.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(block, dtype=torch.uint8)


def _bytes_of(whole: Tensor) -> Any:
    """As numpy has them: torch would start threads, which spin on."""
    return whole.view(torch.uint8).numpy()


def _as_long(values: Any, length: int) -> Tensor:
    whole = torch.zeros(length)
    whole[: len(values)] = values.detach().float()
    return whole
