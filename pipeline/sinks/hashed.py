"""A file wrapper that hashes written bytes."""

from __future__ import annotations

import hashlib
import io
from typing import Any, BinaryIO

__all__ = ["HashedFile"]


class HashedFile(io.BufferedIOBase):
    """A stream that hashes written bytes and passes them on.

    After a failure, a garbage-collected writer may still write the end of its file; a closed file ignores that.
    """

    def __init__(self, file: BinaryIO) -> None:
        """``file``: the file to write to."""
        self._file = file
        self._digest = hashlib.sha256()
        self._size = 0

    def writable(self) -> bool:
        """True."""
        return True

    def write(self, data: Any) -> int:
        """Hash and pass on."""
        data = memoryview(data)
        self._digest.update(data)
        self._size += data.nbytes
        if not self._file.closed:
            self._file.write(data)
        return int(data.nbytes)

    def tell(self) -> int:
        """Number of bytes written."""
        return self._size

    @property
    def sha256(self) -> str:
        """SHA-256 of the bytes written."""
        return self._digest.hexdigest()
