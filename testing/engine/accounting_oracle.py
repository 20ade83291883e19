"""The host's accounting of a forward in arrays: the readable form of :mod:`wedlm_core.kernels.cpu.slot_kernels`."""

from __future__ import annotations

import numpy as np

from wedlm_core.engine.scheduling.slots import Emission, IntArray, SlotTable, StepOutcome
from wedlm_core.statistics import ForwardFacts, accumulate, kept_places


def emission(table: SlotTable, slots_D: IntArray, outcome: StepOutcome) -> Emission:
    """See :meth:`SlotTable.emission`."""
    left_D = table.left(slots_D)
    emit_D = np.minimum(outcome.count_D, left_D)
    hit_DCK = (outcome.token_DC[:, :, None] == table.stop_ids[slots_D, None, :]) & (table.stop_ids[slots_D] >= 0)[
        :, None
    ]
    hit_DC = hit_DCK.any(axis=2) & kept_places(outcome, emit_D)
    stopped_D = hit_DC.any(axis=1)
    emit_D = np.where(stopped_D, hit_DC.argmax(axis=1) + 1, emit_D)
    return Emission(emit_D=emit_D, stopped_D=stopped_D, full_D=emit_D >= left_D)


def keep(table: SlotTable, slots_D: IntArray, rows_D: IntArray, outcome: StepOutcome, emit_D: IntArray) -> None:
    """See :meth:`SlotTable.keep`."""
    row, place = np.nonzero(kept_places(outcome, emit_D))
    there = slots_D[row], table.generated[slots_D[row]] + place
    table.output[there], table.logprob[there] = outcome.token_DC[row, place], outcome.logprob_DC[row, place]
    facts = ForwardFacts.of(outcome, rows_D, emit_D, table.source[slots_D])
    accumulate(table.totals, slots_D, facts)
    table.generated[slots_D] += emit_D
