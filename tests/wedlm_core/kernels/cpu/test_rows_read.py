"""Rows read after the last layer, their places, and choices with a single allowed token."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from wedlm_core.kernels.cpu.records import ADJUSTMENTS
from wedlm_core.kernels.cpu.rows_read import find_spans, pick_rows_read, take_only_tokens

SEEDS = st.integers(0, 2**32 - 1)


@settings(max_examples=60, deadline=None)
@given(seed=SEEDS, restricted=st.booleans(), adjusting=st.booleans())
def test_picks_that_may_choose_among_several_tokens_are_read_and_the_others_are_certain(
    seed: int, restricted: bool, adjusting: bool
) -> None:
    rng = np.random.default_rng(seed)
    count = int(rng.integers(1, 30))
    pick_rows, line_P = np.sort(rng.choice(99, count, replace=False)), rng.integers(-9, 5, count)
    uses_S, slot_P, record = rng.random(8) < 0.4, rng.integers(0, 8, count), np.zeros(1, dtype=ADJUSTMENTS)
    record["uses"], record["slots"] = uses_S.ctypes.data, len(uses_S)
    address = record.ctypes.data if adjusting else 0
    certain_P = (line_P < -1) & ~(uses_S[slot_P] & adjusting)  # adjustments may forbid the one token

    read, picks = np.full(1 + count, 7), np.full(count, 7)
    pick_rows_read(pick_rows, line_P if restricted else line_P[:0], slot_P, address, read, picks)
    wanted = np.flatnonzero(~certain_P) if restricted else np.arange(count)
    assert read[0] == len(wanted)
    np.testing.assert_array_equal(picks[: read[0]], wanted)
    np.testing.assert_array_equal(read[1 : 1 + read[0]], pick_rows[wanted])

    token_P, entropy_P, logprob_P = np.full(count, 99), np.full(count, 9, np.float32), np.full(count, 9, np.float32)
    first = int(rng.integers(0, count))
    take_only_tokens(line_P, slot_P, address, token_P, entropy_P, logprob_P, first, count)
    mine_P = certain_P & (np.arange(count) >= first)
    np.testing.assert_array_equal(token_P, np.where(mine_P, -2 - line_P, 99))
    for nats_P in (entropy_P, logprob_P):
        np.testing.assert_array_equal(nats_P, np.where(mine_P, 0, 9))


@settings(max_examples=60, deadline=None)
@given(seed=SEEDS)
def test_spans_are_the_shortest_that_hold_the_rows_of_their_sequence(seed: int) -> None:
    rng = np.random.default_rng(seed)
    counts = rng.integers(1, 9, rng.integers(1, 12))
    starts, cached = np.cumsum(counts) - counts, rng.integers(0, 50, len(counts))
    rows = np.flatnonzero(rng.random(counts.sum()) < rng.choice([0.1, 0.5, 0.95]))
    spans = np.full((3, len(counts)), 77)
    find_spans(rows, starts, counts, cached, spans)
    for s, (begin, count, before) in enumerate(zip(*spans.tolist(), strict=True)):
        own = rows[(rows >= starts[s]) & (rows < starts[s] + counts[s])]
        assert count == (own[-1] - own[0] + 1 if len(own) else 0)
        if count:
            assert (begin, before) == (own[0], cached[s] + own[0] - starts[s])
