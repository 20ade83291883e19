"""Aggregates: of parts, in any order and partition, they are those of the whole; and what pandas computes."""

from __future__ import annotations

import itertools
import json
import math
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.reporting.aggregate import MEASURES, SAMPLED_FAILURES, SAMPLED_ROWS, SUMS, Aggregate, Aggregator, merged
from pipeline.reporting.histogram import SCALES
from pipeline.reporting.samples import row_hashes
from testing.pipeline.output_rows import INPUTS, output_table

TABLE = output_table(150, samples=2)
WHOLE = Aggregate.of(TABLE, len(INPUTS))


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, TABLE.num_rows), max_size=6), st.randoms(use_true_random=False))
def test_any_parts_in_any_order_merge_to_the_whole(cuts: list[int], order: Any) -> None:
    edges = sorted({0, TABLE.num_rows, *cuts})
    parts = [Aggregate.of(TABLE.slice(a, b - a), len(INPUTS)) for a, b in itertools.pairwise(edges)]
    order.shuffle(parts)
    half = order.randint(0, len(parts))
    assert merged([merged(parts[:half]), merged(parts[half:])]) == WHOLE


def test_an_aggregate_of_nothing_changes_nothing() -> None:
    assert Aggregate.of(TABLE.slice(0, 0), len(INPUTS)) == Aggregate()
    assert Aggregate().merged_with(WHOLE) == WHOLE == WHOLE.merged_with(Aggregate())


def test_tables_of_any_size_give_the_same() -> None:
    aggregator = Aggregator(len(INPUTS))
    for first in range(0, TABLE.num_rows, 7):
        aggregator.add(TABLE.slice(first, 7))
    assert aggregator.result() == WHOLE


def test_it_survives_json() -> None:
    assert Aggregate.from_dict(json.loads(json.dumps(WHOLE.to_dict()))) == WHOLE
    assert Aggregate.from_dict({**WHOLE.to_dict(), "version": 0}) is None, "another version's is made anew"


def frame(path: str, sign: int = 1) -> pd.Series:
    """A column as pandas has it, of all output rows."""
    data, (name, _, inside) = TABLE.to_pandas(), path.partition(".")
    values = data[name].dropna()
    if inside:
        values = values.map(lambda row: row[inside])
    if values.map(lambda value: isinstance(value, np.ndarray)).any():
        values = values.explode()
    return sign * values.dropna().astype(float)


@pytest.mark.parametrize("measure", MEASURES, ids=lambda measure: measure.name)
def test_histograms_are_those_of_pandas_and_numpy(measure: Any) -> None:
    found, values = WHOLE.histograms[measure.name], frame(measure.path, measure.sign)
    assert len(values) > 50
    edges = [-np.inf, *SCALES[measure.scale].edges, np.inf]
    expected = pd.cut(values, edges, right=False).value_counts(sort=False)
    assert list(found.bins) == expected.tolist()
    assert found.count == len(values)
    assert found.mean == pytest.approx(values.mean(), abs=1e-6)
    assert (found.least, found.largest) == (values.min(), values.max())
    for share in (0.05, 0.5, 0.95):
        exact, near = values.quantile(share, interpolation="inverted_cdf"), found.quantile(share)
        place = int(np.searchsorted(SCALES[measure.scale].edges, exact, side="right"))
        low, high = found.bounds(place)
        assert near is not None
        assert low <= near <= high, "in the bin of the exact one"


def test_sums_and_counts_are_those_of_pandas() -> None:
    data = TABLE.to_pandas()
    for name, path in SUMS.items():
        assert WHOLE.sums[name] == frame(path).sum(), name
    assert WHOLE.finish_reasons == data.finish_reason.value_counts().to_dict()
    assert WHOLE.rows == len(data)
    assert WHOLE.failed == (data.finish_reason == "error").sum() == len(data) - WHOLE.generations
    expected: dict[int, int] = {}
    for stats in data.stats.dropna():
        for size, forwards in enumerate(stats["commit_histogram"]):
            expected[size] = expected.get(size, 0) + int(forwards)
    assert WHOLE.commits == {size: own for size, own in expected.items() if own}
    for name, own in data[data.finish_reason != "error"].groupby("strategy"):
        forwards = sum(int(stats["decode_forwards"]) for stats in own.stats)
        assert WHOLE.strategies[str(name)] == (len(own), own.completion_tokens.sum(), forwards)


def test_sampled_rows_are_those_of_the_lowest_hashes_and_their_texts_are_cut() -> None:
    data = TABLE.to_pandas()
    data["hash"] = row_hashes(data.row_id, data.sample_index)
    assert data.hash.is_unique
    assert data.hash.min() >= 0
    ok = data[data.finish_reason != "error"].sort_values("hash")[:SAMPLED_ROWS]
    bad = data[data.finish_reason == "error"].sort_values("hash")[:SAMPLED_FAILURES]
    assert [(r.row_id, r.sample_index, r.text) for r in WHOLE.samples] == list(
        ok[["row_id", "sample_index", "text"]].itertuples(index=False, name=None)
    )
    assert [r.error for r in WHOLE.failures] == bad.error.tolist()
    assert WHOLE.samples[0].inputs == {"prompt": ok.prompt.iloc[0], "k": str(ok.k.iloc[0])}
    huge = TABLE.slice(0, 40).set_column(4, TABLE.schema.field("text"), pa.array(["é" * 10**6] * 40))
    assert max(len(row.text or "") for row in Aggregate.of(huge, len(INPUTS)).samples) < 10_000


def test_column_prefixes_and_tables_of_fewer_columns_are_understood() -> None:
    prefixed = output_table(150, prefix="gen_", samples=2)
    assert Aggregate.of(prefixed, len(INPUTS), "gen_") == WHOLE
    bare = TABLE.drop_columns(["token_ids", "logprobs", "top_logprobs"])
    found = Aggregate.of(bare, len(INPUTS))
    assert found.histograms["token_surprisal"].count == 0
    assert found.sums == WHOLE.sums


def test_huge_values_do_not_overflow_their_sum() -> None:
    found = WHOLE.histograms["run_seconds"]
    big = found.of(SCALES["seconds"], np.full(100_000, 2.0**39))
    assert big.mean == 2.0**39
    assert big.merged_with(found).total == big.total + found.total
    odd = found.of(SCALES["seconds"], np.array([math.nan, math.inf, -math.inf, 1.0]))
    assert (odd.count, odd.mean) == (1, 1.0)
