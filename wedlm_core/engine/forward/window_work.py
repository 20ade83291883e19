"""The windows' part of a forward that the host does not wait for: an interface with two forms.

:class:`WindowsByGroups` works with tensor operations, for any strategy;
:mod:`wedlm_core.engine.forward.windows_by_kernels` in two launches, for windows that have kernels.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch import Tensor

from wedlm_core.engine.forward.groups import Group, WideRun, flatten, gather_groups
from wedlm_core.engine.forward.logits import PickedRows, Picks
from wedlm_core.engine.forward.outcome import words_of
from wedlm_core.engine.forward.pack_gpu import DeviceBatch, Shape, pack_on_device, pick_on_device
from wedlm_core.engine.forward.runner import Runner, StepDetail
from wedlm_core.engine.forward.tops import rows_of, top_words
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


@dataclass(frozen=True, kw_only=True)
class GroupsPrepared(Prepared):
    """See :class:`Prepared`; ``picks`` have places in the flat layout of all ``groups``."""

    picks: Picks | None
    groups: list[Group]


class WindowsByGroups(WindowWork[GroupsPrepared]):
    """By tensor operations; windows that share a decoding advance together."""

    def prepare(self, runner: Runner, facts_3S: Tensor, runs: tuple[WideRun, ...], shape: Shape) -> GroupsPrepared:
        """See :class:`WindowWork`."""
        state = runner.state
        context_S = state.context_S.index_select(0, facts_3S[0])
        groups = gather_groups(runs, state, facts_3S[0], context_S)
        layout = flatten(groups) if groups else None
        batch, first_S = pack_on_device(facts_3S, layout, state, shape, runner.pool.page_size)
        picks = None if layout is None else pick_on_device(groups, layout, batch, first_S, shape)
        return GroupsPrepared(context_S=context_S, groups=groups, batch=batch, picks=picks)

    def finish(self, runner: Runner, made: GroupsPrepared, hidden_TD: Tensor, slots_S: IntArray) -> Finished:
        """See :class:`WindowWork`."""
        assert made.picks is not None
        state, groups = runner.state, made.groups
        choice_F = runner.choose(hidden_TD, made.picks, state, slots_S)
        words, details = [], []
        for group, advance in zip(groups, runner.advance_groups(groups, choice_F), strict=True):
            commit = advance.detail.commit
            state.context_S.index_copy_(0, group.slots_S, group.context_S + commit.context_S)
            words.append(words_of(commit, advance.next_rows_S))
            if runner.config.trace:
                details.append(advance.detail)
        shapes, flat = [(w.shape[0], w.shape[1]) for w in words], [w.flatten() for w in words]
        if choice_F.tops is not None:
            flat.append(top_words(choice_F.tops, rows_of(groups)))
        return Finished(words=torch.cat(flat), shapes=shapes, details=details)
