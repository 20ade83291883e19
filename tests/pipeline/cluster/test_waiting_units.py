"""The waiting unit that an actor gets: the best of few, or one with the same prefix of many."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.cluster.waiting_units import FIRST, WaitingUnits

_HISTOGRAMS = st.dictionaries(st.integers(0, 5), st.integers(1, 9), max_size=3)


class _Readable:
    """Compares all units; counts one by one how often each was overtaken."""

    def __init__(self, max_overtakes: int) -> None:
        self._max_overtakes = max_overtakes
        self.units: list[tuple[str, Mapping[int, int]]] = []
        self._overtaken: dict[str, int] = {}

    def put(self, unit_id: str, histogram: Mapping[int, int]) -> None:
        self.units.append((unit_id, histogram))
        self._overtaken[unit_id] = 0

    def put_first(self, unit_id: str, histogram: Mapping[int, int]) -> None:
        self.units.insert(0, (unit_id, histogram))
        self._overtaken[unit_id] = self._max_overtakes

    def take(self, actor: int, owners: Mapping[int, int]) -> str:
        best = 0
        if self._overtaken[self.units[0][0]] < self._max_overtakes:
            fits = [_fit(histogram, actor, owners) for _, histogram in self.units]
            best = fits.index(max(fits))
        for unit_id, _ in self.units[:best]:
            self._overtaken[unit_id] += 1
        return self.units.pop(best)[0]


def _fit(histogram: Mapping[int, int], actor: int, owners: Mapping[int, int]) -> int:
    return sum(
        (tokens if owners[prefix] == actor else -tokens) for prefix, tokens in histogram.items() if prefix in owners
    )


@given(data=st.data(), max_overtakes=st.integers(1, 12))
@settings(max_examples=60, deadline=None)
def test_while_few_wait_it_decides_as_if_all_were_compared(data: st.DataObject, max_overtakes: int) -> None:
    fast, slow = WaitingUnits(max_overtakes), _Readable(max_overtakes)
    owners: dict[int, int] = {}
    taken: dict[str, Mapping[int, int]] = {}
    for number in range(data.draw(st.integers(0, 60))):
        choices = ["put"] * (len(slow.units) < FIRST) + ["take"] * bool(slow.units)
        what = data.draw(st.sampled_from(choices))
        if what == "put":
            histogram = data.draw(_HISTOGRAMS)
            for queue in (fast, slow):
                queue.put(str(number), histogram)
            taken[str(number)] = histogram
        else:
            actor = data.draw(st.integers(0, 2))
            got = fast.take(actor, lambda histogram, name: _fit(histogram, name, owners))
            assert got == slow.take(actor, owners)
            owners.update(dict.fromkeys(taken[got], actor))
        assert len(fast) == len(slow.units)


@given(back=st.lists(st.integers(0, 9), unique=True, max_size=5))
def test_what_is_put_first_goes_first_in_that_order(back: list[int]) -> None:
    queue = WaitingUnits(4)
    for number in range(10, 20):
        queue.put(str(number), {1: 5})
    for number in reversed(back):
        queue.put_first(str(number), {2: 5})
    order = [queue.take(0, lambda histogram, actor: 9 * (1 in histogram)) for _ in range(len(queue))]
    assert order == [*map(str, back), *map(str, range(10, 20))]


@given(data=st.data(), sizes=st.lists(st.integers(0, 4), max_size=40), limit=st.integers(1, 6))
@settings(max_examples=60, deadline=None)
def test_units_with_long_rows_go_first_and_none_is_overtaken_for_ever(
    data: st.DataObject, sizes: list[int], limit: int
) -> None:  # fmt: skip
    queue, held, order = WaitingUnits(limit), set[int](), list[int]()
    overtaken: Counter[int] = Counter()
    left = list(enumerate(sizes))
    while left or held:
        if left and (not held or data.draw(st.booleans())):
            number, size = left.pop(0)
            queue.put(str(number), {}, size)
            held.add(number)
            continue
        own = int(queue.take(0, lambda histogram, actor: 0))
        held.remove(own)
        order.append(own)
        overtaken.update(other for other in held if other < own)
    assert sorted(order) == list(range(len(sizes)))
    assert all(count <= limit * (1 + max(sizes) - sizes[number]) for number, count in overtaken.items())


def test_new_sizes_renew_the_order_and_units_that_were_put_first_stay_there() -> None:
    queue = WaitingUnits(100)
    for number in range(5):
        queue.put(str(number), {number: 5})
    queue.put_first("back", {})
    queue.sort(lambda unit_id: {"3": 2, "1": 1}.get(unit_id, 0))
    assert [queue.take(0, lambda histogram, actor: 0) for _ in range(6)] == ["back", "3", "1", "0", "2", "4"]


def test_a_unit_that_begins_alike_is_found_behind_any_number_of_others() -> None:
    queue, owners = WaitingUnits(100_000), {7: 3}
    queue.put("begin", {7: 100})
    assert queue.take(3, lambda histogram, actor: _fit(histogram, actor, owners)) == "begin"
    for number in range(5_000):
        queue.put(str(number), {100 + number: 50})
    queue.put("alike", {7: 100})
    assert queue.take(3, lambda histogram, actor: _fit(histogram, actor, owners)) == "alike"
    queue.forget(3)
    queue.put("too late", {7: 100})
    assert queue.take(3, lambda histogram, actor: _fit(histogram, actor, owners)) == "0"


def test_a_unit_that_is_taken_out_is_not_found_again() -> None:
    queue = WaitingUnits(4)
    for name in ("a", "b"):
        queue.put(name, {1: 5})
    queue.remove("a")
    queue.remove("never here")
    assert queue.take(0, lambda histogram, actor: 0) == "b"
    assert not len(queue)
