"""What a source is, how its files are found and identified, and how a table stream is cut into slices."""

from __future__ import annotations

import glob
import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from pipeline.errors import SourceError
from pipeline.types import Slice, SourceFile

__all__ = ["BAD", "HIDDEN", "RAW", "FileSource", "Source", "cut", "file_digest", "find_files"]

BAD = "__wedlm_bad"
"""Hidden column: why a row does not fit the source's columns (null where it does)."""
RAW = "__wedlm_raw"
"""Hidden column: such a row as text."""
HIDDEN = (BAD, RAW)

_SAMPLES = 64
_SAMPLE_BYTES = 64 * 1024


class Source(Protocol):
    """Rows in files. Picklable; ``read`` runs in tasks, everything else in the driver."""

    @property
    def files(self) -> tuple[SourceFile, ...]:
        """The files, in input order."""
        ...

    @property
    def schema(self) -> pa.Schema:
        """Columns of every table that :meth:`read` gives, hidden ones left out."""
        ...

    def slices(self, rows: int) -> Iterator[Slice]:
        """All rows in input order, ``rows`` to a slice; slices do not span files."""
        ...

    def read(self, slices: Sequence[Slice]) -> Iterator[pa.Table]:
        """One table per slice, in order; the slices are ascending and of one file."""
        ...


class FileSource:
    """Base of sources over files: holds the files and the common schema."""

    def __init__(self, files: Sequence[SourceFile], schema: pa.Schema) -> None:
        self.files: tuple[SourceFile, ...] = tuple(files)
        self.schema: pa.Schema = schema


def find_files(path: str | os.PathLike[str], suffixes: Sequence[str]) -> list[SourceFile]:
    """The files of a path, folder (recursively) or glob, sorted by key.

    In folders, files of other suffixes and everything under names that begin with ``_`` or ``.`` are left
    out; a file or glob is taken at its word.

    Raises:
        SourceError: nothing is there.
    """
    name = os.fspath(path).removeprefix("file://")
    if "://" in name:
        raise SourceError(f"input={name!r}: only local and mounted files can be read. Give a path.")
    root = Path(name).expanduser()
    if root.is_dir():
        found = [p for p in sorted(root.rglob("*")) if p.is_file() and p.name.endswith(tuple(suffixes))]
        paths = [p for p in found if not any(part[0] in "_." for part in p.relative_to(root).parts)]
        base = root
    elif root.is_file():
        paths, base = [root], root.parent
    else:
        paths = sorted(Path(p) for p in glob.glob(str(root), recursive=True) if os.path.isfile(p))
        base = Path(os.path.commonpath([p.parent for p in paths])) if paths else root
    if not paths:
        raise SourceError(
            f"input={name!r}: no file with suffix {' or '.join(suffixes)} is there. Check the path or pattern."
        )
    return [
        SourceFile(key=p.relative_to(base).as_posix(), path=str(p.absolute()), digest=file_digest(p)) for p in paths
    ]


def file_digest(path: str | os.PathLike[str]) -> str:
    """Hash of a file's size and content: of all of it up to 4 MiB, else of 64 stretches from begin to end."""
    size = os.path.getsize(path)
    digest = hashlib.blake2b(str(size).encode(), digest_size=12)
    with open(path, "rb") as file:
        if size <= _SAMPLES * _SAMPLE_BYTES:
            digest.update(file.read())
        else:
            last = size - _SAMPLE_BYTES
            for i in range(_SAMPLES):
                file.seek(last * i // (_SAMPLES - 1))
                digest.update(file.read(_SAMPLE_BYTES))
    return digest.hexdigest()


def cut(tables: Iterable[pa.Table], first_row: int, slices: Sequence[Slice]) -> Iterator[pa.Table]:
    """Cut a stream of consecutive tables, the first of which begins at row ``first_row``, into slices.

    Raises:
        SourceError: the stream ends before the last slice does: the file changed under the run.
    """
    stream = iter(tables)
    held: list[pa.Table] = []
    begin = end = first_row  # rows held are [begin, end)
    for piece in slices:
        stop = piece.first_row + piece.num_rows
        while end < stop:
            table = next(stream, None)
            if table is None:
                raise SourceError(f"the input ends at row {end}, but rows up to {stop} were planned: it was changed.")
            held.append(table)
            end += table.num_rows
            while held and begin + held[0].num_rows <= piece.first_row:
                begin += held.pop(0).num_rows
        joined = pa.concat_tables(held) if len(held) > 1 else held[0]
        yield joined.slice(piece.first_row - begin, piece.num_rows)
        held, begin = [joined.slice(stop - begin)], stop
