"""A file that is hashed while it is written."""

from __future__ import annotations

import hashlib
import io
from typing import Any, BinaryIO

__all__ = ["HashedFile"]


class HashedFile(io.BufferedIOBase):
    """A stream that hashes what passes through it.

    A writer that is collected after a failure still writes its file's end; by then there is nowhere to write to.
    """

    def __init__(self, file: BinaryIO) -> None:
        """``file``: where everything goes."""
        self._file = file
        self._digest = hashlib.sha256()
        self._size = 0

    def writable(self) -> bool:
        """It is."""
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
        """Bytes that have passed."""
        return self._size

    @property
    def sha256(self) -> str:
        """Of what has passed."""
        return self._digest.hexdigest()
