"""PrefixIndex: finds the KV pages of a known token prefix by chained content hash. Imports no torch.

The key of a page is a hash of the previous page's key and of its own token ids. So equal keys mean equal tokens from
position 0 on, and the KV of a committed token depends on nothing else.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence

from wedlm_core.errors import IntegrityError

ROOT = b""
"""The parent key of the first page."""


def page_key(parent: bytes, token_ids: Sequence[int]) -> bytes:
    """Key (16 bytes) of a full page with these ids whose previous page has the key ``parent``."""
    return hashlib.blake2b(array("q", token_ids).tobytes(), digest_size=16, key=parent).digest()


class PrefixIndex:
    """A map from key to page and its inverse."""

    def __init__(self) -> None:
        self._page_of: dict[bytes, int] = {}
        self._key_of: dict[int, bytes] = {}

    def __len__(self) -> int:
        return len(self._page_of)

    def __contains__(self, page: int) -> bool:
        return page in self._key_of

    def match(self, token_ids: Sequence[int], page_size: int, max_pages: int) -> tuple[list[int], bytes]:
        """The longest chain of indexed pages that holds a prefix of ``token_ids``.

        Args:
            token_ids: the sequence's tokens from position 0.
            page_size: tokens per page.
            max_pages: limit of the chain's length.

        Returns:
            The pages in order, and the key of the last one (:data:`ROOT` if there is none).
        """
        pages: list[int] = []
        key = ROOT
        for i in range(min(max_pages, len(token_ids) // page_size)):
            longer = page_key(key, token_ids[i * page_size : (i + 1) * page_size])
            page = self._page_of.get(longer)
            if page is None:
                break
            pages.append(page)
            key = longer
        return pages, key

    def insert(self, key: bytes, page: int) -> bool:
        """Index ``page`` under ``key``; False (and no change) if another page with that content is indexed.

        Raises:
            IntegrityError: the page is already indexed under another key.
        """
        if page in self._key_of:
            raise IntegrityError(f"page {page} is indexed twice")
        if key in self._page_of:
            return False
        self._page_of[key] = page
        self._key_of[page] = key
        return True

    def forget(self, page: int) -> None:
        """Remove ``page`` from the index: its content is about to be overwritten.

        Raises:
            IntegrityError: the page is not indexed.
        """
        if page not in self._key_of:
            raise IntegrityError(f"page {page} is to be forgotten but is not indexed")
        del self._page_of[self._key_of.pop(page)]

    def check_integrity(self) -> None:
        """Check that the two maps agree.

        Raises:
            IntegrityError: they do not.
        """
        if {page: key for key, page in self._page_of.items()} != self._key_of:
            raise IntegrityError("the two directions of the prefix index disagree")
