"""Misuse of the page allocator is refused; integrity checks find corrupted states."""

from __future__ import annotations

import pytest

from wedlm_core.errors import IntegrityError
from wedlm_core.kv.allocator import PageAllocator
from wedlm_core.kv.prefix import PrefixIndex, page_key


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
