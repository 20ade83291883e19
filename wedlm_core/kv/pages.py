"""Pages of sequences: allocation and prefix sharing behind one small interface. Torch-free.

Only full pages of final KV are shared, and a sequence writes only behind its cached tokens, so a shared
page is never written and needs no copy-on-write.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from wedlm_core.errors import IntegrityError
from wedlm_core.kv.allocator import PageAllocator
from wedlm_core.kv.prefix import ROOT, PrefixIndex, page_key

__all__ = ["PageManager", "SequencePages"]


@dataclass(kw_only=True, eq=False)
class SequencePages:
    """Pages of one open sequence; mutable, changed by :class:`PageManager` only.

    Attributes:
        pages: page of tokens ``i * page_size : (i + 1) * page_size`` for each i.
        cached_tokens: leading tokens whose KV was there when the sequence was opened (whole pages).
        sealed_pages: leading pages that have been considered for the prefix index.
        chain: key of the last sealed page.
    """

    pages: list[int] = field(default_factory=list)
    cached_tokens: int = 0
    sealed_pages: int = 0
    chain: bytes = ROOT


class PageManager:
    """Allocator and prefix index of one pool.

    Args:
        num_pages: pages in the pool.
        page_size: tokens per page.
        prefix_caching: share full pages between sequences of equal prefix, also after they closed.
    """

    def __init__(self, num_pages: int, page_size: int, *, prefix_caching: bool) -> None:
        if page_size < 1:
            raise IntegrityError(f"page_size={page_size}: a page holds at least one token")
        self.page_size = page_size
        self.prefix_caching = prefix_caching
        self._index = PrefixIndex()
        self._allocator = PageAllocator(num_pages, on_evict=self._index.forget)
        self._open: set[SequencePages] = set()

    @property
    def num_free(self) -> int:
        """Pages that :meth:`grow` could still take, counting kept prefixes, which it evicts."""
        return self._allocator.num_free

    @property
    def num_pages(self) -> int:
        """Pages in the pool."""
        return self._allocator.num_pages

    @property
    def capacity_tokens(self) -> int:
        """KV entries of the whole pool."""
        return self._allocator.num_pages * self.page_size

    def open(self, token_ids: Sequence[int], max_cached: int) -> SequencePages:
        """Start a sequence with the longest known prefix of its tokens, in whole pages.

        Args:
            token_ids: all tokens known now (prompt, and what was committed before a preemption).
            max_cached: cached tokens at most; a caller that needs logits of the last token leaves it out.

        Returns:
            Pages with one reference each; :meth:`close` gives them back.
        """
        seq = SequencePages()
        if self.prefix_caching:
            limit = max(0, min(max_cached, len(token_ids))) // self.page_size
            seq.pages, seq.chain = self._index.match(token_ids, self.page_size, limit)
            self._allocator.share(seq.pages)
            seq.sealed_pages = len(seq.pages)
            seq.cached_tokens = len(seq.pages) * self.page_size
        self._open.add(seq)
        return seq

    def grow(self, seq: SequencePages, tokens: int) -> bool:
        """Give ``seq`` capacity for ``tokens`` KV entries in total; False (and no change) if pages run out."""
        self._require_open(seq)
        missing = -(-tokens // self.page_size) - len(seq.pages)
        if missing <= 0:
            return True
        pages = self._allocator.allocate(missing)
        if pages is None:
            return False
        seq.pages.extend(pages)
        return True

    def seal(self, seq: SequencePages, token_ids: Sequence[int], final_tokens: int) -> None:
        """Index every full page of final KV that is not yet considered; costs O(new pages).

        Args:
            seq: an open sequence.
            token_ids: its prompt and committed tokens, from position 0; those of earlier calls unchanged.
            final_tokens: leading tokens whose KV is in the pool and will not be written again.

        Raises:
            IntegrityError: more tokens are called final than are known or have pages.
        """
        self._require_open(seq)
        if final_tokens > len(token_ids) or final_tokens > len(seq.pages) * self.page_size:
            raise IntegrityError(
                f"final_tokens={final_tokens} of {len(token_ids)} tokens and {len(seq.pages)} pages of {self.page_size}"
            )
        if not self.prefix_caching:
            return
        for i in range(seq.sealed_pages, final_tokens // self.page_size):
            seq.chain = page_key(seq.chain, token_ids[i * self.page_size : (i + 1) * self.page_size])
            # An equal page of another sequence keeps its entry; this one stays private.
            if self._index.insert(seq.chain, seq.pages[i]):
                self._allocator.keep_content(seq.pages[i])
            seq.sealed_pages = i + 1

    def close(self, seq: SequencePages) -> None:
        """Give all pages of ``seq`` back; its sealed pages stay shareable until they are evicted."""
        self._require_open(seq)
        self._open.remove(seq)
        # The end of a prefix is worth less than its beginning, without which it cannot be found: it goes first.
        self._allocator.release(reversed(seq.pages))
        seq.pages = []
        seq.cached_tokens = 0
        seq.sealed_pages = 0
        seq.chain = ROOT

    def discard(self, seq: SequencePages) -> list[int]:
        """Close a sequence whose KV is invalid, and remove its pages from the prefix index.

        Returns:
            Its pages that no other sequence uses; the caller clears their contents.
        """
        pages = list(seq.pages)
        self.close(seq)
        free = [page for page in pages if self._allocator.references(page) == 0]
        for page in free:
            if self._allocator.keeps_content(page):
                self._allocator.drop(page)
                self._index.forget(page)
        return free

    def _require_open(self, seq: SequencePages) -> None:
        if seq not in self._open:
            raise IntegrityError("the sequence is not open here (closed twice, or of another pool)")

    def check_integrity(self) -> None:
        """Check references against open sequences, and the index against the allocator.

        Raises:
            IntegrityError: an invariant is broken.
        """
        self._allocator.check_integrity([seq.pages for seq in self._open])
        self._index.check_integrity()
        for page in range(self._allocator.num_pages):
            if (page in self._index) != self._allocator.keeps_content(page):
                raise IntegrityError(f"page {page}: the index and the allocator disagree on whether it is indexed")
