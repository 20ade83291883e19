"""The source protocol, the base class of sources over files, and cutting a stream of tables into slices."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import MappingProxyType
from typing import Any, BinaryIO, ClassVar, Protocol, TypeVar, runtime_checkable

import pyarrow as pa

from pipeline.errors import SourceError
from pipeline.sinks.formats import cast_table
from pipeline.sources.identity import RESTORE_INPUT, digest_now, stamp_now
from pipeline.sources.types import ALL_COLUMNS, Partitions, Wanted, fits, spelled_as, text_field
from pipeline.storage.retry import BEFORE_THE_RUN, map_ahead, with_retries
from pipeline.storage.urls import is_url, local_path, open_filesystem, open_remote
from pipeline.types import Slice, SourceFile, Unread

BAD = "__wedlm_bad"
"""Hidden column: why a row does not fit the source's columns (null if it does)."""
RAW = "__wedlm_raw"
"""Hidden column: the text of a row that does not fit the source's columns."""
HIDDEN = (BAD, RAW)
_SLICES_AHEAD = 1024
"""Slices of a file that are found before the caller has come to it."""

_SMALL_BYTES = 2**20
_MANY, _FEW = 16, 4
_MOST_FAULTS = 5
_SHOWN = 400
"""Characters of an error of Arrow in a message."""
_LOG = logging.getLogger(__name__)
NO_ROWS = "it has no rows, so there is nothing to generate for. Give an input of one row at least."

_T = TypeVar("_T")


class Source(Protocol):
    """The input of a job: columns, files, and remedies for faults. Picklable.

    How rows are got differs: an input's are cut and read (:class:`SlicedSource`), those of a stage before are where it
    has put them (:class:`pipeline.sources.stage_rows.StageRows`), and batches of a Ray Data pipeline are given.
    """

    @property
    def files(self) -> tuple[SourceFile, ...]:
        """The files, in input order."""
        ...

    @property
    def input_format(self) -> str:
        """The kind of the rows, as in ``RunConfig.input_format``: "rows", or a dialect with known columns."""
        ...

    @property
    def schema(self) -> pa.Schema:
        """Columns of every table of rows, without the hidden ones."""
        ...

    @property
    def remedy(self) -> str:
        """The remedy, as sentences, for a file that was changed after rows of it were read."""
        ...


@runtime_checkable
class SlicedSource(Source, Protocol):
    """An input that is cut into slices in the driver, and read in tasks."""

    def slices(self, rows: int) -> Iterator[Slice]:
        """All rows in input order, ``rows`` to a slice; slices do not span files."""
        ...

    def read(self, slices: Sequence[Slice]) -> Iterator[pa.Table]:
        """One table per slice, in order. The slices must be ascending and of one file."""
        ...

    def begun_with(self, digests: Mapping[str, str]) -> None:
        """See :meth:`FileSource.begun_with`."""
        ...


class FileSource:
    """Base of sources over files: holds the files and their common schema, and retries reads.

    Formats are subclasses in :mod:`pipeline.sources.formats`; they set ``label`` (name in messages), ``suffixes``
    (endings of file names) and, if any, ``magic`` (first bytes of files), and define :meth:`over`, :meth:`file_slices`
    and :meth:`_read`. A dialect of a format is a subclass of it, with the same suffixes; it is chosen by its
    ``input_format``, the name in ``RunConfig.input_format``, or by :meth:`recognises`. A format with an
    ``input_format`` of its own that is no dialect has to be asked for.

    Attributes:
        files: in input order.
        file_schema: columns of the files.
        schema: these, and those that the files' folders add.
        options: keyword arguments of the files' file system.
        remedy: see :class:`Source`.
        base: the folder that the files' keys are relative to; empty for rows in memory.
        unread: the files below the input that are not among these.
        wanted: the columns that the job asks for.
        contradictions: the error of each column that the files contradict each other in; such columns are left out.
    """

    base: str = ""
    unread: Unread = Unread()
    magic: ClassVar[bytes] = b""
    label: ClassVar[str]
    suffixes: ClassVar[tuple[str, ...]]
    remedy: str = RESTORE_INPUT
    wanted: Wanted = ALL_COLUMNS
    contradictions: Mapping[str, SourceError] = MappingProxyType({})
    input_format: ClassVar[str] = "rows"

    @classmethod
    def recognises(cls, file: SourceFile, options: Mapping[str, Any]) -> bool:
        """Whether a file's beginning shows that it is of this dialect; asked of dialects only.

        Raises:
            SourceError: the file cannot be read.
        """
        return False

    @classmethod
    def over(cls, files: Sequence[SourceFile], options: Mapping[str, Any]) -> FileSource:
        """A source over these files of one format.

        Raises:
            SourceError: a file cannot be read, or the files contradict each other.
        """
        raise NotImplementedError

    def __init__(self, files: Sequence[SourceFile], schema: pa.Schema, options: Mapping[str, Any]) -> None:
        """``options``: keyword arguments of the files' file system, where they are URLs."""
        self.files: tuple[SourceFile, ...] = tuple(files)
        self.file_schema: pa.Schema = schema
        self._partitions = Partitions.of(self.files, schema.names)
        named = {name for file in self.files for name, _ in file.partitions}
        for name in sorted(named.intersection(schema.names)):
            _LOG.warning(
                "column %r: the files have it, and folders %s=... name it too. The files' values count, and it is null "
                "in files without it. Rename the folders to keep both.", name, name,
            )  # fmt: skip
        self.schema: pa.Schema = pa.schema([*schema, *self._partitions.fields], metadata=schema.metadata)
        self.options = dict(options)

    def fits(self, own: pa.DataType, table: pa.DataType) -> bool:
        """Whether values that these files hold as ``own`` can be held as ``table``; single values may still not fit."""
        return fits(own, table)

    def want(self, wanted: Wanted) -> None:
        """Enter the columns that the job asks for. A folder ``stop=5`` gives the text "5"."""
        self.wanted = wanted
        self._read_as_text(wanted.texts.intersection(field.name for field in self._partitions.fields))

    def _read_as_text(self, names: Collection[str]) -> None:
        if names:
            self.widen(pa.schema([text_field(f.name) if f.name in names else f for f in self.schema]))

    def widen(self, table: pa.Schema) -> None:
        """Take the columns of ``table`` and their types, those that the files lack as null; others follow.

        Values of these files must fit the types.
        """
        own = [field for field in self.schema if field.name not in table.names]
        folders = {field.name for field in self._partitions.fields}
        metadata = self.file_schema.metadata
        there = {field.name: field for field in self.file_schema}
        table_fields = [spelled_as(field, there.get(field.name, field)) for field in table]
        kept = [field for field in (*table_fields, *own) if field.name not in folders]
        self._partitions = self._partitions.cast({field.name: field.type for field in table})
        self.file_schema = pa.schema(kept, metadata=metadata)
        self.schema = pa.schema([*kept, *self._partitions.fields], metadata=metadata)

    def begun_with(self, digests: Mapping[str, str]) -> None:
        """Enter the first digests of files that were corrected since (file key -> digest), so that unit ids stay."""
        self.files = tuple(replace(file, begun=digests.get(file.key, "")) for file in self.files)

    def slices(self, rows: int) -> Iterator[Slice]:
        """All rows in input order, ``rows`` to a slice; slices do not span files.

        Small files are begun ahead of the caller, so that many of them do not cost a wait each.
        """

        def begin(number: int) -> tuple[list[Slice], Iterator[Slice]]:
            slices = self.file_slices(number, rows)
            ahead = _SLICES_AHEAD if self.files[number].size <= _SMALL_BYTES else 0
            return list(itertools.islice(slices, ahead)), slices

        for first, rest in map_ahead(begin, range(len(self.files))):
            yield from first
            yield from rest

    def file_slices(self, number: int, rows: int) -> Iterator[Slice]:
        """The rows of a file in order, ``rows`` to a slice."""
        raise NotImplementedError

    def read(self, slices: Sequence[Slice]) -> Iterator[pa.Table]:
        """One table per slice; after an error that may pass, reading starts again at the next slice.

        Raises:
            SourceError: the file cannot be read, also after retries, or has changed since it was planned.
        """
        done = 0
        file = self.files[slices[0].file]
        tables: Iterator[pa.Table] | None = None

        def next_table() -> pa.Table | None:
            nonlocal tables
            try:
                if tables is None:
                    self._check_unchanged(file)
                    tables = self._read(slices[done:])
                with damage_named(file.path):
                    table = next(tables, None)
                # Each check of a remote file is a request: it is checked once, after the last slice.
                if done + 1 == len(slices) or not is_url(file.path):
                    self._check_unchanged(file)
                return table
            except OSError:
                tables = None
                raise

        while done < len(slices):
            table = with_retries(next_table, f"reading {file.path}", failure=SourceError)
            if table is None:
                return
            yield self._partitions.add_to(table, slices[0].file, HIDDEN)
            done += 1

    def _check_unchanged(self, file: SourceFile) -> None:
        """Check a file against the plan. If only its stamp has changed, its rows are compared before publishing.

        Raises:
            SourceError: its digest differs.
        """
        if stamp_now(file.path, self.options) == file.stamp:
            return
        if digest_now(file.path, self.options) != file.digest:
            raise SourceError(f"{file.path}: it was changed during the run. {self.remedy}")

    def _read(self, slices: Sequence[Slice]) -> Iterator[pa.Table]:
        """:meth:`read`, once, without looking whether the file is still the same."""
        raise NotImplementedError

    def conform(self, table: pa.Table) -> pa.Table:
        """Cast a table to the files' columns; hidden columns are kept."""
        hidden = [table.schema.field(name) for name in HIDDEN if name in table.column_names]
        return cast_table(table, pa.schema([*self.file_schema, *hidden]))


def open_input(path: str, options: Mapping[str, Any]) -> BinaryIO:
    """Open a path or URL for random access."""
    if not is_url(path):
        return local_path(path).open("rb")
    return open_remote(*open_filesystem(path, options))


def read_with_retries(read: Callable[[], _T], path: str) -> _T:
    """Read something of a file; retry errors that may pass if the file is remote.

    Raises:
        SourceError: it cannot be read, or is damaged.
    """

    def once() -> _T:
        with damage_named(path):
            return read()

    if is_url(path):
        return with_retries(once, f"reading {path}", failure=SourceError, remedy=BEFORE_THE_RUN)
    try:
        return once()
    except OSError as error:
        raise SourceError(f"{path}: cannot be read ({error}). Correct or remove it.") from error


@contextmanager
def damage_named(path: str) -> Iterator[None]:
    """A block that reads a file's content; errors of Arrow's readers become one that names the file.

    Errors of the system and of stores (they have a number, or a type of their own) pass: another attempt may succeed.

    Raises:
        SourceError: the file is damaged, or holds something that Arrow cannot read.
    """
    try:
        yield
    except (pa.ArrowException, OverflowError, UnicodeDecodeError) as error:
        cause: Exception = error
    except OSError as error:
        if type(error) is not OSError or error.errno is not None:
            raise
        cause = error
    else:
        return
    raise SourceError(f"{path}: cannot be read ({_cause(cause)}). Correct or remove it.") from cause


def _cause(error: Exception) -> str:
    """An error of Arrow in one line."""
    if isinstance(error, UnicodeDecodeError):
        shown = bytes(error.object).decode("utf-8", "backslashreplace")[:_SHOWN]
        line = "".join(one if one.isprintable() else ascii(one)[1:-1] for one in shown)
        return f"a name or text in it is not UTF-8: '{line}'"
    return str(error).strip().splitlines()[0].rstrip(".")[:_SHOWN] if str(error).strip() else type(error).__name__


def each_of(files: Sequence[SourceFile], look: Callable[[SourceFile], _T], *, footers: bool = False) -> list[_T]:
    """The result of ``look`` for each file, some at a time: many if they are small, few if it may hold much of one.

    ``footers``: whether it reads little of a file, however large.

    Raises:
        SourceError: files cannot be read; the message has the first five.
    """

    def attempt(file: SourceFile) -> _T | SourceError:
        try:
            return look(file)
        except SourceError as error:
            return error

    small = footers or max((file.size for file in files), default=0) <= _SMALL_BYTES
    results: list[_T] = []
    faults: list[SourceError] = []
    for result in map_ahead(attempt, files, _MANY if small else _FEW):
        if not isinstance(result, SourceError):
            results.append(result)
            continue
        faults.append(result)
        if len(faults) == _MOST_FAULTS:
            break
    if faults:
        raise SourceError("\n".join(map(str, faults))) from faults[0]
    return results


def cut(path: str, tables: Iterable[pa.Table], first_row: int, slices: Sequence[Slice]) -> Iterator[pa.Table]:
    """Cut a stream of consecutive tables of a file, beginning at row ``first_row``, into slices.

    Raises:
        SourceError: the stream ends before the last slice: the file changed during the run, or is damaged.
    """
    stream = iter(tables)
    held: list[pa.Table] = []
    begin = end = first_row  # rows held are [begin, end)
    for piece in slices:
        stop = piece.first_row + piece.num_rows
        while end < stop:
            table = next(stream, None)
            if table is None:
                raise SourceError(
                    f"{path}: it ends at row {end}, but its metadata count {stop} rows or more. It is damaged, or was "
                    "changed during the run. Correct or remove it."
                )
            held.append(table)
            end += table.num_rows
            while held and begin + held[0].num_rows <= piece.first_row:
                begin += held.pop(0).num_rows
        joined = pa.concat_tables(held) if len(held) > 1 else held[0]
        yield joined.slice(piece.first_row - begin, piece.num_rows)
        held, begin = [joined.slice(stop - begin)], stop
