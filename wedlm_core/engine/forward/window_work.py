"""The windows' part of a forward that the host does not wait for: an interface with two forms.

:mod:`wedlm_core.engine.forward.windows_by_groups` works with tensor operations, for any strategy;
:mod:`wedlm_core.engine.forward.windows_by_kernels` in two launches, for windows that have kernels.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from torch import Tensor

from wedlm_core.engine.forward.bounds import WideRun
from wedlm_core.engine.forward.logits import PickedRows
from wedlm_core.engine.forward.pack_gpu import DeviceBatch, Shape
from wedlm_core.engine.forward.runner import Runner, StepDetail
from wedlm_core.engine.scheduling.slots import IntArray


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """The part before the decoder, on the device.

    Attributes:
        context_S: int64, tokens whose KV precedes the decode rows of each sequence.
        batch: the decoder's input.
        picks: rows that need logits; None where nothing decodes.
    """

    context_S: Tensor
    batch: DeviceBatch
    picks: PickedRows | None


AnyPrepared = TypeVar("AnyPrepared", bound=Prepared)


@dataclass(frozen=True, kw_only=True)
class Finished:
    """The part after it.

    Attributes:
        words: int32, flat: of each part :func:`wedlm_core.engine.forward.outcome.words_of`, one after the other, and
            after them the most likely tokens.
        shapes: of the parts' words.
        details: of the parts, with ``EngineConfig.trace`` only.
    """

    words: Tensor
    shapes: Sequence[tuple[int, int]]
    details: Sequence[StepDetail] = ()


class WindowWork(ABC, Generic[AnyPrepared]):
    """One form of the work."""

    @abstractmethod
    def prepare(self, runner: Runner, facts_3S: Tensor, runs: tuple[WideRun, ...], shape: Shape) -> AnyPrepared:
        """Pack the rows of a forward and pick those that need logits.

        Args:
            runner: whose state is read.
            facts_3S: :func:`wedlm_core.engine.forward.pack_gpu.plan_facts` on the device.
            runs: the decoding sequences, which come first.
            shape: bounds.
        """

    @abstractmethod
    def finish(self, runner: Runner, made: AnyPrepared, hidden_TD: Tensor, slots_S: IntArray) -> Finished:
        """Choose tokens, advance the windows, and return the outcome.

        Args:
            runner: whose state is moved on.
            made: by :meth:`prepare`, with picks.
            hidden_TD: hidden states of the forward.
            slots_S: the forward's slots, on the host.
        """
