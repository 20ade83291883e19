"""Forwards that the host launches without waiting: it knows bounds of their rows, the device the numbers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from wedlm_core.attention import DeviceRows, PackedRows
from wedlm_core.engine.forward.bounds import RowBounds
from wedlm_core.engine.forward.cuda_graphs import DecoderGraphs
from wedlm_core.engine.forward.groups import Group, WideRun, flatten, gather_groups, wide_runs
from wedlm_core.engine.forward.joining import join_tensors
from wedlm_core.engine.forward.logits import Chosen, Picks
from wedlm_core.engine.forward.model_runner import ModelRunner
from wedlm_core.engine.forward.outcome import join, outcome_of, words_of
from wedlm_core.engine.forward.pack_gpu import DeviceBatch, Shape, pack_on_device, pick_on_device, plan_facts
from wedlm_core.engine.forward.runner import Runner, StepDetail
from wedlm_core.engine.forward.step_graphs import StepGraphs
from wedlm_core.engine.forward.step_work import EagerStep, StepKind, StepWork
from wedlm_core.engine.forward.tops import TopWords, places_of, top_words_of
from wedlm_core.engine.forward.transfer import AsyncCopy, to_device
from wedlm_core.engine.scheduling.scheduler import ForwardPlan
from wedlm_core.engine.scheduling.slots import BoolArray, IntArray, SlotTable, StepOutcome

__all__ = ["AsyncLaunch", "InFlightForward"]


@dataclass(frozen=True, kw_only=True)
class InFlightForward:
    """A launched forward.

    Attributes:
        copy: its outcome on the way to the host, as words (:func:`words_of`), group after group.
        shapes: of the groups' words.
        tops: where the most likely tokens stand behind them; None where no sequence reports any.
        details: of the groups, with ``EngineConfig.trace`` only: they would hold on to device memory.
        bounds: of its rows and of those of the next forward.
        captured: whether a graph was captured on the way: its time says nothing about others.
    """

    copy: AsyncCopy
    shapes: list[tuple[int, int]]
    details: list[StepDetail]
    bounds: RowBounds
    captured: bool = False
    tops: TopWords | None = None

    def wait(self) -> StepOutcome:
        """The outcome of its decoding sequences; blocks until the device is done with it."""
        words = self.copy.wait()
        parts, start = [], 0
        for rows, columns in self.shapes:
            parts.append(outcome_of(words[start : start + rows * columns].reshape(rows, columns)))
            start += rows * columns
        return join(parts, None if self.tops is None else self.tops.read(words[start:]))


@dataclass(frozen=True, kw_only=True)
class _Prepared:
    """What is made before the decoder runs, on the device; ``picks`` is None where nothing decodes."""

    context_S: Tensor
    groups: list[Group]
    batch: DeviceBatch
    picks: Picks | None


@dataclass(frozen=True, kw_only=True)
class _Finished:
    """What is made after it: the groups' words (:func:`words_of`), their shapes, what was chosen, and details."""

    words: list[Tensor]
    shapes: list[tuple[int, int]]
    chosen: Chosen
    details: list[StepDetail]


class AsyncLaunch:
    """Packs with tensor operations on the device, so that the host need not know how many rows there are.

    A forward takes one copy to the device (and one each for page tables and windows, where they changed) and one
    back; nothing in between asks the device, unless the attention backend cannot plan there.

    Args:
        model_runner: the engine's.
        graphs: captured forms of the decoder; None runs all forwards eagerly.
        steps: captured forms of the work around it; None runs that eagerly.

    Attributes:
        graphs, steps: as given.
    """

    def __init__(
        self, model_runner: ModelRunner, graphs: DecoderGraphs | None = None, steps: StepGraphs | None = None
    ) -> None:
        self._model_runner, self.graphs, self.steps = model_runner, graphs, steps

    def forward(self, runner: Runner, plan: ForwardPlan, table: SlotTable) -> tuple[StepOutcome, list[StepDetail]]:
        """:meth:`start`, and wait for the outcome."""
        in_flight = self.start(runner, plan, table)
        outcome = in_flight.wait()
        runner.profile.lap("wait")
        return outcome, in_flight.details

    @torch.inference_mode()
    def start(self, runner: Runner, plan: ForwardPlan, table: SlotTable) -> InFlightForward:
        """:meth:`launch` where the host knows everything: brings the plan's slots up to date first."""
        state = runner.state
        slots_S = to_device(plan.slots_S, state.device)
        state.context_S.index_copy_(0, slots_S, to_device(plan.cached_S + plan.prefill_S, state.device))
        state.push_pages(plan.slots_S.tolist())
        return self.launch(runner, plan, table)

    @torch.inference_mode()
    def launch(self, runner: Runner, plan: ForwardPlan, table: SlotTable) -> InFlightForward:
        """Launch one packed forward and all that follows it up to the copy to the host.

        Args:
            runner: whose windows it advances.
            plan: decoding sequences first, grouped. ``decode_S``, and ``cached_S`` where there are no prefill rows,
                are bounds: the device knows the numbers.
            table: slots; groups and windows are read.
        """
        state = runner.state
        state.push_pages()
        slots_D = plan.slots_S[: np.count_nonzero(plan.decode_S)]
        rows_D = plan.decode_S[: len(slots_D)]
        bounds = runner.bounds(table, slots_D)
        runs = wide_runs(plan, table, state.decodings, bounds.next_rows(rows_D, table.left(slots_D)))
        wanted_D, optional_D = bounds.wanted_rows(rows_D), state.uses_optional(slots_D)
        shape = self._shape(plan, wanted_D, optional_D, state.tops[slots_D] > 0)
        before = self._captured()
        around = self._around(runner, plan, runs, shape)
        facts_3S = around.facts(plan_facts(plan))
        made = around.before(lambda: self._prepare(runner, facts_3S, around.runs, around.shape))
        runner.profile.lap("pack")
        hidden_TD = self._run_model(made.batch)
        runner.profile.lap("model")
        picks = made.picks
        if picks is None:
            nothing = AsyncCopy(facts_3S[0, :1])
            return InFlightForward(
                copy=nothing, shapes=[], details=[], bounds=bounds, captured=self._captured() > before
            )
        state.note_drafts(slots_D, made.context_S)
        kept_TD = around.hidden(hidden_TD)
        done = around.after(state, lambda: self._finish(runner, made, picks, kept_TD, plan.slots_S))
        words, tops = done.words, None
        if done.chosen.tops is not None:
            first_D, places_D = places_of(made.groups)
            tops, top_words = top_words_of(done.chosen.tops, state, slots_D, first_D, places_D)
            words = [*words, top_words]
        in_flight = InFlightForward(
            copy=AsyncCopy(join_tensors([w.flatten() for w in words])),
            shapes=done.shapes,
            details=done.details,
            bounds=bounds,
            captured=self._captured() > before,
            tops=tops,
        )
        runner.profile.lap("fetch")
        return in_flight

    def _around(self, runner: Runner, plan: ForwardPlan, runs: tuple[WideRun, ...], shape: Shape) -> StepWork:
        """How the work around this forward is run."""
        kind = StepKind(sequences=len(plan.slots_S), runs=runs, shape=shape)
        recorded = None
        if self.steps is not None and not runner.config.trace:
            recorded = self.steps.of(kind, runner.state, plan.slots_S)
        return recorded or EagerStep(kind, runner.device)

    def _prepare(self, runner: Runner, facts_3S: Tensor, runs: tuple[WideRun, ...], shape: Shape) -> _Prepared:
        """Pack the rows of a forward and pick those that need logits."""
        state = runner.state
        context_S = state.context_S.index_select(0, facts_3S[0])
        groups = gather_groups(runs, state, facts_3S[0], context_S)
        layout = flatten(groups) if groups else None
        batch = pack_on_device(facts_3S, layout, state, shape, runner.pool.page_size)
        picks = None if layout is None else pick_on_device(groups, layout, batch, shape)
        return _Prepared(context_S=context_S, groups=groups, batch=batch, picks=picks)

    def _finish(self, runner: Runner, made: _Prepared, picks: Picks, hidden_TD: Tensor, slots_S: IntArray) -> _Finished:
        """Choose tokens and advance the windows."""
        state = runner.state
        chosen_F = runner.choose(hidden_TD, picks, state, slots_S)
        runner.profile.lap("choose")
        words, details = [], []
        for group, advance in zip(made.groups, runner.advance_groups(made.groups, chosen_F.choice), strict=True):
            commit = advance.detail.commit
            state.context_S.index_copy_(0, group.slots_S, group.context_S + commit.context_S)
            words.append(words_of(commit, advance.next_rows_S))
            if runner.config.trace:
                details.append(advance.detail)
        shapes = [(w.shape[0], w.shape[1]) for w in words]
        return _Finished(words=words, shapes=shapes, chosen=chosen_F, details=details)

    def _captured(self) -> int:
        steps = self.steps.recorded if self.steps is not None else 0
        return steps + (self.graphs.captured if self.graphs is not None else 0)

    def _shape(self, plan: ForwardPlan, wanted_D: IntArray, optional_D: BoolArray, tops_D: BoolArray) -> Shape:
        counts_S = plan.prefill_S + plan.decode_S
        rows = int(counts_S.sum())
        total = self.graphs.padded(rows) if self.graphs is not None else None
        return Shape(
            total=total or self._model_runner.padding(rows),
            max_rows=int(counts_S.max()),
            max_kv=int((plan.cached_S + counts_S).max()),
            wanted=int(wanted_D.sum()),
            special=int(wanted_D[optional_D].sum()),
            topped=int(wanted_D[tops_D].sum()),
        )

    def _run_model(self, batch: DeviceBatch) -> Tensor:
        """Hidden states of the rows; behind the real ones they are any value, or missing."""
        runner = self._model_runner
        if not runner.backend.on_device:
            rows = _on_host(batch.rows)
            real = slice(0, rows.total)
            return runner.run(batch.id_T[real], batch.position_T[real], batch.kv_entry_T[real], rows)
        hidden_TD = self.graphs.run(batch) if self.graphs is not None else None
        if hidden_TD is not None:
            return hidden_TD
        return runner.run_device_rows(batch.id_T, batch.position_T, batch.kv_entry_T, batch.rows)


def _on_host(rows: DeviceRows) -> PackedRows:
    """For backends that plan on the host: free on CPU, a wait for the device elsewhere."""
    edges = rows.cu_rows_Z.to("cpu", torch.int64).numpy()
    counts_S = np.diff(edges)
    return PackedRows(
        counts_S=counts_S,
        cached_S=rows.kv_lengths_S.to("cpu", torch.int64).numpy() - counts_S,
        starts_S=edges[:-1],
        pages_SP=rows.pages_SP.to(torch.int64),
    )
