"""Work begun ahead: results in order, never more under way than allowed, as much as allowed."""

from __future__ import annotations

from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from pipeline.ahead import in_order


@given(count=st.integers(0, 30), most=st.integers(1, 8))
def test_results_come_in_order_with_a_bounded_number_under_way(count: int, most: int) -> None:
    under_way: list[int] = []
    highest = 0

    def items() -> Iterator[int]:
        for i in range(count):
            assert len(under_way) < most, "an item is drawn when it can be begun"
            yield i

    def begin(item: int) -> int:
        nonlocal highest
        under_way.append(item)
        highest = max(highest, len(under_way))
        return item

    def end(item: int) -> int:
        under_way.remove(item)
        return -item

    assert list(in_order(items(), begin, end, most)) == [-i for i in range(count)]
    assert highest == min(count, most)
