"""Run real forwards on scratch state and scratch pages, to time them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from itertools import pairwise

import numpy as np
import torch

from wedlm_core.devices import step_clock
from wedlm_core.engine.forward.async_launch import AsyncLaunch
from wedlm_core.engine.forward.device_state import DeviceState
from wedlm_core.engine.forward.runner import Runner
from wedlm_core.engine.forward.transfer import to_device
from wedlm_core.engine.scheduling.scheduler import ForwardPlan
from wedlm_core.engine.scheduling.slots import IntArray, SlotTable
from wedlm_core.kv.pages import SequencePages

IN_FLIGHT = 4
"""Forwards of one run, where forwards overlap."""


class Bench:
    """Runs synthetic decode forwards of a strategy that verifies drafts.

    Attributes:
        forwards: number of forwards in one run.
        clock: times the measurement, and runs that wait for their forward.
    """

    def __init__(self, runner: Runner, table: SlotTable, overlapping: AsyncLaunch | None) -> None:
        self._runner, self._table, self._overlapping = runner, table, overlapping
        self.forwards = 1 if overlapping is None else IN_FLIGHT
        self.clock = step_clock(runner.device) if overlapping is None else time.perf_counter

    def run(self, rows: int, sequences: int, context: int, *, before: int = 0) -> float:
        """Time one forward; where forwards overlap, the seconds from the end of one to the end of the next.

        Args:
            rows: rows of the forward.
            sequences: number of sequences that share these rows.
            context: cached tokens of each sequence.
            before: untimed forwards of the same kind before it, where forwards do not overlap.

        Returns:
            Seconds.
        """
        own_S = np.full(sequences, rows // sequences, dtype=np.int64)
        own_S[: rows % sequences] += 1
        self._table.masks[:sequences] = own_S // 2
        self._table.keep_valid[:sequences] = self._table.keep_stale[:sequences] = own_S // 2
        plan = ForwardPlan(
            sequences=[],
            slots_S=np.arange(sequences),
            cached_S=np.full(sequences, context, dtype=np.int64),
            prefill_S=np.zeros(sequences, dtype=np.int64),
            decode_S=own_S,
        )
        if self._overlapping is not None:
            return self._in_a_row(self._overlapping, plan)
        for _ in range(before + 1):
            self._set_windows(own_S)
            begin = self.clock()
            self._runner.forward(plan, self._table)  # ends with the copy to the host: the device is done
        return self.clock() - begin

    def _in_a_row(self, launch: AsyncLaunch, plan: ForwardPlan) -> float:
        flights = []
        with nullcontext() if launch.steps is None else launch.steps.at_first_use():
            for _ in range(IN_FLIGHT):
                self._set_windows(plan.decode_S)
                flights.append(launch.start(self._runner, plan, self._table))
        for flight in flights:
            flight.wait()
        # A capture between two forwards is not their cost; a run of captures only is rare, and clipped.
        steady = [b.copy.seconds_since(a.copy) for a, b in pairwise(flights) if not b.captured]
        return statistics.median(steady or [flights[-1].copy.seconds_since(flights[-2].copy)])

    def _set_windows(self, own_S: IntArray) -> None:
        """Windows of half drafts and half masks, which the forward before has advanced."""
        window, sequences = self._runner.state.windows, len(own_S)
        length_S = to_device(own_S - 1, window.length_S.device)
        drafts_S = length_S // 2
        window.length_S[:sequences] = length_S
        window.lead_S[:sequences] = drafts_S
        place_L = torch.arange(window.filled_SL.shape[1], device=length_S.device)
        window.filled_SL[:sequences] = place_L < drafts_S[:, None]
        window.head_S[:sequences] = 0

    @classmethod
    def over(
        cls, runner: Runner, scratch: Sequence[SequencePages], overlapping: AsyncLaunch | None, sequences: int
    ) -> Bench:
        """The runner over windows and page tables of the measurement's own.

        Sequences share pages only if there are too few, since CPU caches would hold the pages that all of them read.
        """
        config = replace(runner.config, trace=False, max_num_seqs=sequences)
        decodings, positions = runner.decodings, runner.state.tokens_SL.shape[1]
        state = DeviceState(config, decodings, runner.mask_token_id, positions, runner.device)
        for slot in range(config.max_num_seqs):
            state.set_pages(slot, scratch[slot % len(scratch)].pages)
        state.params.limit_S.fill_(1 << 30)
        table = SlotTable(config.max_num_seqs, 2 * config.max_window + 1)
        table.group[:] = next(i for i, decoding in enumerate(decodings) if decoding.verifies)
        return cls(runner.over(state, config), table, overlapping)
