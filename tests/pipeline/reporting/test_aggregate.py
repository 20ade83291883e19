"""Aggregates: of parts, in any order and partition, they are those of the whole; and to pandas' values."""

from __future__ import annotations

import functools
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

from pipeline.reporting.aggregate import MEASURES, Aggregate, Aggregator
from pipeline.reporting.histogram import SCALES
from testing.pipeline.output_rows import output_table

TABLE = output_table(150, samples=2)
WHOLE = Aggregate.of(TABLE)


def merged(parts: list[Aggregate]) -> Aggregate:
    return functools.reduce(Aggregate.merged_with, parts, Aggregate())


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, TABLE.num_rows), max_size=6), st.randoms(use_true_random=False))
def test_any_parts_in_any_order_merge_to_the_whole(cuts: list[int], order: Any) -> None:
    edges = sorted({0, TABLE.num_rows, *cuts})
    parts = [Aggregate.of(TABLE.slice(a, b - a)) for a, b in itertools.pairwise(edges)]
    order.shuffle(parts)
    half = order.randint(0, len(parts))
    assert merged([merged(parts[:half]), merged(parts[half:])]) == WHOLE


def test_an_aggregate_of_nothing_changes_nothing() -> None:
    assert Aggregate.of(TABLE.slice(0, 0)) == Aggregate()
    assert Aggregate().merged_with(WHOLE) == WHOLE == WHOLE.merged_with(Aggregate())


def test_tables_of_any_size_give_the_same() -> None:
    aggregator = Aggregator()
    for first in range(0, TABLE.num_rows, 7):
        aggregator.add(TABLE.slice(first, 7))
    assert aggregator.result() == WHOLE


def test_it_survives_json() -> None:
    assert Aggregate.from_dict(json.loads(json.dumps(WHOLE.to_dict()))) == WHOLE
    assert Aggregate.from_dict({**WHOLE.to_dict(), "version": 0}) is None, "another version's is made again"


def frame(path: str) -> pd.Series:
    """A column as pandas has it, of all output rows."""
    data, (name, _, inside) = TABLE.to_pandas(), path.partition(".")
    values = data[name].dropna()
    return (values.map(lambda row: row[inside]) if inside else values).dropna().astype(float)


@pytest.mark.parametrize("name", MEASURES)
def test_histograms_are_those_of_pandas_and_numpy(name: str) -> None:
    path, scale = MEASURES[name]
    found, values = WHOLE.histograms[name], frame(path)
    assert len(values) > 50
    edges = [-np.inf, *SCALES[scale], np.inf]
    assert list(found.bins) == pd.cut(values, edges, right=False).value_counts(sort=False).tolist()
    assert found.count == len(values)
    assert found.mean == pytest.approx(values.mean(), abs=1e-6)


def test_counts_are_those_of_pandas() -> None:
    data = TABLE.to_pandas()
    assert WHOLE.finish_reasons == data.finish_reason.value_counts().to_dict()
    assert WHOLE.rows == len(data)
    assert WHOLE.failed == (data.finish_reason == "error").sum() == len(data) - WHOLE.generations


def test_the_least_certain_rows_are_those_of_pandas_and_are_bounded() -> None:
    data = TABLE.to_pandas().dropna(subset="stats")
    data["entropy"] = [stats["mean_entropy"] for stats in data.stats]
    data = data.dropna(subset="entropy").sort_values(["entropy", "row_id"], ascending=[False, True])
    assert len(data) > 2 * len(WHOLE.uncertain) == 200
    assert [row.row_id for row in WHOLE.uncertain] == data.row_id[:100].tolist()
    assert [row.text for row in WHOLE.uncertain] == data.text[:100].tolist()


def test_a_credential_is_masked_before_its_text_is_cut() -> None:
    table = output_table(50)
    place = table.column_names.index("text")
    long = pa.array([f"{'x' * 180} s3://key:hunter2secret@bucket/x"] * 50)
    assert "hunter2" not in str(Aggregate.of(table.set_column(place, "text", long)).uncertain)


def test_column_prefixes_and_tables_of_fewer_columns_are_understood() -> None:
    prefixed = output_table(150, prefix="gen_", samples=2)
    assert Aggregate.of(prefixed, "gen_") == WHOLE
    found = Aggregate.of(TABLE.drop_columns(["token_ids", "stats"]))
    assert found.histograms["mean_entropy"].count == 0
    assert found.histograms["completion_tokens"] == WHOLE.histograms["completion_tokens"]


def test_huge_values_do_not_overflow_their_sum() -> None:
    found = WHOLE.histograms["mean_entropy"]
    big = found.of("nats", np.full(100_000, 2.0**39))
    assert big.mean == 2.0**39
    assert big.merged_with(found).total == big.total + found.total
    odd = found.of("nats", np.array([math.nan, math.inf, -math.inf, 1.0]))
    assert (odd.count, odd.mean) == (1, 1.0)


def test_labels_are_counted_where_values_are_few_and_short_whatever_the_parts() -> None:
    def rows(texts: list[str], failed: int = 0) -> pa.Table:
        table = output_table(len(texts) + failed)
        reasons = ["stop"] * len(texts) + ["error"] * failed
        for name, values in (("text", [*texts, *[None] * failed]), ("finish_reason", reasons)):
            place = table.column_names.index(name)
            table = table.set_column(place, name, pa.array(values, table.schema.field(name).type))
        return table

    choices = rows(["yes", "no", "yes", "yes"], failed=2)
    whole = Aggregate.of(choices)
    assert whole.labels == {"text": {"no": 1, "yes": 3}}
    for cut in range(choices.num_rows + 1):
        parts = [Aggregate.of(choices.slice(a, b - a)) for a, b in ((0, cut), (cut, choices.num_rows))]
        assert merged(parts).labels == whole.labels
    for other in (["x" * 61], [str(i) for i in range(21)], [str(i) for i in range(19)]):
        assert merged([whole, Aggregate.of(rows(other))]).labels == {"text": None}


def test_each_text_field_of_parsed_is_a_column_of_labels() -> None:
    table = output_table(3)
    parsed = pa.array([{"mood": "good", "n": 1}, {"mood": "bad", "n": 2}, {"mood": "good", "n": 3}])
    table = table.append_column("parsed", parsed)
    assert Aggregate.of(table).labels == {"parsed.mood": {"bad": 1, "good": 2}}
