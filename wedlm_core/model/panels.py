"""Weights in panels, as the CPU kernels read them (:mod:`wedlm_core.kernels.cpu.panels`), and how they are made."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from wedlm_core.errors import IntegrityError
from wedlm_core.kernels.cpu.panel_packing import look_up, look_up_bfloat16, pack_units
from wedlm_core.kernels.cpu.panels import PANEL, depth_step, numeric_kind
from wedlm_core.model.large_pages import large, let_go

__all__ = ["PanelWeight", "pack", "units_of"]

_HALF = PANEL // 2
_THREAD_BYTES = 1 << 20  # that another thread packs
_STORED = {"float32": torch.float32, "bfloat16": torch.bfloat16, "int8": torch.uint8, "int16": torch.int8}
_PER_UNIT = {"float32": 1, "bfloat16": 2, "int8": 4, "int16": 2}
_PART_BYTES = 16 << 20  # of a weight that is let go of: so much of one is in memory twice
_SIGN, _SIGNS = 128, 0x80808080
_UNITS = {2: (np.uint16, torch.int16), 4: (np.uint32, torch.int32)}
"""By the bytes of a unit, as weights are stored: what stands for it in numpy, and one as long in torch."""


def units_of(inputs: int, numbers: str) -> int:
    """Units of four bytes of a row."""
    step = depth_step(numbers)
    return -(-inputs // (_PER_UNIT[numeric_kind(numbers)] * step)) * step


@dataclass(frozen=True, kw_only=True, eq=False)
class PanelWeight:
    """A packed weight.

    Attributes:
        numbers: name of :func:`wedlm_core.kernels.cpu.panels.numbers_here`.
        data: panels ``[ceil(O / 64), 2, depth, 32, numbers of a unit]``; outputs and inputs beyond the last are zero.
        scale: float32, as long as the panels; empty for floats.
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

    @property
    def depth(self) -> int:
        """Units of a row."""
        return self.data.shape[2]

    def record(self) -> tuple[int, ...]:
        """The fields of :data:`wedlm_core.kernels.cpu.forward.PRODUCT`; valid while this object lives."""
        scale = self.scale.data_ptr() if self.scale.numel() else self.bias.data_ptr()
        return self.data.data_ptr(), scale, self.bias.data_ptr(), self.depth, self.outputs, self.inputs

    def look_up(self, ids: Tensor, out: Tensor) -> None:
        """Rows ``ids``, int64 ``[T]``, of the weight into ``out``, float32 ``[T, I]``; :meth:`rows` is the oracle.

        So a tied embedding needs no memory of its own. A row lies in as many places as it has units, which takes some
        ten times as long as to copy it in one piece: microseconds of a forward's milliseconds.

        Raises:
            IntegrityError: an id is outside of the panels.
        """
        if numeric_kind(self.numbers) == "bfloat16":
            halves = self.data.view(torch.int16).numpy().view(np.uint16)
            bits = out.view(torch.int32).numpy().view(np.uint32)
            found = look_up_bfloat16(halves, ids.numpy(), bits, 0, len(ids))
        else:
            offset = _SIGN if numeric_kind(self.numbers) == "int8" else 0
            found = look_up(self.data.numpy(), offset, self.scale.numpy(), ids.numpy(), out.numpy(), 0, len(ids))
        if not found:
            raise IntegrityError(f"ids from {int(ids.min())} to {int(ids.max())} of a table of {self.outputs} rows")

    def rows(self, ids: Tensor) -> Tensor:
        """Rows of the weight as float32 ``[T, I]``: the slow way back."""
        units = self.data[ids // PANEL, ids % PANEL // _HALF, :, ids % _HALF].reshape(len(ids), -1)[:, : self.inputs]
        wide = units.float()
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
    release: bool = False,
) -> PanelWeight:
    """Pack a weight.

    Args:
        weight_OI: float32, bfloat16 or int8, as ``numbers`` says ("int16" takes int8).
        numbers: see :func:`wedlm_core.kernels.cpu.panels.numbers_here`.
        scale_O: of int8 outputs.
        bias_O: None is zero.
        release: give the weight's memory back as it is packed; its numbers are lost.
    """
    (outputs, inputs), kind = weight_OI.shape, numeric_kind(numbers)
    per, count, depth = _PER_UNIT[kind], -(-outputs // PANEL), units_of(inputs, numbers)
    data = large(count * 2 * depth * _HALF * per * _STORED[kind].itemsize).view(_STORED[kind])
    whole_OI = torch.nn.functional.pad(weight_OI, (0, -inputs % per)) if inputs % per else weight_OI.contiguous()
    unit, plain = _UNITS[per * weight_OI.element_size()]
    units_OU = whole_OI.view(plain).numpy().view(unit)
    panels, flip = data.view(plain).numpy().view(unit).reshape(count, 2, depth, _HALF), unit(0)
    if kind == "int8":
        flip = unit(_SIGNS)

    def fill(first: int, last: int) -> None:
        pack_units(units_OU, flip, panels, first, last)

    members = min(torch.get_num_threads(), 1 + data.nbytes // _THREAD_BYTES)
    released = release and whole_OI.data_ptr() == weight_OI.data_ptr()
    parts = 1 + data.nbytes // _PART_BYTES if released else 1
    with ThreadPoolExecutor(members) as pool:
        for part in range(parts):
            first, last = count * part // parts, count * (part + 1) // parts
            edges = [first + (last - first) * i // members for i in range(members + 1)]
            list(pool.map(fill, edges, edges[1:]))
            if released:
                let_go(weight_OI[PANEL * first : PANEL * last])
    return PanelWeight(
        numbers=numbers, data=data.view(count, 2, depth, _HALF, per), outputs=outputs, inputs=inputs,
        scale=torch.empty(0) if scale_O is None else _as_long(scale_O, PANEL * count),
        bias=_as_long(torch.zeros(0) if bias_O is None else bias_O, PANEL * count),
    )  # fmt: skip


def _as_long(values: Any, length: int) -> Tensor:
    whole = torch.zeros(length)
    whole[: len(values)] = values.detach().float()
    return whole
