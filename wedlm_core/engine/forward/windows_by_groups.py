"""Windows of any strategies around a forward, by tensor operations: those that share a decoding advance together."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from wedlm_core.engine.forward.bounds import WideRun
from wedlm_core.engine.forward.groups import Group, flatten, gather_groups
from wedlm_core.engine.forward.joining import join_tensors
from wedlm_core.engine.forward.logits import Picks
from wedlm_core.engine.forward.outcome import words_of
from wedlm_core.engine.forward.pack_gpu import Shape, pack_on_device, pick_on_device
from wedlm_core.engine.forward.runner import Runner
from wedlm_core.engine.forward.tops import rows_of, top_words
from wedlm_core.engine.forward.window_work import Finished, Prepared, WindowWork
from wedlm_core.engine.scheduling.slots import IntArray


@dataclass(frozen=True, kw_only=True)
class GroupsPrepared(Prepared):
    """See :class:`Prepared`; ``picks`` have places in the flat layout of all ``groups``."""

    picks: Picks | None
    groups: list[Group]


class WindowsByGroups(WindowWork[GroupsPrepared]):
    """See :class:`WindowWork`."""

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
        return Finished(words=join_tensors(flat), shapes=shapes, details=details)
