"""Regions never overlap, and what was given back can be had again."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from wedlm_core.engine.drafting.regions import Regions

BITS, LEAST = 7, 2


@given(st.lists(st.one_of(st.integers(0, BITS), st.integers(-9, -1)), max_size=60))
def test_regions_never_overlap_and_join_again(calls: list[int]) -> None:
    regions, held = Regions(BITS, LEAST), []
    for call in calls:  # allocate so many bits, or release one of those held
        if call < 0:
            if held:
                regions.release(*held.pop(call % len(held)))
            continue
        largest = regions.largest()
        start = regions.allocate(call)
        assert (start is None) == (largest < max(call, LEAST))
        if start is not None:
            held.append((start, max(call, LEAST)))
        places = [p for first, bits in held for p in range(first, first + (1 << bits))]
        assert len(set(places)) == len(places)
        assert all(0 <= p < 1 << BITS for p in places)
    for start, bits in held:
        regions.release(start, bits)
    assert regions.largest() == BITS
