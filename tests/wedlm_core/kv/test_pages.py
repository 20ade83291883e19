"""The page manager against a pool with recorded contents: cached tokens are really there, and no page leaks."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from wedlm_core.errors import IntegrityError
from wedlm_core.kv.pages import PageManager, SequencePages

PAGE = 4
POOL = 7
# Few token ids and short texts, so that equal prefixes and page pressure are the rule.
TOKENS = st.lists(st.integers(0, 1), min_size=1, max_size=18)


class PagesMachine(RuleBasedStateMachine):
    """A pool whose entries record the prefix that was written to them, which determines the KV."""

    def __init__(self) -> None:
        super().__init__()
        self.manager = PageManager(POOL, PAGE, prefix_caching=True)
        self.entries: list[tuple[int, ...] | None] = [None] * (POOL * PAGE)
        self.open: list[tuple[SequencePages, list[int], int]] = []  # pages, tokens, tokens whose KV is final

    def check_contents(self, seq: SequencePages, tokens: list[int], final: int) -> None:
        for i in range(final):
            assert self.entries[seq.pages[i // PAGE] * PAGE + i % PAGE] == tuple(tokens[: i + 1])

    @rule(tokens=TOKENS, spare=st.integers(0, 3))
    def open_sequence(self, tokens: list[int], spare: int) -> None:
        allowed = max(0, len(tokens) - spare)
        seq = self.manager.open(tokens, max_cached=allowed)
        assert seq.cached_tokens <= allowed
        assert seq.cached_tokens == len(seq.pages) * PAGE
        self.check_contents(seq, tokens, seq.cached_tokens)
        self.open.append((seq, tokens, seq.cached_tokens))

    @precondition(lambda self: self.open)
    @rule(data=st.data(), more=TOKENS, window=st.integers(0, 9))
    def grow_write_and_seal(self, data: st.DataObject, more: list[int], window: int) -> None:
        at = data.draw(st.integers(0, len(self.open) - 1))
        seq, tokens, final = self.open[at]
        tokens = tokens + more if final == len(tokens) else tokens
        before, free = list(seq.pages), self.manager.num_free
        wanted = -(-(len(tokens) + window) // PAGE)
        if not self.manager.grow(seq, len(tokens) + window):
            assert seq.pages == before
            assert self.manager.num_free == free
            assert wanted - len(before) > free
            return
        assert len(seq.pages) == max(len(before), wanted)
        assert self.manager.num_free == free - (len(seq.pages) - len(before))
        for i in range(final, len(seq.pages) * PAGE):  # final KV, then the KV of a window after it
            written = tuple(tokens[: i + 1]) if i < len(tokens) else (-1,)
            self.entries[seq.pages[i // PAGE] * PAGE + i % PAGE] = written
        self.open[at] = (seq, tokens, len(tokens))
        self.manager.seal(seq, tokens, len(tokens))

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def close_sequence(self, data: st.DataObject) -> None:
        seq, _, _ = self.open.pop(data.draw(st.integers(0, len(self.open) - 1)))
        self.manager.close(seq)

    @invariant()
    def valid(self) -> None:
        self.manager.check_integrity()
        for seq, tokens, final in self.open:
            self.check_contents(seq, tokens, final)
        if not self.open:
            assert self.manager.num_free == POOL


PagesMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
TestPages = PagesMachine.TestCase


@given(texts=st.lists(TOKENS, min_size=1, max_size=8), wanted=TOKENS)
@settings(max_examples=50, deadline=None)
def test_without_pressure_the_longest_sealed_prefix_is_found(texts: list[list[int]], wanted: list[int]) -> None:
    manager = PageManager(200, PAGE, prefix_caching=True)
    for tokens in texts:
        seq = manager.open(tokens, len(tokens))
        assert manager.grow(seq, len(tokens))
        manager.seal(seq, tokens, len(tokens))
        manager.close(seq)
    sealed = {tuple(t[:end]) for t in texts for end in range(PAGE, len(t) + 1, PAGE)}
    lengths = [end for end in range(PAGE, len(wanted) + 1, PAGE) if tuple(wanted[:end]) in sealed]
    assert manager.open(wanted, len(wanted)).cached_tokens == max(lengths, default=0)


def test_the_beginning_of_a_prefix_outlives_its_end() -> None:
    manager = PageManager(4, PAGE, prefix_caching=True)
    tokens = list(range(16))
    first = manager.open(tokens, 16)
    assert manager.grow(first, 16)
    manager.seal(first, tokens, 16)
    manager.close(first)
    other = manager.open([99], 1)
    assert manager.grow(other, 2 * PAGE)
    assert manager.open(tokens, 16).cached_tokens == 2 * PAGE


def test_least_recently_used_prefix_is_evicted_first() -> None:
    manager = PageManager(3, PAGE, prefix_caching=True)
    for token in (1, 2, 3, 1):
        seq = manager.open([token] * PAGE, PAGE)
        assert manager.grow(seq, PAGE)
        manager.seal(seq, [token] * PAGE, PAGE)
        manager.close(seq)
    writer = manager.open([9], 0)
    assert manager.grow(writer, PAGE)
    cached = [manager.open([token] * PAGE, PAGE).cached_tokens for token in (1, 2, 3)]
    assert cached == [PAGE, 0, PAGE]


def test_switched_off_nothing_is_shared() -> None:
    manager = PageManager(8, PAGE, prefix_caching=False)
    seq = manager.open([1] * 8, 8)
    assert manager.grow(seq, 8)
    manager.seal(seq, [1] * 8, 8)
    assert manager.open([1] * 8, 8).cached_tokens == 0


def test_a_prompt_of_whole_pages_keeps_its_last_page_out_of_the_cache() -> None:
    manager = PageManager(8, PAGE, prefix_caching=True)
    tokens = [1] * 8
    seq = manager.open(tokens, 7)
    assert manager.grow(seq, 8)
    manager.seal(seq, tokens, 8)
    assert manager.open(tokens, len(tokens) - 1).cached_tokens == PAGE


def test_misuse_is_an_integrity_error() -> None:
    manager = PageManager(8, PAGE, prefix_caching=True)
    tokens = [1, 2, 3, 4, 5]
    seq = manager.open(tokens, 0)
    with pytest.raises(IntegrityError):
        manager.seal(seq, tokens, 4)  # final tokens without pages
    assert manager.grow(seq, 8)
    with pytest.raises(IntegrityError):
        manager.seal(seq, tokens, 6)  # more final tokens than tokens
    manager.close(seq)
    with pytest.raises(IntegrityError):
        manager.close(seq)
    with pytest.raises(IntegrityError):
        manager.grow(seq, 4)


def test_discarded_pages_are_no_longer_found_as_a_prefix() -> None:
    """Pages that another sequence shares stay valid until it discards them too."""
    manager = PageManager(8, 4, prefix_caching=True)
    tokens = list(range(12))
    first = manager.open(tokens, 12)
    assert manager.grow(first, 14)
    manager.seal(first, tokens, 12)
    second = manager.open(tokens[:8], 8)
    shared, own = first.pages[:2], first.pages[2:]
    assert second.pages == shared
    assert manager.discard(first) == own
    manager.check_integrity()
    third = manager.open(tokens, 12)
    assert third.pages == shared
    assert manager.discard(third) == []
    assert manager.discard(second) == shared
    manager.check_integrity()
    assert manager.num_free == 8
    assert manager.open(tokens, 12).pages == []
    with pytest.raises(IntegrityError, match="not open"):
        manager.discard(first)
