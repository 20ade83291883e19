"""Which forwards get a CUDA graph: sizes without gaps, buckets that cover, captures within a budget."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wedlm_core.engine.forward.graph_policy import GraphBook, graph_sizes, kv_buckets


def book_of(*, limit: int = 512, seconds: float = 10.0, most_bytes: int = 100) -> GraphBook:
    return GraphBook(limit=limit, sequences=64, most_kv=5000, seconds=seconds, most_bytes=most_bytes)


@pytest.mark.parametrize("limit", [1, 3, 8, 100, 512, 2048])
def test_sizes_ascend_and_waste_little(limit: int) -> None:
    sizes = graph_sizes(limit)
    assert sizes == sorted(set(sizes))
    assert sizes[0] == 1
    assert sizes[-1] <= limit
    assert all(b - a <= max(8, a / 3, 64 if a >= 512 else 0) for a, b in pairwise(sizes))
    assert limit not in (512, 2048) or sizes[-1] == limit


@given(rows=st.integers(1, 600))
def test_a_forward_is_padded_to_the_next_size(rows: int) -> None:
    book = book_of()
    size = book.padded(rows)
    if rows > 512:
        assert size is None
    else:
        assert size is not None
        assert size >= rows
        assert not [s for s in book.sizes if rows <= s < size]


@given(data=st.data(), rows=st.integers(1, 512))
def test_padded_sequences_have_rows_and_room(data: st.DataObject, rows: int) -> None:
    """Each sequence of a forward has a row at least, so that it is never refused for its padding."""
    book = book_of()
    sequences = data.draw(st.integers(1, min(64, rows)))
    decoding, size = data.draw(st.integers(1, sequences)), book.padded(rows)
    assert size is not None
    stop, places = book.padded_sequences(decoding, sequences, size)
    assert decoding <= stop <= stop + sequences - decoding <= places <= min(64, size)
    assert book.key(size, sequences=places, max_rows=1, max_kv=1) is not None


def test_a_draining_job_has_few_kinds_of_forwards() -> None:
    book = book_of()
    sizes = {count: book.padded(count) for count in range(1, 65)}
    assert len({(size, *book.padded_sequences(count, count, size)) for count, size in sizes.items() if size}) == 11


def test_buckets_end_at_the_longest_sequence() -> None:
    assert kv_buckets(5000) == [1024, 4096, 5000]
    assert kv_buckets(300) == [300]


@given(
    size=st.sampled_from(graph_sizes(512)),
    sequences=st.integers(1, 64),
    max_rows=st.integers(1, 512),
    max_kv=st.integers(1, 5000),
)
def test_keys_bound_their_forwards_and_the_general_graph_covers_them(
    size: int, sequences: int, max_rows: int, max_kv: int
) -> None:
    book = book_of()
    sequences, max_rows = min(sequences, size), min(max_rows, size)
    key = book.key(size, sequences=sequences, max_rows=max_rows, max_kv=max_kv)
    assert key is not None
    assert sequences <= key.sequences <= min(64, size)
    assert max_rows <= key.max_rows <= size
    assert max_kv <= key.max_kv <= 5000
    assert book.covering(key) is None
    book.captured(book.general(size), 0.0, 0)
    assert book.covering(key) == book.general(size)
    book.captured(key, 0.0, 0)
    assert book.covering(key) == key


@pytest.mark.parametrize("more", [{"sequences": 65}, {"max_rows": 129}, {"max_kv": 5001}])
def test_a_forward_beyond_the_buffers_gets_no_graph(more: dict[str, int]) -> None:
    bounds = {"sequences": 64, "max_rows": 128, "max_kv": 5000}
    assert book_of().key(128, **bounds) is not None
    assert book_of().key(128, **{**bounds, **more}) is None


def test_start_up_captures_every_size_largest_first() -> None:
    keys = book_of().first_keys()
    assert [k.size for k in keys] == graph_sizes(512)[::-1]


def test_a_kind_is_captured_the_second_time_and_once() -> None:
    book = book_of()
    key = book.key(8, sequences=2, max_rows=4, max_kv=10)
    assert [book.wants(key), book.wants(key)] == [False, True]
    book.captured(key, 1.0, 1)
    assert not book.wants(key)


def test_a_kind_that_another_graph_can_run_waits_longer() -> None:
    book = book_of()
    book.captured(book.general(8), 1.0, 1)
    key = book.key(8, sequences=2, max_rows=4, max_kv=10)
    assert [book.wants(key) for _ in range(32)] == [False] * 31 + [True]


@pytest.mark.parametrize(("seconds", "used"), [(11.0, 0), (0.0, 101)])
def test_no_capture_beyond_the_budget(seconds: float, used: int) -> None:
    book = book_of()
    first, second = (book.key(size, sequences=1, max_rows=1, max_kv=1) for size in (8, 16))
    assert not book.wants(second)
    book.captured(first, seconds, used)
    assert book.exhausted
    assert not book.wants(second)


@pytest.mark.parametrize(("seconds", "used_bytes"), [(10.0, 0), (0.0, 100)])
def test_other_captures_use_up_the_same_budget(seconds: float, used_bytes: int) -> None:
    book = book_of()
    book.spend(seconds / 2, used_bytes // 2)
    assert not book.exhausted
    book.spend(seconds / 2, used_bytes // 2)
    assert book.exhausted
