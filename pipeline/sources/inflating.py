"""Decompresses input files, and refuses decompression bombs."""

from __future__ import annotations

import io
import lzma
from typing import BinaryIO

import pyarrow as pa

from pipeline.errors import SourceError

MAX_RATIO = 2000
"""Bytes per compressed byte. Gzip cannot exceed 1032, so no such file is refused; the same row over and over, in
zstd, can, and so could a file of a megabyte that takes hours."""
FREE_BYTES = 64 * 2**20
"""Any file may decompress to this size: small files of equal rows compress far better than large ones."""
_BLOCK_BYTES = 2**20
_XZ_MEMORY_BYTES = 256 * 2**20
"""Of a decompressor: `xz -9` asks for 65 MiB, a crafted file for as much as 4 GiB."""


def inflated(file: BinaryIO, codec: str, path: str) -> io.BufferedReader:
    """The decompressed bytes of a file, as a forward-only stream; closing it closes the file.

    Raises:
        SourceError: while reading, if the file decompresses to more than the limits allow.
    """
    counted = _Counted(file)
    inner = _Xz(counted) if codec == "xz" else pa.CompressedInputStream(pa.PythonFile(counted, mode="r"), codec)
    return io.BufferedReader(_Inflated(inner, counted, path), _BLOCK_BYTES)


class _Counted:
    """A file that knows how much was read from it."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.size = 0

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        self.size += len(data)
        return data

    def close(self) -> None:
        self._file.close()

    @property
    def closed(self) -> bool:
        return self._file.closed


class _Xz:
    """The decompressed bytes of an ``.xz`` file, which Arrow cannot read."""

    def __init__(self, file: _Counted) -> None:
        self._file = file
        self._inner = lzma.LZMADecompressor(lzma.FORMAT_XZ, _XZ_MEMORY_BYTES)
        self._held = b""

    def read(self, size: int) -> bytes:
        """At most ``size`` bytes; empty at the end.

        Raises:
            OSError: the file is damaged or cut.
        """
        data = b""
        while not data:
            if self._inner.eof and not self._begin_next():
                return b""
            given = b""
            if self._inner.needs_input:
                given, self._held = self._held or self._file.read(_BLOCK_BYTES), b""
                if not given:
                    raise OSError("truncated xz stream")
            try:
                data = self._inner.decompress(given, size)
            except lzma.LZMAError as error:
                raise OSError(f"corrupt xz data: {error}") from error
        return data

    def _begin_next(self) -> bool:
        """Go on with a further stream, which may follow after zeros; False if there is none."""
        self._held = self._inner.unused_data.lstrip(b"\0")
        while not self._held:
            if not (block := self._file.read(_BLOCK_BYTES)):
                return False
            self._held = block.lstrip(b"\0")
        self._inner = lzma.LZMADecompressor(lzma.FORMAT_XZ, _XZ_MEMORY_BYTES)
        return True

    def close(self) -> None:
        self._file.close()


class _Inflated(io.RawIOBase):
    def __init__(self, inner: pa.NativeFile | _Xz, compressed: _Counted, path: str) -> None:
        self._inner = inner
        self._compressed = compressed
        self._path = path
        self._size = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        data = self._inner.read(len(buffer))
        buffer[: len(data)] = data
        self._size += len(data)
        if self._size > FREE_BYTES and self._size > MAX_RATIO * self._compressed.size:
            raise SourceError(
                f"{self._path}: {self._compressed.size} compressed bytes give more than {MAX_RATIO} times as many. "
                "If that is right, decompress the file beforehand."
            )
        return len(data)

    def close(self) -> None:
        if not self.closed:
            self._inner.close()
        super().close()
