"""Forwards that the host launches and does not wait for: it knows bounds of their rows, the device the numbers."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from wedlm_core.attention import DeviceRows, PackedRows
from wedlm_core.engine.forward.bounds import next_rows, wanted_rows
from wedlm_core.engine.forward.cuda_graphs import DecoderGraphs
from wedlm_core.engine.forward.joining import join_tensors
from wedlm_core.engine.forward.outcome import join, outcome_of, words_of
from wedlm_core.engine.forward.pack import gather_groups
from wedlm_core.engine.forward.pack_gpu import DeviceBatch, Shape, pack_on_device, pick_on_device, plan_facts
from wedlm_core.engine.forward.runner import Runner
from wedlm_core.engine.forward.transfer import Arrival, to_device
from wedlm_core.engine.scheduling.scheduler import ForwardPlan
from wedlm_core.engine.scheduling.slots import BoolArray, IntArray, SlotTable, StepOutcome

__all__ = ["AheadRunner", "Flight"]


class Flight:
    """A forward under way. ``shapes`` are those of its groups' words."""

    def __init__(self, words: Tensor, shapes: list[tuple[int, int]]) -> None:
        self.arrival, self._shapes = Arrival(words), shapes

    def wait(self) -> StepOutcome:
        """The outcome of its decoding sequences; blocks until the device is done with it."""
        words = self.arrival.wait()
        parts, start = [], 0
        for rows, columns in self._shapes:
            parts.append(outcome_of(words[start : start + rows * columns].reshape(rows, columns)))
            start += rows * columns
        return join(parts)


class AheadRunner:
    """Launches forwards through a runner's model, pool and state.

    A forward takes one copy to the device (and one each for page tables and windows, where they changed) and one
    back; nothing in between asks the device, unless the attention backend cannot plan there.

    Args:
        runner: the engine's.
        graphs: captured forms of the decoder; None runs all forwards eagerly.
    """

    def __init__(self, runner: Runner, graphs: DecoderGraphs | None = None) -> None:
        self._runner, self._graphs = runner, graphs

    def launch_exactly(self, plan: ForwardPlan, table: SlotTable) -> Flight:
        """:meth:`launch` where the host knows everything, the plan's slots being brought up to date first."""
        state = self._runner.state
        slots_S = to_device(plan.slots_S, state.device)
        state.context_S.index_copy_(0, slots_S, to_device(plan.cached_S + plan.prefill_S, state.device))
        state.push_pages(plan.slots_S.tolist())
        return self.launch(plan, table)

    @torch.inference_mode()
    def launch(self, plan: ForwardPlan, table: SlotTable) -> Flight:
        """Launch one packed forward and all that follows it up to the copy to the host.

        Args:
            plan: decoding sequences first, grouped. ``decode_S``, and ``cached_S`` where there are no prefill rows,
                are bounds: the device knows the numbers.
            table: slots; groups and windows are read.
        """
        runner = self._runner
        state = runner.state
        state.push_pages()
        facts_3S = to_device(plan_facts(plan), state.device)
        slots_D = plan.slots_S[: np.count_nonzero(plan.decode_S)]
        rows_D = plan.decode_S[: len(slots_D)]
        refills = runner.refills(table, slots_D)
        context_S = state.context_S.index_select(0, facts_3S[0])
        rows_after_D = next_rows(refills, rows_D, table.left(slots_D))
        groups = gather_groups(plan, table, state, facts_3S[0], context_S, rows_after_D)
        filters_D = state.uses_filters(slots_D)
        shape = self._shape(plan, wanted_rows(refills, rows_D), filters_D)
        batch = pack_on_device(facts_3S, groups, state, shape, runner.pool.page_size)
        runner.profile.lap("pack")
        hidden_TD = self._run_model(batch)
        runner.profile.lap("model")
        if not groups:
            return Flight(facts_3S[0, :1], [])
        picks = pick_on_device(groups, batch, shape)
        chosen_F = runner.choose(hidden_TD, picks, state, plan.slots_S)
        runner.profile.lap("choose")
        words = []
        for group, advance in zip(groups, runner.advance_groups(groups, chosen_F), strict=True):
            commit = advance.detail.commit
            state.context_S.index_copy_(0, group.slots_S, group.context_S + commit.context_S)
            words.append(words_of(commit, advance.next_rows_S))
        flight = Flight(join_tensors([w.flatten() for w in words]), [(w.shape[0], w.shape[1]) for w in words])
        runner.profile.lap("fetch")
        return flight

    def _shape(self, plan: ForwardPlan, wanted_D: IntArray, filters_D: BoolArray) -> Shape:
        counts_S = plan.prefill_S + plan.decode_S
        rows = int(counts_S.sum())
        total = self._graphs.padded(rows) if self._graphs is not None else None
        return Shape(
            total=total or self._runner.padding(rows),
            max_rows=int(counts_S.max()),
            max_kv=int((plan.cached_S + counts_S).max()),
            wanted=int(wanted_D.sum()),
            filtered=int(wanted_D[filters_D].sum()),
        )

    def _run_model(self, batch: DeviceBatch) -> Tensor:
        """Hidden states of the rows; behind the real ones they are any value, or missing."""
        runner = self._runner
        if not runner.backend.on_device:
            rows = _on_host(batch.rows)
            real = slice(0, rows.total)
            return runner.run_model(batch.id_T[real], batch.position_T[real], batch.kv_slot_T[real], rows)
        hidden_TD = self._graphs.run(batch) if self._graphs is not None else None
        if hidden_TD is not None:
            return hidden_TD
        return runner.run_device_rows(batch.id_T, batch.position_T, batch.kv_slot_T, batch.rows)


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
