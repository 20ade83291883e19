"""Passes over sequences with a grammar equal operations on arrays."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testing.engine.grammar_rows_oracle import collected, forced_count, lines_of_rows
from wedlm_core.engine.scheduling.slots import SlotTable, StepOutcome
from wedlm_core.kernels.cpu.grammar_rows import collect_commits, count_forced, row_lines

SLOTS, PLACES = 9, 7


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_columns_of_commits_and_what_was_forced_are_those_of_arrays(seed: int) -> None:
    rng = np.random.default_rng(seed)
    table = SlotTable(SLOTS, PLACES + 1)
    for name in ("constrained", "adaptive"):
        getattr(table, name)[:] = rng.random(SLOTS) < 0.7
    for name in ("keep_valid", "keep_stale", "widest", "masks", "generated"):
        getattr(table, name)[:] = rng.integers(-1 if name.startswith("keep") else 0, PLACES, SLOTS)
    table.limit[:] = table.generated + rng.integers(0, 9, SLOTS)
    slots = rng.permutation(SLOTS)[: rng.integers(1, SLOTS)]
    count = len(slots)
    rows = rng.integers(1, PLACES, count)
    committed = rng.integers(0, rows + 1)
    emitted, ended = rng.integers(0, committed + 1), rng.random(count) < 0.3
    source = rng.integers(0, 3, (count, PLACES)).astype(np.int8)
    agreed = rng.integers(0, PLACES + 1, count)
    some, nats = np.zeros(count, dtype=np.int64), np.zeros((count, 1), dtype=np.float32)
    outcome = StepOutcome(
        count_D=committed, drafts_D=some, agreed_D=agreed, offered_D=some, context_D=some, next_rows_D=some,
        valid_D=ended, next_valid_D=rng.random(count) < 0.5, token_DC=nats.astype(np.int64), entropy_DC=nats,
        logprob_DC=nats, early_DC=nats > 0,
    )  # fmt: skip
    own = int(np.count_nonzero(table.constrained[slots]))
    numbers = np.empty((10, own), dtype=np.int64)
    collect_commits(
        slots, rows, emitted, ended, committed, outcome.next_valid_D, table.constrained, table.keep_valid,
        table.keep_stale, table.widest, table.limit, table.generated, table.masks, numbers,
    )  # fmt: skip
    np.testing.assert_array_equal(numbers, collected(table, slots, rows, emitted, ended, outcome))
    found = count_forced(slots, source, agreed, emitted, table.constrained, table.adaptive)
    assert found == forced_count(table, slots, agreed, emitted, source)


@pytest.mark.parametrize("seed", range(5))
def test_lines_of_rows_are_those_of_arrays(seed: int) -> None:
    rng = np.random.default_rng(seed)
    line_N = rng.integers(-9, 9, 40)
    facts_3S = np.stack([rng.integers(-1, 30, SLOTS), rng.integers(0, 9, SLOTS), rng.integers(0, 20, SLOTS)])
    slot_R, position_R, line_R = rng.integers(0, SLOTS, 300), rng.integers(0, 30, 300), np.empty(300, dtype=np.int64)
    row_lines(slot_R, position_R, *facts_3S, line_N, -1, line_R)
    np.testing.assert_array_equal(line_R, lines_of_rows(slot_R, position_R, facts_3S, line_N, -1))
    assert len(set(line_R.tolist())) > 5
