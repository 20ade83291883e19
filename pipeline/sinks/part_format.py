"""The protocol of a published file format: open a part, write tables, read them back."""

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
        """Files that readers need in addition to the parts (:mod:`pipeline.sinks.dataset_card`); None without any."""
        ...
