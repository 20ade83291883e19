"""The protocol of a published file format."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import BinaryIO, Protocol

import pyarrow as pa

__all__ = ["PartFormat", "PartWriter"]


class PartWriter(Protocol):
    """An open part file."""

    def write(self, table: pa.Table) -> None:
        """Append rows; the schema is the part's."""
        ...

    def close(self) -> None:
        """Finish the file; the caller closes the stream underneath."""
        ...


class PartFormat(Protocol):
    """A file format that plain readers know. Picklable."""

    @property
    def name(self) -> str:
        """What ``RunConfig.output_format`` calls it."""
        ...

    @property
    def suffix(self) -> str:
        """File name ending, with its dot."""
        ...

    def open(self, file: BinaryIO | io.BufferedIOBase, schema: pa.Schema) -> PartWriter:
        """Begin a part file."""
        ...

    def tables(self, file: BinaryIO, schema: pa.Schema) -> Iterator[pa.Table]:
        """Read a part back, piece by piece, with exactly the types of ``schema``."""
        ...
