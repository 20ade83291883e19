"""Base class of text sources: finds the byte range of each row in one pass; reads slices by byte range.

In a plain file a reader seeks to the start of a slice. A compressed file has to be read from its beginning, one block
at a time, so one task reads all of it (see :func:`pipeline.plan.units.read_tasks`).
"""

from __future__ import annotations

import codecs
import io
import itertools
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any, BinaryIO

import pyarrow as pa

from pipeline.errors import SourceError
from pipeline.sources import limits
from pipeline.sources.finding import suffix_of
from pipeline.sources.inflating import inflated
from pipeline.sources.source import FileSource, open_input, read_with_retries
from pipeline.sources.tabulate import tabulate
from pipeline.types import Slice, SourceFile

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

    ``size``: bytes to read; None reads to the end.
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


_CODECS = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2", ".xz": "xz"}
_NO_TEXT = {
    b"\x1f\x8b": "gzip: end its name in .gz", b"(\xb5/\xfd": "zstd: end its name in .zst",
    b"BZh91AY&SY": "bzip2: end its name in .bz2", b"\xfd7zXZ\x00": "xz: end its name in .xz",
    b"PK\x03\x04": "a ZIP archive, as .xlsx is: unpack it, or save it as CSV",
}  # fmt: skip
"""First bytes of files that are no text -> their content, and the remedy."""
_UNITS_PER_GROUP = 64
_MOST_SLICE_BYTES = 64 * 2**20
"""A slice ends at this size, however few rows it has: a task holds the rows of a slice in memory."""
_BLOCK_BYTES = 2**20
_SEQUENTIAL = -1
"""Group of a compressed file's slices: each is reached only by reading all that is before it."""
_PAGE_SLICES = 1024


def with_compression(*suffixes: str) -> tuple[str, ...]:
    """File name suffixes, each also with the suffix of every compression."""
    return tuple(suffix + codec for suffix in suffixes for codec in ("", *_CODECS))


def _codec(path: str) -> str | None:
    suffix = suffix_of(path, _CODECS)
    return None if suffix is None else _CODECS[suffix]


@contextmanager
def open_text(path: str, options: Any) -> Iterator[BinaryIO]:
    """The bytes of a text file, decompressed, and in UTF-8 where a mark says that it is in UTF-16.

    The stream is forward-only if the file is compressed or in UTF-16.

    Raises:
        OSError: it cannot be read, or is damaged.
        SourceError: it is a decompression bomb, or no text.
    """
    with _open_bytes(path, options) as stream:
        begin = stream.peek(max(map(len, _NO_TEXT)))
        for magic, content in _NO_TEXT.items():
            if begin.startswith(magic):
                raise SourceError(f"{path}: its content is {content}.")
        if begin[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
            with io.BufferedReader(_Utf16(stream), _BLOCK_BYTES) as recoded:
                yield recoded
        else:
            yield stream


@contextmanager
def _open_bytes(path: str, options: Any) -> Iterator[io.BufferedReader[Any]]:
    with open_input(path, options) as file:
        codec = _codec(path)
        if isinstance(file, io.BufferedReader) and codec is None:
            yield file
        elif codec is None:
            # Files of a remote store read a whole line, however long it is.
            with io.BufferedReader(file, _BLOCK_BYTES) as stream:  # type: ignore[type-var]
                yield stream
        else:
            # The decompressing stream closes the file, and the outer block closes it again: harmless.
            with closing(inflated(file, codec, path)) as stream:
                yield stream


class _Utf16(io.RawIOBase):
    """A stream of UTF-16 text, such as Excel and PowerShell write, in UTF-8."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._decoder = codecs.getincrementaldecoder("utf-16")()
        self._held = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        block = b"-"
        while block and not self._held:
            block = self._stream.read(_BLOCK_BYTES)
            try:
                self._held = self._decoder.decode(block, final=not block).encode()
            except UnicodeDecodeError as error:
                raise OSError(f"it begins with the mark of UTF-16, and is not: {error}") from error
        count = min(len(buffer), len(self._held))
        buffer[:count], self._held = self._held[:count], self._held[count:]
        return count


class TextSource(FileSource):
    """Rows of text files. Planning reads them once, to find where rows end."""

    def file_slices(self, number: int, rows: int) -> Iterator[Slice]:
        """A file's slices by byte range, a page in memory at a time; an error that may pass costs a second pass.

        Raises:
            SourceError: it cannot be read to its end.
        """
        file = self.files[number]
        running: Iterator[Slice] | None = None
        done = 0

        def page() -> list[Slice]:
            nonlocal running
            if running is None:
                running = itertools.islice(self._slices_of(number, file, rows), done, None)
            try:
                return list(itertools.islice(running, _PAGE_SLICES))
            except BaseException:
                running = None
                raise

        while slices := read_with_retries(page, file.path):
            yield from slices
            done += len(slices)

    def _slices_of(self, number: int, file: SourceFile, rows: int) -> Iterator[Slice]:
        per_group: int | None = None

        def piece(first: int, count: int, start: int, stop: int) -> Slice:
            group = _SEQUENTIAL if per_group is None else first // per_group
            return Slice(file=number, first_row=first, num_rows=count, group=group, start=start, stop=stop)

        with open_text(file.path, self.options) as stream:
            per_group = rows * _UNITS_PER_GROUP if stream.seekable() else None
            ends = self._ends(stream, number)
            first = count = 0
            start = stop = next(ends)
            for stop in ends:
                count += 1
                if count == rows or stop - start >= _MOST_SLICE_BYTES:
                    yield piece(first, count, start, stop)
                    first, count, start = first + count, 0, stop
            if count:
                yield piece(first, count, start, stop)

    def _read(self, slices: Sequence[Slice]) -> Iterator[pa.Table]:
        """Parse each slice's bytes."""
        number = slices[0].file
        path = self.files[number].path
        with open_text(path, self.options) as stream:
            position = 0
            for piece in slices:
                _forward(stream, position, piece.start, seekable=stream.seekable())
                window = _Window(lines_of(stream, piece.stop - piece.start))
                rows = self._parse(window, number)
                position = piece.start + window.size
                if len(rows) < piece.num_rows:
                    raise SourceError(
                        f"{path}: {len(rows)} rows at byte {piece.start}, {piece.num_rows} were planned: "
                        "it was changed during the run."
                    )
                yield tabulate(rows[: piece.num_rows], self.file_schema, self.wanted)

    def _ends(self, stream: BinaryIO, file: int) -> Iterator[int]:
        """The first byte position of a row, then the end of each row."""
        raise NotImplementedError

    def _parse(self, lines: Iterable[bytes | LongLine], file: int) -> list[Any]:
        """The rows in some lines, as :func:`~pipeline.sources.tabulate.tabulate` takes them."""
        raise NotImplementedError


class _Window:
    """Iterates over lines and counts their bytes."""

    def __init__(self, lines: Iterator[bytes | LongLine]) -> None:
        self._lines = lines
        self.size = 0

    def __iter__(self) -> Iterator[bytes | LongLine]:
        for line in self._lines:
            self.size += len(line)
            yield line


def _forward(stream: BinaryIO, position: int, target: int, *, seekable: bool) -> None:
    if seekable:
        stream.seek(target)
        return
    left = target - position
    while left > 0:
        skipped = len(stream.read(min(left, _BLOCK_BYTES)))
        if not skipped:
            return
        left -= skipped
