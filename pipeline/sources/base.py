"""What a source is, and how a table stream is cut into slices."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO, ClassVar, Protocol, TypeVar

import pyarrow as pa

from pipeline.errors import SourceError
from pipeline.sinks.cast import cast_table
from pipeline.sources.finding import digest_now
from pipeline.sources.identity import RESTORE_INPUT, stamp_now
from pipeline.storage.retry import with_retries
from pipeline.storage.urls import MisuseError, is_url, local_path, open_filesystem, open_remote
from pipeline.types import Slice, SourceFile

__all__ = ["BAD", "HIDDEN", "RAW", "FileSource", "Source", "cut", "open_input", "patiently"]

BAD = "__wedlm_bad"
"""Hidden column: why a row does not fit the source's columns (null where it does)."""
RAW = "__wedlm_raw"
"""Hidden column: such a row as text."""
HIDDEN = (BAD, RAW)

_T = TypeVar("_T")

_ATTEMPTS = 5
_FIRST_WAIT_SECONDS = 0.2


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
    """Base of sources over files: holds the files and the common schema; reads again what broke off.

    Formats are subclasses in :mod:`pipeline.sources.formats`; they set ``label`` (their name in messages) and
    ``suffixes`` (endings of their files' names), and define :meth:`over`, :meth:`slices` and :meth:`_read`.
    """

    label: ClassVar[str]
    suffixes: ClassVar[tuple[str, ...]]

    @classmethod
    def over(cls, files: Sequence[SourceFile], options: Mapping[str, Any]) -> FileSource:
        """A source over these files of one format.

        Args:
            files: one or more, in input order.
            options: keyword arguments of the files' file system, where they are URLs.

        Raises:
            SourceError: a file cannot be read, or the files contradict each other.
        """
        raise NotImplementedError

    def __init__(self, files: Sequence[SourceFile], schema: pa.Schema, options: Mapping[str, Any]) -> None:
        """``options``: keyword arguments of the files' file system, where they are URLs."""
        self.files: tuple[SourceFile, ...] = tuple(files)
        self.schema: pa.Schema = schema
        self.options = dict(options)

    def slices(self, rows: int) -> Iterator[Slice]:
        """All rows in input order, ``rows`` to a slice; slices do not span files."""
        raise NotImplementedError

    def open(self, file: int) -> BinaryIO:
        """Open one of the files."""
        return open_input(self.files[file].path, self.options)

    def read(self, slices: Sequence[Slice]) -> Iterator[pa.Table]:
        """One table per slice; after an error that may pass, from the first slice that is still to come.

        Raises:
            SourceError: the file cannot be read, also after retries, or is not what it was when it was planned.
        """
        done = failures = 0
        file = self.files[slices[0].file]
        path = file.path
        while done < len(slices):
            try:
                self._check_unchanged(file)
                for table in self._read(slices[done:]):
                    # Of a file far away every look is a request: it is looked at when all has been read.
                    if done + 1 == len(slices) or not is_url(path):
                        self._check_unchanged(file)
                    yield table
                    done, failures = done + 1, 0
                return
            except OSError as error:
                failures += 1
                if failures == _ATTEMPTS or isinstance(error, (MisuseError, FileNotFoundError, PermissionError)):
                    raise SourceError(f"{path}: cannot be read ({error}). Check it and run again.") from error
                time.sleep(_FIRST_WAIT_SECONDS * 2 ** (failures - 1))
            except pa.ArrowException as error:
                raise SourceError(f"{path}: cannot be read ({error}). Mend or remove it.") from error

    def _check_unchanged(self, file: SourceFile) -> None:
        """A file with another stamp whose digest is the same may be a copy: what it holds is settled before publishing.

        Raises:
            SourceError: its content is another.
        """
        if stamp_now(file.path, self.options) == file.stamp:
            return
        if digest_now(file.path, self.options) != file.digest:
            raise SourceError(f"{file.path}: it was changed during the run. {RESTORE_INPUT}")

    def _read(self, slices: Sequence[Slice]) -> Iterator[pa.Table]:
        """:meth:`read`, once, without looking whether the file is still the same."""
        raise NotImplementedError

    def conform(self, table: pa.Table) -> pa.Table:
        """The source's columns, exactly; hidden ones are kept."""
        hidden = [table.schema.field(name) for name in HIDDEN if name in table.column_names]
        return cast_table(table, pa.schema([*self.schema, *hidden]))


def open_input(path: str, options: Mapping[str, Any]) -> BinaryIO:
    """Open a path or URL for reading at random."""
    if not is_url(path):
        return local_path(path).open("rb")
    return open_remote(*open_filesystem(path, options))


def patiently(look: Callable[[], _T], path: str) -> _T:
    """Do something with a file; where it is far away, again after an error that may pass.

    Raises:
        SourceError: it cannot be read, or is damaged.
    """
    try:
        return with_retries(look, f"reading {path}", failure=SourceError) if is_url(path) else look()
    except (OSError, pa.ArrowException) as error:
        raise SourceError(f"{path}: cannot be read ({error}). Mend or remove it.") from error


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
