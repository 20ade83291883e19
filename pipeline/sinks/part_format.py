"""The protocol of a published file format: open a part, write tables, read them back."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator
from typing import Any, BinaryIO, Protocol

import pyarrow as pa


class PartWriter(Protocol):
    """An open part file."""

    def write(self, table: pa.Table) -> None:
        """Append rows; the schema is the part's."""
        ...

    def close(self) -> None:
        """Finish the file; the caller closes the stream underneath."""
        ...


class PartFormat(Protocol):
    """A file format that common readers understand. Picklable."""

    @property
    def name(self) -> str:
        """Its name in ``RunConfig.output_format``."""
        ...

    @property
    def suffix(self) -> str:
        """File name suffix, with its dot."""
        ...

    def open(self, file: BinaryIO | io.BufferedIOBase, schema: pa.Schema) -> PartWriter:
        """Begin a part file."""
        ...

    def tables(self, file: BinaryIO, schema: pa.Schema) -> Iterator[pa.Table]:
        """Read a part back in tables of bounded size, with exactly the types of ``schema``."""
        ...

    def card(self, schema: pa.Schema) -> bytes | None:
        """Files that readers need in addition to the parts (:mod:`pipeline.sinks.hub_card`); None without any."""
        ...


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
