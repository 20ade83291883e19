"""The page allocator agrees with a simple model; its integrity checks find corrupted states."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from wedlm_core.errors import IntegrityError
from wedlm_core.kv.allocator import PageAllocator
from wedlm_core.kv.prefix import PrefixIndex, page_key

POOL = 6


class AllocatorMachine(RuleBasedStateMachine):
    """The model: a reference count per page, the set of indexed pages, and the order of their last use."""

    def __init__(self) -> None:
        super().__init__()
        self.evicted: list[int] = []
        self.allocator = PageAllocator(POOL, on_evict=self.evicted.append)
        self.refs = [0] * POOL
        self.indexed: set[int] = set()
        self.idle: list[int] = []

    def used(self) -> list[int]:
        return [page for page in range(POOL) if self.refs[page]]

    @rule(count=st.integers(0, POOL + 1))
    def allocate(self, count: int) -> None:
        blank = [page for page in range(POOL) if not self.refs[page] and page not in self.idle]
        self.evicted.clear()
        pages = self.allocator.allocate(count)
        if count > len(blank) + len(self.idle):
            assert pages is None
            assert not self.evicted
            return
        assert pages is not None
        evictions = max(0, count - len(blank))
        assert self.evicted == self.idle[:evictions]
        assert sorted(pages) == sorted([*self.evicted, *(p for p in pages if p in blank)])
        assert len(set(pages)) == count
        del self.idle[:evictions]
        self.indexed -= set(self.evicted)
        for page in pages:
            self.refs[page] = 1

    @precondition(lambda self: self.used() or self.idle)
    @rule(data=st.data())
    def share(self, data: st.DataObject) -> None:
        page = data.draw(st.sampled_from(self.used() + self.idle))
        self.allocator.share([page])
        self.refs[page] += 1
        if page in self.idle:
            self.idle.remove(page)

    @precondition(lambda self: self.used())
    @rule(data=st.data())
    def keep(self, data: st.DataObject) -> None:
        page = data.draw(st.sampled_from(self.used()))
        self.allocator.keep_content(page)
        self.indexed.add(page)

    @precondition(lambda self: self.used())
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        page = data.draw(st.sampled_from(self.used()))
        self.allocator.release([page])
        self.refs[page] -= 1
        if not self.refs[page] and page in self.indexed:
            self.idle.append(page)

    @invariant()
    def agrees(self) -> None:
        self.allocator.check_integrity()
        assert [self.allocator.references(page) for page in range(POOL)] == self.refs
        assert self.allocator.num_free == POOL - len(self.used())


AllocatorMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestAllocator = AllocatorMachine.TestCase


def test_giving_back_twice_and_sharing_blank_pages_are_refused() -> None:
    allocator = PageAllocator(2)
    pages = allocator.allocate(1)
    assert pages is not None
    allocator.release(pages)
    for misuse in (allocator.release, allocator.share):
        with pytest.raises(IntegrityError):
            misuse(pages)
    with pytest.raises(IntegrityError):
        allocator.keep_content(pages[0])


def test_integrity_check_sees_a_leak_and_a_double_free() -> None:
    allocator = PageAllocator(2)
    pages = allocator.allocate(2)
    allocator.check_integrity([[0], [1]])
    with pytest.raises(IntegrityError, match="differ from holders"):
        allocator.check_integrity([pages[:1]])
    allocator.release(pages)
    allocator._blank.append(pages[0])
    with pytest.raises(IntegrityError, match="free twice"):
        allocator.check_integrity()


def test_keys_chain_and_the_index_goes_both_ways() -> None:
    a, b = page_key(b"", [1, 2]), page_key(page_key(b"", [3, 4]), [1, 2])
    assert a != b
    assert page_key(b"", [1, 2]) == a
    index = PrefixIndex()
    assert index.insert(a, 5)
    assert not index.insert(a, 6)
    with pytest.raises(IntegrityError):
        index.insert(b, 5)
    index.forget(5)
    assert 5 not in index
    assert index.match([1, 2], 2, 9) == ([], b"")
    with pytest.raises(IntegrityError):
        index.forget(5)
    index._page_of[b] = 3
    with pytest.raises(IntegrityError):
        index.check_integrity()
