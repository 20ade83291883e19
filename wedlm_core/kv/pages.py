"""PageManager: the pages of sequences, with allocation and prefix sharing in one interface. Imports no torch.

Only full pages of final KV are shared, and a sequence writes only after its cached tokens. So a shared page is never
written, and no copy-on-write is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from wedlm_core.errors import IntegrityError
from wedlm_core.fallback import Optimisation
from wedlm_core.kv.allocator import PageAllocator
from wedlm_core.kv.prefix import ROOT, PrefixIndex, page_key


@dataclass(kw_only=True, eq=False)
class SequencePages:
    """Pages of one open sequence. Only :class:`PageManager` changes it.

    Attributes:
        pages: ``pages[i]`` holds the tokens ``i * page_size : (i + 1) * page_size``.
        cached_tokens: leading tokens whose KV was cached when the sequence was opened (whole pages).
        sealed_pages: leading pages that were already offered to the prefix index.
        chain: prefix key of the last sealed page.
    """

    pages: list[int] = field(default_factory=list)
    cached_tokens: int = 0
    sealed_pages: int = 0
    chain: bytes = ROOT


class PageManager:
    """Page allocator and prefix index of one KV pool.

    Args:
        num_pages: pages in the pool.
        page_size: tokens per page.
        prefix_caching: share full pages between sequences with equal prefixes, also after a sequence is closed.
        prefixes: guards the calls of the prefix index; it is off without ``prefix_caching``.
    """

    def __init__(
        self, num_pages: int, page_size: int, *, prefix_caching: bool, prefixes: Optimisation | None = None
    ) -> None:  # fmt: skip
        if page_size < 1:
            raise IntegrityError(f"page_size={page_size}: a page holds at least one token")
        self.page_size = page_size
        self.prefix_caching = prefix_caching
        self._index, self._prefixes = PrefixIndex(), prefixes or Optimisation("the prefix cache", "it is left out")
        self._allocator = PageAllocator(num_pages, on_evict=self._forget)
        self._open: set[SequencePages] = set()

    @property
    def num_free(self) -> int:
        """Pages that :meth:`grow` could still allocate, including kept prefixes, which it evicts."""
        return self._allocator.num_free

    @property
    def num_pages(self) -> int:
        """Pages in the pool."""
        return self._allocator.num_pages

    @property
    def capacity_tokens(self) -> int:
        """KV entries (tokens) that the whole pool holds."""
        return self._allocator.num_pages * self.page_size

    def open(self, token_ids: Sequence[int], max_cached: int) -> SequencePages:
        """Open a sequence with the longest cached prefix of its tokens, in whole pages.

        Args:
            token_ids: all tokens known now: the prompt, and tokens committed before a preemption.
            max_cached: limit of cached tokens; a caller that needs the logits of the last token excludes that token.

        Returns:
            Pages with one reference each; :meth:`close` releases them.
        """
        seq = SequencePages()
        if self.prefix_caching:
            limit = max(0, min(max_cached, len(token_ids))) // self.page_size
            found = self._prefixes.attempt(self._index.match, token_ids, self.page_size, limit)
            seq.pages, seq.chain = found or ([], ROOT)
            self._allocator.share(seq.pages)
            seq.sealed_pages = len(seq.pages)
            seq.cached_tokens = len(seq.pages) * self.page_size
        self._open.add(seq)
        return seq

    def grow(self, seq: SequencePages, tokens: int) -> bool:
        """Allocate until ``seq`` can hold ``tokens`` tokens in total; False (and no change) if pages are too few."""
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
        """Offer every new full page of final KV to the prefix index, in O(new pages).

        Args:
            seq: an open sequence.
            token_ids: its prompt and committed tokens from position 0, starting with those of earlier calls.
            final_tokens: leading tokens whose KV is in the pool and will not change.

        Raises:
            IntegrityError: ``final_tokens`` exceeds the known tokens or the pages.
        """
        self._require_open(seq)
        if final_tokens > len(token_ids) or final_tokens > len(seq.pages) * self.page_size:
            raise IntegrityError(
                f"final_tokens={final_tokens} of {len(token_ids)} tokens and {len(seq.pages)} pages of {self.page_size}"
            )
        if self.prefix_caching:
            self._prefixes.attempt(self._offer, seq, token_ids, final_tokens)

    def _offer(self, seq: SequencePages, token_ids: Sequence[int], final_tokens: int) -> None:
        for i in range(seq.sealed_pages, final_tokens // self.page_size):
            seq.chain = page_key(seq.chain, token_ids[i * self.page_size : (i + 1) * self.page_size])
            # If another page with equal content is indexed, that one stays and this page is not shared.
            if self._index.insert(seq.chain, seq.pages[i]):
                self._allocator.keep_content(seq.pages[i])
            seq.sealed_pages = i + 1

    def close(self, seq: SequencePages) -> None:
        """Release all pages of ``seq``; its indexed pages stay shareable until they are evicted."""
        self._require_open(seq)
        self._open.remove(seq)
        # Release the end first, so that it is evicted first: without its beginning a prefix cannot be found.
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
                self._forget(page)
        return free

    def _forget(self, page: int) -> None:
        """Remove a page from the prefix index. One that could not be removed is never found: nothing is, then."""
        self._prefixes.attempt(self._index.forget, page)

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
            if self._prefixes.is_on and (page in self._index) != self._allocator.keeps_content(page):
                raise IntegrityError(f"page {page}: the index and the allocator disagree on whether it is indexed")
