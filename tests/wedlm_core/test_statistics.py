"""Statistics: their table is complete, and its sums over forwards are those of plain Python."""

from __future__ import annotations

import math
import random
from collections import Counter
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from wedlm_core.engine.scheduling.slots import SlotTable
from wedlm_core.statistics import OUTCOME_KINDS, STATISTICS, CommitStats, DraftSource, StepOutcome, stats_of_several

SLOTS, PLACES = 5, 4


@dataclass
class Host:
    cached_prompt_tokens: int = 3
    preemptions: int = 2


def test_every_statistic_has_a_value_and_every_field_a_statistic() -> None:
    names = [s.name for s in STATISTICS]
    assert len(set(names)) == len(names)
    assert {s.name for s in STATISTICS if s.of is not None} == {f.name for f in fields(CommitStats)}
    assert all(isinstance(getattr(CommitStats, s.name), property) for s in STATISTICS if s.of is None)


def test_totals_are_cleared_with_their_slot() -> None:
    table = SlotTable(SLOTS, PLACES)
    for total in table.totals.values():
        total[:] = 1
    table.clear(2)
    for name, total in table.totals.items():
        assert not total[2].any(), name
        assert total[[0, 1, 3, 4]].all(), name


def outcome_of(rng: np.random.Generator, sequences: int) -> StepOutcome:
    def column(name: str, kind: np.dtype[Any]) -> np.ndarray:
        shape = (sequences, PLACES) if name.endswith("_DC") else (sequences,)
        return (rng.integers(0, PLACES, shape) / (2 if kind == np.float32 else 1)).astype(kind)

    columns = {name: column(name, kind) for name, kind in OUTCOME_KINDS.items()}
    columns["logprob_DC"] *= -1
    if rng.integers(3):
        columns["agreed_D"] = np.minimum(columns["agreed_D"], columns["drafts_D"])
    else:  # strategies that verify no drafts report masks that turned out right
        columns["drafts_D"][:] = 0
    return StepOutcome(**columns)


def table_of(slots: int) -> SlotTable:
    table = SlotTable(slots, PLACES)
    for slot in range(slots):
        table.set_limit(slot, 64)
    return table


@settings(deadline=None)  # the first example compiles
@given(seed=st.integers(0, 2**31))
def test_commits_end_at_the_limit_and_after_the_first_stop_token(seed: int) -> None:
    rng, table = np.random.default_rng(seed), table_of(SLOTS)
    stops = rng.integers(0, 3, SLOTS)
    for slot in range(SLOTS):
        table.set_limit(slot, int(stops[slot]) * 4 + 1)
        table.set_stop_ids(slot, tuple(range(int(stops[slot]))))
    slots_D = rng.permutation(SLOTS)[: int(rng.integers(1, SLOTS + 1))]
    outcome = outcome_of(rng, len(slots_D))
    found = table.emission(slots_D, outcome)
    kept = table.keep(slots_D, np.ones(len(slots_D), dtype=np.int64), outcome, found.emit_D)
    assert kept.tokens == int(found.emit_D.sum())
    for d, slot in enumerate(slots_D.tolist()):
        limit = int(stops[slot]) * 4 + 1
        committed = outcome.token_DC[d, : min(int(outcome.count_D[d]), limit)].tolist()
        ends = [place for place, token in enumerate(committed) if token < stops[slot]]
        expected = committed[: ends[0] + 1] if ends else committed
        assert (found.emit_D[d], found.stopped_D[d], found.full_D[d]) == (
            len(expected), bool(ends), len(expected) >= limit,
        )  # fmt: skip
        assert table.output[slot, : table.generated[slot]].tolist() == expected
        logprobs = outcome.logprob_DC[d, : len(expected)].tolist()
        assert table.logprob[slot, : table.generated[slot]].tolist() == logprobs


@settings(deadline=None)  # the first example compiles
@given(seed=st.integers(0, 2**31), forwards=st.integers(1, 6))
def test_totals_are_those_of_a_loop_over_forwards(seed: int, forwards: int) -> None:
    rng = np.random.default_rng(seed)
    table, slot = table_of(SLOTS), int(rng.integers(SLOTS))
    kept: list[tuple[float, float, bool]] = []
    windows: list[int] = []
    emitted: list[int] = []
    drafts = agreed = 0
    offered, accepted = Counter[int](), Counter[int]()
    for _ in range(forwards):
        slots_D = rng.permutation(SLOTS)[: int(rng.integers(1, SLOTS + 1))]
        outcome = outcome_of(rng, len(slots_D))
        rows_D, emit_D = rng.integers(1, 9, len(slots_D)), rng.integers(0, PLACES + 1, len(slots_D))
        table.source[:] = rng.integers(0, 3, table.source.shape)
        table.keep(slots_D, rows_D, outcome, emit_D)
        if slot not in slots_D:
            continue
        d = slots_D.tolist().index(slot)
        emit = int(emit_D[d])
        kept += zip(
            outcome.entropy_DC[d, :emit].tolist(),
            outcome.logprob_DC[d, :emit].tolist(),
            outcome.early_DC[d, :emit].tolist(),
            strict=True,
        )
        windows.append(int(rows_D[d]))
        emitted.append(emit)
        source = table.source[slot].tolist()
        drafts += source[: min(int(outcome.drafts_D[d]), emit)].count(DraftSource.MASK)
        right = source[: min(int(outcome.agreed_D[d]), emit)] if outcome.drafts_D[d] else []
        agreed += right.count(DraftSource.MASK)
        offered.update(source[: int(outcome.offered_D[d])] if outcome.drafts_D[d] else ())
        accepted.update(right)
    found = table.stats(slot, tokens=7, host=Host())
    assert (found.generated_tokens, found.cached_prompt_tokens, found.preemptions) == (7, 3, 2)
    assert found.decode_forwards == len(windows)
    assert found.rows_forwarded == sum(windows)
    assert found.commit_histogram == tuple(Counter(emitted)[i] for i in range(max(emitted, default=-1) + 1))
    assert found.mean_entropy == (sum(k[0] for k in kept) / len(kept) if kept else None)
    assert found.max_entropy == (max(k[0] for k in kept) if kept else None)
    assert found.mean_logprob == (sum(k[1] for k in kept) / len(kept) if kept else None)
    assert found.worst_logprob == (min(k[1] for k in kept) if kept else None)
    assert found.out_of_order_fills == sum(k[2] for k in kept)
    for kind in DraftSource:
        name = f"{kind.name.lower()}_drafts"
        assert (getattr(found, name), getattr(found, f"{name}_accepted")) == (offered[kind], accepted[kind])
    assert found.draft_agreement == (agreed / drafts if drafts else None)
    assert found.window_mean == (sum(windows) / len(windows) if windows else 0.0)
    assert found.max_window == max(windows, default=0)


@pytest.mark.parametrize(("logprob", "surprise"), [(math.nan, math.nan), (-math.inf, math.inf)])
def test_a_value_that_is_no_number_stays_in_the_totals_of_its_slot_alone(logprob: float, surprise: float) -> None:
    table, slots_D, rows_D = table_of(2), np.arange(2), np.ones(2, dtype=np.int64)
    outcome = outcome_of(np.random.default_rng(0), 2)
    outcome.logprob_DC[0, 0] = logprob
    outcome.entropy_DC[0, 0] = math.nan
    for first, emitted in ((True, 2), (False, 1)):
        outcome = outcome if first else outcome_of(np.random.default_rng(1), 2)
        table.keep(slots_D, rows_D, outcome, np.full(2, emitted))
    for name in ("entropy", "largest_entropy", "logprob", "largest_surprise"):
        assert np.isfinite(table.totals[name][1]), name
    assert math.isnan(table.totals["entropy"][0])
    assert math.isnan(table.totals["largest_entropy"][0])
    np.testing.assert_equal(table.totals["logprob"][0], logprob)
    np.testing.assert_equal(table.totals["largest_surprise"][0], surprise)
    assert table.generated.tolist() == [3, 3]


def test_a_strategy_without_log_probabilities_has_no_mean_of_them() -> None:
    table = table_of(1)
    outcome = outcome_of(np.random.default_rng(0), 1)
    outcome.logprob_DC[:] = math.nan
    table.keep(np.zeros(1, dtype=np.int64), np.ones(1, dtype=np.int64), outcome, np.ones(1, dtype=np.int64))
    found = table.stats(0, tokens=1, host=Host())
    assert (found.mean_logprob, found.worst_logprob) == (None, None)


@settings(deadline=None)
@example(nats=[-20.0, *[-1.5e-15] * 8], order=random.Random(0))  # each is less than half of the last place of the sum
@given(
    nats=st.lists(st.floats(-30, 0, width=32), min_size=1, max_size=12),
    order=st.randoms(use_true_random=False),
)
def test_totals_do_not_depend_on_how_forwards_group_the_tokens(nats: list[float], order: Any) -> None:
    def total(pieces: list[list[float]]) -> CommitStats:
        table = table_of(1)
        for piece in pieces:
            outcome = outcome_of(np.random.default_rng(0), 1)
            outcome.logprob_DC[0, : len(piece)] = outcome.entropy_DC[0, : len(piece)] = piece
            outcome.entropy_DC[:] *= -1
            emit_D = np.array([len(piece)])
            table.keep(np.zeros(1, dtype=np.int64), np.ones(1, dtype=np.int64), outcome, emit_D)
        return table.stats(0, tokens=len(nats), host=Host())

    cuts, pieces, rest = order.sample(range(1, PLACES + 1), 3), [], list(nats)
    while rest:
        size = cuts[len(pieces) % 3]
        pieces.append(rest[:size])
        rest = rest[size:]
    one, other = total([[value] for value in nats]), total(pieces)
    assert (one.mean_logprob, one.mean_entropy) == (other.mean_logprob, other.mean_entropy)
    assert one.worst_logprob == other.worst_logprob == pytest.approx(min(nats), abs=2**-24)
    assert one.mean_logprob == pytest.approx(sum(nats) / len(nats), abs=2**-24)


def test_statistics_of_several_generations_are_sums_and_weighted_means() -> None:
    one = CommitStats(generated_tokens=3, decode_forwards=2, rows_forwarded=6, commit_histogram=(0, 1, 1),
                      mean_entropy=1.0, max_entropy=2.0, worst_logprob=-1.0, mask_drafts=4, draft_agreement=0.5,
                      window_mean=3.0, max_window=4, cached_prompt_tokens=5)  # fmt: skip
    other = CommitStats(generated_tokens=1, decode_forwards=1, rows_forwarded=1, commit_histogram=(0, 1),
                        mean_entropy=0.0, max_entropy=0.5, worst_logprob=-3.0, window_mean=1.0,
                        max_window=1)  # fmt: skip
    both = stats_of_several([one, other])
    assert (both.generated_tokens, both.decode_forwards, both.rows_forwarded) == (4, 3, 7)
    assert (both.commit_histogram, both.cached_prompt_tokens, both.max_window) == ((0, 2, 1), 5, 4)
    assert (both.mean_entropy, both.max_entropy, both.worst_logprob) == (0.75, 2.0, -3.0)
    assert (both.draft_agreement, both.mean_logprob) == (0.5, None)
    assert both.window_mean == both.rows_forwarded / both.decode_forwards
    assert stats_of_several([one]) == one
    assert stats_of_several([CommitStats()]) == CommitStats()
