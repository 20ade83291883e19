"""Allocator of KV pages: reference counts, and an LRU list of unused pages with reusable content.

Imports no torch. A page is in exactly one state: *used* (one or more references), *kept* (no reference, but its content
is in the prefix index and can be shared again) or *blank* (no reference and no useful content).
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Sequence

from wedlm_core.errors import IntegrityError


class PageAllocator:
    """Allocates the pages ``0 .. num_pages - 1``.

    Args:
        num_pages: pages in the pool, 1 or more.
        on_evict: called with a kept page just before it is allocated for new content, so that its old content is
            removed from the prefix index.
    """

    def __init__(self, num_pages: int, on_evict: Callable[[int], None] | None = None) -> None:
        if num_pages < 1:
            raise IntegrityError(f"num_pages={num_pages}: a pool needs at least one page")
        self._refs = [0] * num_pages
        self._blank = list(range(num_pages - 1, -1, -1))
        self._kept: OrderedDict[int, None] = OrderedDict()  # least recently used first
        self._worth_keeping = [False] * num_pages
        self._on_evict = on_evict

    @property
    def num_pages(self) -> int:
        """Pages in the pool."""
        return len(self._refs)

    @property
    def num_free(self) -> int:
        """Pages that :meth:`allocate` could return now: blank and kept ones."""
        return len(self._blank) + len(self._kept)

    def references(self, page: int) -> int:
        """Number of references on ``page``."""
        return self._refs[page]

    def allocate(self, count: int) -> list[int] | None:
        """``count`` pages with one reference each; None (and no change) if too few are free.

        Blank pages are taken first, then kept pages, least recently used first.
        """
        if count > self.num_free:
            return None
        pages = [self._blank.pop() if self._blank else self._evict() for _ in range(count)]
        for page in pages:
            self._refs[page] = 1
        return pages

    def _evict(self) -> int:
        page, _ = self._kept.popitem(last=False)
        self._worth_keeping[page] = False
        if self._on_evict is not None:
            self._on_evict(page)
        return page

    def share(self, pages: Iterable[int]) -> None:
        """Add one reference to each page; kept pages become used again.

        Raises:
            IntegrityError: a page is blank, so it has no content to share.
        """
        for page in pages:
            if self._refs[page] == 0:
                if page not in self._kept:
                    raise IntegrityError(f"page {page} is shared but blank")
                del self._kept[page]
            self._refs[page] += 1

    def release(self, pages: Iterable[int]) -> None:
        """Remove one reference from each page; the first page released is evicted first.

        Raises:
            IntegrityError: a page has no reference left.
        """
        for page in pages:
            if self._refs[page] < 1:
                raise IntegrityError(f"page {page} is released more often than it was taken")
            self._refs[page] -= 1
            if self._refs[page] == 0:
                if self._worth_keeping[page]:
                    self._kept[page] = None
                else:
                    self._blank.append(page)

    def keep_content(self, page: int) -> None:
        """Mark the content of a used page as indexed: once unused, the page is kept until it is evicted.

        Raises:
            IntegrityError: the page is not used, so its content may already be overwritten.
        """
        if self._refs[page] == 0:
            raise IntegrityError(f"page {page} is indexed while not in use")
        self._worth_keeping[page] = True

    def drop(self, page: int) -> None:
        """Make a kept page blank: its content is no longer useful.

        Raises:
            IntegrityError: the page is not kept.
        """
        if page not in self._kept:
            raise IntegrityError(f"page {page} is dropped and not kept")
        del self._kept[page]
        self._worth_keeping[page] = False
        self._blank.append(page)

    def keeps_content(self, page: int) -> bool:
        """Whether the content of ``page`` is marked as indexed."""
        return self._worth_keeping[page]

    def check_integrity(self, holders: Sequence[Sequence[int]] | None = None) -> None:
        """Check that every page is in exactly one state.

        Args:
            holders: the pages of each holder, if the caller knows all holders: the reference counts must then
                match them.

        Raises:
            IntegrityError: an invariant is broken.
        """
        blank, kept = set(self._blank), set(self._kept)
        if len(blank) != len(self._blank) or blank & kept:
            raise IntegrityError("a page is free twice")
        for page, refs in enumerate(self._refs):
            states = (refs > 0) + (page in kept) + (page in blank)
            if refs < 0 or states != 1:
                raise IntegrityError(f"page {page} has {refs} references and is in {states} states")
            if page in kept and not self._worth_keeping[page]:
                raise IntegrityError(f"page {page} is kept without indexed content")
            if page in blank and self._worth_keeping[page]:
                raise IntegrityError(f"page {page} is blank but marked as worth keeping")
        if holders is not None:
            held = Counter(page for pages in holders for page in pages)
            wrong = {page: (refs, held[page]) for page, refs in enumerate(self._refs) if refs != held[page]}
            if wrong:
                raise IntegrityError(f"references differ from holders (page: references, holders): {wrong}")
