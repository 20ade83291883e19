"""How windows of sequences with a grammar are noted and written equals operations on arrays."""

from __future__ import annotations

import copy

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from testing.engine.grammar_rows_oracle import noted_windows
from wedlm_core.engine.scheduling.slots import SlotTable
from wedlm_core.kernels.cpu.grammar_columns import DONE, REFUSED, Drafted, Proposed
from wedlm_core.kernels.cpu.grammar_windows import note_windows, write_windows
from wedlm_core.statistics import DraftSource

SLOTS, MASK = 9, 77


def table_of(rng: np.random.Generator) -> SlotTable:
    table = SlotTable(SLOTS, 8)
    table.constrained[:] = rng.random(SLOTS) < 0.7
    table.source[:] = rng.integers(0, 3, table.source.shape)
    table.rows[:] = rng.integers(1, 9, SLOTS)
    return table


@settings(max_examples=80, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_windows_change_as_arrays_say(seed: int) -> None:
    rng = np.random.default_rng(seed)
    table = table_of(rng)
    places, count = table.source.shape[1], int(rng.integers(1, SLOTS))
    slots, decoding = rng.permutation(SLOTS)[:count], count + 2
    proposed = Proposed.first(slots.tolist(), [9] * count, [9] * count)
    proposed.numbers_10G[8:] = rng.random(count) < 0.8, rng.permutation(decoding)[:count]
    drafted = Drafted.empty(count, places)
    drafted.lead[:] = rng.integers(0, places + 1, count) * (rng.random(count) < 0.7)
    drafted.masks[:] = rng.integers(0, places - drafted.lead + 1) * (rng.random(count) < 0.7)
    drafted.outcome[:] = np.where(rng.random(count) < 0.8, DONE, REFUSED)
    drafted.token_GL[:], drafted.source_GL[:] = (
        rng.integers(0, 70, (count, places)),
        rng.integers(1, 3, (count, places)),
    )
    next_rows = rng.integers(1, 3, decoding)
    other_table, other = copy.deepcopy(table), copy.deepcopy(drafted)
    changed = note_windows(proposed.numbers_10G, *drafted, next_rows, MASK, table.source, table.rows)
    expected = noted_windows(other_table, proposed, other, next_rows, MASK)
    np.testing.assert_array_equal(drafted.changed, expected)
    assert changed == expected.sum()
    np.testing.assert_array_equal(drafted.token_GL[expected], other.token_GL[expected])
    np.testing.assert_array_equal(table.source, other_table.source)
    np.testing.assert_array_equal(table.rows, other_table.rows)
    before = rng.integers(0, 70, (SLOTS, places)), rng.random((SLOTS, places)) < 0.5, *rng.integers(0, 9, (2, SLOTS))
    tokens, filled, leads, lengths = after = copy.deepcopy(before)
    write_windows(proposed.numbers_10G, drafted.numbers_4G, drafted.token_GL, *after)
    own = slots[expected]
    np.testing.assert_array_equal(tokens[own], drafted.token_GL[expected])
    np.testing.assert_array_equal(filled[own], tokens[own] != MASK)
    np.testing.assert_array_equal(leads[own], filled[own].sum(axis=1))
    np.testing.assert_array_equal(lengths[own], table.rows[own] - 1)
    others = np.setdiff1d(np.arange(SLOTS), own)
    for one, old in zip(after, before, strict=True):
        np.testing.assert_array_equal(one[others], old[others])
    assert (table.source[np.setdiff1d(slots, own)] == DraftSource.MASK).all()
