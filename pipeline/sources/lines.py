"""Splits a byte stream into lines, with a limit on the memory that one line may take."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

from pipeline.sources import limits

__all__ = ["LongLine", "lines_of"]

_KEPT_BYTES = 4096
_STEP_BYTES = 2**20


@dataclass(frozen=True, kw_only=True)
class LongLine:
    """A line that is too long for a row.

    Attributes:
        size: in bytes, its end included.
        head: its first bytes.
    """

    size: int
    head: bytes

    def __len__(self) -> int:
        return self.size


def lines_of(stream: BinaryIO, size: int | None = None) -> Iterator[bytes | LongLine]:
    """The lines of a stream from where it is, with their ends.

    Args:
        stream: is read a line at a time.
        size: bytes to read; None reads to the end.
    """
    left = size
    most = limits.MAX_ROW_BYTES + 1  # with the line's end
    while left is None or left > 0:
        line = stream.readline(most if left is None else min(most, left))
        if not line:
            return
        whole: bytes | LongLine = line
        if len(line) == most and not line.endswith(b"\n"):
            rest = _skip_line(stream, None if left is None else left - len(line))
            whole = LongLine(size=len(line) + rest, head=line[:_KEPT_BYTES])
        yield whole
        if left is not None:
            left -= len(whole)


def _skip_line(stream: BinaryIO, left: int | None) -> int:
    """Read to the end of a line; how many bytes those were."""
    skipped = 0
    while left is None or skipped < left:
        piece = stream.readline(_STEP_BYTES if left is None else min(_STEP_BYTES, left - skipped))
        skipped += len(piece)
        if not piece or piece.endswith(b"\n"):
            break
    return skipped
