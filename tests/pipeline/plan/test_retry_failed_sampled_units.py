"""The units with the lowest hashes hold the rows with the lowest hashes."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline import layout
from pipeline.plan.retry_failed import SampledUnits
from pipeline.types import CommitRecord, Place


def record(number: int, hashes: list[int]) -> CommitRecord:
    return CommitRecord(
        unit_id=f"u{number}", file_key="f", first_row=0, num_rows=max(1, len(hashes)), failed_rows=0,
        samples=len(hashes), prompt_tokens=0, completion_tokens=0, decode_forwards=0, rows_forwarded=0,
        staged_bytes=1, data_sha256="", rows_sha256="a" * 64, lowest_hash=min(hashes, default=None),
    )  # fmt: skip


@settings(max_examples=100, deadline=None)
@given(st.lists(st.lists(st.integers(0, 2**63 - 1), max_size=4), max_size=30), st.integers(1, 5), st.randoms())
def test_the_k_lowest_rows_lie_in_the_units_that_are_kept(units: list[list[int]], most: int, order: Any) -> None:
    units = [list(dict.fromkeys(h * 1000 + i for h in own)) for i, own in enumerate(units)]
    places = list(enumerate(units))
    order.shuffle(places)
    sampled = SampledUnits(most)
    for number, hashes in places:
        sampled.add(record(number, hashes))
    kept = {layout.staged_attempt(place.key)[0] for place in sampled.places()}
    every = sorted((h, number) for number, own in enumerate(units) for h in own)
    assert {f"u{number}" for _, number in every[:most]} <= kept
    assert len(kept) <= most


def test_units_of_earlier_runs_and_those_without_good_rows() -> None:
    known = Place(key="data-000000/part-000000.parquet", first_row=3, num_rows=4, format="parquet")
    sampled = SampledUnits(2, [(5, known)])
    sampled.add(record(1, []))
    sampled.add(record(2, [9]))
    sampled.add(record(3, [7]))
    assert sampled.places()[0] == known
    assert [layout.staged_attempt(place.key)[0] for place in sampled.places()[1:]] == ["u3"]
