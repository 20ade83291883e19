"""Forwards that the host launches without waiting: it knows bounds of their rows, the device the numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from wedlm_core.attention import DeviceRows, PackedRows
from wedlm_core.engine.forward.cuda_graphs import DecoderGraphs
from wedlm_core.engine.forward.groups import RowBounds, WideRun
from wedlm_core.engine.forward.model_runner import ModelRunner
from wedlm_core.engine.forward.outcome import join, outcome_of
from wedlm_core.engine.forward.pack_gpu import DeviceBatch, Shape, plan_facts
from wedlm_core.engine.forward.runner import Runner, StepDetail
from wedlm_core.engine.forward.step_graphs import StepGraphs, StepKind, StepWork
from wedlm_core.engine.forward.tops import TopWords
from wedlm_core.engine.forward.transfer import AsyncCopy, to_device
from wedlm_core.engine.forward.window_work import WindowsByGroups, WindowWork
from wedlm_core.engine.forward.windows_by_kernels import WindowsByKernels
from wedlm_core.engine.scheduling.scheduler import ForwardPlan
from wedlm_core.engine.scheduling.slots import IntArray, SlotTable, StepOutcome
from wedlm_core.kernels.gpu.support import why_no_triton

_BY_GROUPS, _BY_KERNELS = WindowsByGroups(), WindowsByKernels()


@dataclass(frozen=True, kw_only=True)
class InFlightForward:
    """A launched forward.

    Attributes:
        copy: its outcome on the way to the host, as words
            (:func:`wedlm_core.engine.forward.outcome.words_of`), group after group.
        shapes: of the groups' words.
        decoding: sequences that decode; after the last one a part may have places without any.
        tops: the sequences whose most likely tokens stand after them; None where no sequence reports any.
        details: of the groups, with ``EngineConfig.trace`` only: they would hold on to device memory.
        bounds: of its rows and of those of the next forward.
        captured: whether a graph was captured on the way: its time says nothing about others.
    """

    copy: AsyncCopy
    shapes: Sequence[tuple[int, int]]
    details: Sequence[StepDetail]
    bounds: RowBounds
    decoding: int = 0
    captured: bool = False
    tops: TopWords | None = None

    def wait(self) -> StepOutcome:
        """The outcome of its decoding sequences; blocks until the device is done with it."""
        words = self.copy.wait()
        parts, start = [], 0
        for rows, columns in self.shapes:
            own = words[start : start + rows * columns].reshape(rows, columns)
            parts.append(outcome_of(own[: self.decoding]))
            start += rows * columns
        return join(parts, None if self.tops is None else self.tops.read(words[start:]))


class AsyncLaunch:
    """Packs on the device, by kernels or tensor operations: the host need not know how many rows there are.

    A forward takes one copy to the device (and one each for page tables and windows, where they changed) and one
    back; nothing in between asks the device, unless the attention backend cannot plan there.

    Args:
        model_runner: the engine's.
        graphs: captured forms of the decoder; None runs all forwards eagerly.
        steps: captured forms of the work around it; None runs that eagerly.

    Attributes:
        graphs, steps: as given.
        has_kernels: whether windows that have kernels are packed and advanced by them.
    """

    def __init__(
        self, model_runner: ModelRunner, graphs: DecoderGraphs | None = None, steps: StepGraphs | None = None
    ) -> None:
        self._model_runner, self.graphs, self.steps = model_runner, graphs, steps
        device = model_runner.device  # on a CPU kernels are interpreted, which is for tests of theirs
        self.has_kernels = device.type == "cuda" and why_no_triton(device) is None

    def forward(self, runner: Runner, plan: ForwardPlan, table: SlotTable) -> tuple[StepOutcome, list[StepDetail]]:
        """:meth:`start`, and wait for the outcome."""
        in_flight = self.start(runner, plan, table)
        return in_flight.wait(), list(in_flight.details)

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
        runs = bounds.runs(rows_D, bounds.next_rows(rows_D, table.left(slots_D)))
        shape = self._shape(plan, bounds.wanted_rows(rows_D))
        before = self._captured()
        windows = self._windows(runner, runs)
        around = self._around(runner, plan, runs, shape, padded=windows is _BY_KERNELS)
        facts_3S = around.facts(plan_facts(plan), len(slots_D))
        made = around.before(lambda: windows.prepare(runner, facts_3S, around.runs, around.shape))
        hidden_TD = self._run_model(made.batch)
        if made.picks is None:
            nothing = AsyncCopy(facts_3S[0, :1])
            return InFlightForward(
                copy=nothing, shapes=[], details=[], bounds=bounds, captured=self._captured() > before
            )
        if np.count_nonzero(state.reads_history):
            state.note_drafts(slots_D, made.context_S)
        kept_TD = around.hidden(hidden_TD)
        done = around.after(state, lambda: windows.finish(runner, made, kept_TD, plan.slots_S))
        return InFlightForward(
            copy=AsyncCopy(done.words),
            shapes=done.shapes,
            details=done.details,
            bounds=bounds,
            decoding=len(slots_D),
            captured=self._captured() > before,
            tops=TopWords.of(state, plan.slots_S, len(slots_D), sum(rows for rows, _ in done.shapes)),
        )

    def _windows(self, runner: Runner, runs: tuple[WideRun, ...]) -> WindowWork[Any]:
        """The work that packs the rows of this forward and advances its windows."""
        kernels = self.has_kernels and not runner.config.trace and _BY_KERNELS.takes(runner.state, runs)
        return _BY_KERNELS if kernels else _BY_GROUPS

    def _around(
        self, runner: Runner, plan: ForwardPlan, runs: tuple[WideRun, ...], shape: Shape, *, padded: bool
    ) -> StepWork:
        """How the work around this forward is run."""
        kind = StepKind(sequences=len(plan.slots_S), runs=runs, shape=shape)
        recorded = None
        if self.steps is not None and not runner.config.trace:
            recorded = self.steps.of(kind, runner.state, plan.slots_S, padded=padded)
        return recorded or StepWork(kind, runner.device)

    def _captured(self) -> int:
        steps = self.steps.recorded if self.steps is not None else 0
        return steps + (self.graphs.captured if self.graphs is not None else 0)

    def _shape(self, plan: ForwardPlan, wanted_D: IntArray) -> Shape:
        counts_S = plan.prefill_S + plan.decode_S
        rows = int(counts_S.sum())
        total = self.graphs.padded(rows) if self.graphs is not None else None
        return Shape(
            total=total or rows + -rows % self._model_runner.padding,
            max_rows=int(counts_S.max()),
            max_kv=int((plan.cached_S + counts_S).max()),
            wanted=int(wanted_D.sum()),
        )

    def _run_model(self, batch: DeviceBatch) -> Tensor:
        """Hidden states of the rows; after the real ones they are any value, or missing."""
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
