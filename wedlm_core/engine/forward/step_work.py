"""The work around a forward: rows are packed and picked before it, tokens chosen and windows advanced after it.

It is done operation by operation here, and replayed where it was recorded
(:mod:`wedlm_core.engine.forward.step_graphs`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from wedlm_core.engine.forward.bounds import WideRun
from wedlm_core.engine.forward.device_state import DeviceState
from wedlm_core.engine.forward.pack_gpu import Shape
from wedlm_core.engine.forward.transfer import to_device
from wedlm_core.engine.scheduling.slots import IntArray

Result = TypeVar("Result")


@dataclass(frozen=True, kw_only=True)
class StepKind:
    """The host's part of the work around a forward: its fixed values. The others are read on the device.

    Attributes:
        sequences: of the forward.
        runs: its decoding sequences, and how wide their windows are.
        shape: bounds of its rows.
        uses: stages of sampling that any row needs (``DeviceState.uses``).
        most: likely tokens that any sequence reports.
        constrained: whether any sequence has a grammar.
    """

    sequences: int
    runs: tuple[WideRun, ...]
    shape: Shape
    uses: tuple[bool, ...] = ()
    most: int = 0
    constrained: bool = False


class StepWork:
    """The work around one forward, before the decoder and after it, done operation by operation.

    Attributes:
        runs, shape: bounds that the work is to be done with.
    """

    def __init__(self, kind: StepKind, device: torch.device) -> None:
        self.runs, self.shape, self._device = kind.runs, kind.shape, device

    def facts(self, facts_3S: IntArray, decoding: int) -> Tensor:
        """A plan's facts where the work reads them; its first sequences decode, so many."""
        return to_device(facts_3S, self._device)

    def before(self, work: Callable[[], Result]) -> Result:
        """Do the work before the decoder."""
        return work()

    def hidden(self, hidden_TD: Tensor) -> Tensor:
        """Hidden states where the work reads them."""
        return hidden_TD

    def after(self, state: DeviceState, work: Callable[[], Result]) -> Result:
        """Do the work after the decoder; the tokens that grammars allow are known then, or waited for."""
        return work()
