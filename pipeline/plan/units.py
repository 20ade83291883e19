"""Plans units: gives the source's slices ids, groups units into read tasks, and reads the rows of units."""

from __future__ import annotations

import hashlib
import itertools
import os
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from pipeline.errors import SourceError
from pipeline.sources.corrected_rows import CorrectedRows
from pipeline.sources.source import NO_ROWS, SlicedSource, Source
from pipeline.sources.stage_rows import StageRows
from pipeline.storage.retry import map_ahead
from pipeline.types import Slice, Stretch, Unit

_MOST = 32
"""Units of one take, read by one task."""


class LaterUnits:
    """Units that are ready to be read. Thread-safe.

    Args:
        ready: units that are ready from the beginning; drawn as they are taken.
    """

    def __init__(self, ready: Iterator[Unit]) -> None:
        self._ready: Iterator[Unit] | None = ready
        self._drawn: deque[Unit] = deque()
        self._arrived: deque[Unit] = deque()
        self._ended = False
        self._drawing = threading.Lock()
        self._changed = threading.Condition()

    def put(self, unit: Unit) -> None:
        """A unit whose rows have just been committed."""
        with self._changed:
            self._arrived.append(unit)
            self._changed.notify()

    def end(self) -> None:
        """No more units will arrive, or the run has stopped."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def take(self, seconds: float | None = 0.0) -> tuple[Unit, ...]:
        """Some units of one stage, those that arrived first; waits so many seconds (None: for ever) for one.

        Empty if none came in time, or none will come.
        """
        if units := self._of_one_stage(self._arrived) or self._draw():
            return units
        with self._changed:
            self._changed.wait_for(lambda: self._arrived or self._ended, seconds)
        return self._of_one_stage(self._arrived)

    @property
    def exhausted(self) -> bool:
        """Whether all units have been taken, and no more will come."""
        with self._drawing, self._changed:
            return self._ended and not self._arrived and not self._drawn and self._ready is None

    def _of_one_stage(self, waiting: deque[Unit]) -> tuple[Unit, ...]:
        units: list[Unit] = []
        with self._changed:
            while waiting and len(units) < _MOST and waiting[0].stage == (units or waiting)[0].stage:
                units.append(waiting.popleft())
        return tuple(units)

    def _draw(self) -> tuple[Unit, ...]:
        with self._drawing:
            while self._ready is not None and len(self._drawn) < _MOST:
                unit = next(self._ready, None)
                if unit is None:
                    self._ready = None
                else:
                    self._drawn.append(unit)
            return self._of_one_stage(self._drawn)


_MOST_UNITS_PER_TASK = 256
_MOST_UNITS_IN_ONE_PASS = 65_536
"""Of a file that can only be read from its beginning, each task reads all that is before its units. So a task has as
many as a driver can hold."""
_FEW_UNITS = 32


@dataclass(frozen=True, kw_only=True)
class ReadTask:
    """Units of a stage that one task reads in one pass: a group of a file, or a few adjacent groups."""

    units: tuple[Unit, ...]


@dataclass(frozen=True, kw_only=True)
class Work:
    """The work of an executor.

    Attributes:
        tasks: read tasks in input order; drawn once and lazily.
        units: number of units in all tasks; with ``later``, at most so many.
        unit_rows: rows of the largest unit.
        later: units of a chain's later stages, to be read as they come; None if there are none.
        traced: whether rows are traced for the report at the end.
    """

    tasks: Iterable[ReadTask]
    units: int
    unit_rows: int
    later: LaterUnits | None = None
    traced: bool = False

    def end(self) -> None:
        """Later units are not wanted any more."""
        if self.later is not None:
            self.later.end()

    @classmethod
    def of(cls, units: Iterable[Unit]) -> Work:
        """From a list of units."""
        units = list(units)
        most = max((unit.num_rows for unit in units), default=0)
        return cls(tasks=read_tasks(units), units=len(units), unit_rows=most)


def check_any_rows(units: int, given: Any) -> None:
    """Refuse an input without rows: the rule of all commands and sources. ``given``: the configuration's ``input``.

    Raises:
        SourceError: there are no units.
    """
    if not units:
        name = f"input={given!r}" if isinstance(given, (str, os.PathLike)) else f"input of type {type(given).__name__}"
        raise SourceError(f"{name}: {NO_ROWS}")


def plan_units(source: SlicedSource, unit_rows: int, fingerprint: str, limit: int | None = None) -> Iterator[Unit]:
    """All units of the source, each of one file, in input order; the same on every run over the same files.

    Args:
        source: the input.
        unit_rows: rows per unit.
        fingerprint: hash of everything that changes the output.
        limit: rows at most; the last unit is shortened.
    """
    for index, rows in enumerate(_limited(source.slices(unit_rows), limit)):
        file = source.files[rows.file]
        stretch = Stretch(file_key=file.key, first_row=rows.first_row, num_rows=rows.num_rows)
        yield Unit(unit_id=unit_id_of(fingerprint, [(stretch, file.identity)]), index=index, rows=rows)


def _limited(slices: Iterable[Slice], limit: int | None) -> Iterator[Slice]:
    left = limit
    for piece in slices:
        if left is None:
            yield piece
        elif left > 0:
            # A byte range cannot be shortened by rows, so it stays; readers stop at num_rows.
            yield replace(piece, num_rows=min(left, piece.num_rows))
            left -= piece.num_rows
        else:
            return


def unit_id_of(fingerprint: str, rows: Iterable[tuple[Stretch, str]]) -> str:
    """The id of a unit from its rows and the digests of their files."""
    texts = (f"{own.file_key}\x1f{digest}\x1f{own.first_row}\x1f{own.num_rows}" for own, digest in rows)
    return hashlib.blake2b("\x1f".join([fingerprint, *texts]).encode(), digest_size=10).hexdigest()


def read_tasks(units: Iterable[Unit]) -> Iterator[ReadTask]:
    """Group units in input order into tasks that read adjacent rows in one pass; one task is in memory at a time."""
    held: list[Unit] = []
    for unit in units:
        if held and not _reads_with(held, unit):
            yield ReadTask(units=tuple(held))
            held = []
        held.append(unit)
    if held:
        yield ReadTask(units=tuple(held))


def _reads_with(held: list[Unit], unit: Unit) -> bool:
    """Whether ``unit`` should be read by the same task as the units in ``held``."""
    last = held[-1]
    # Starting a task costs about as much as reading a few units; skipping a row costs as much as reading it.
    adjacent = last.index + 1 == unit.index and len(held) < _FEW_UNITS
    if last.rows.file != unit.rows.file or unit.more:
        # Tasks over several files are for small ones: a file of several units is read in parallel.
        return adjacent and _is_begun_by(last) and unit.rows.first_row == 0
    if unit.rows.group < 0:
        return len(held) < _MOST_UNITS_IN_ONE_PASS
    return len(held) < _MOST_UNITS_PER_TASK and (adjacent or last.rows.group == unit.rows.group)


def _is_begun_by(unit: Unit) -> bool:
    """Whether a unit begins with the first row of its file, and so, where the next unit is of another, is all of it."""
    return bool(unit.more) or (unit.rows.first_row == 0 and unit.rows.group >= 0)


def read_units(source: Source, units: Sequence[Unit]) -> Iterator[pa.Table]:
    """One table per unit of a read task, in order. Files with a single slice to read are read several at a time."""
    if isinstance(source, (StageRows, CorrectedRows)):
        yield from map(source.rows_of, units)
        return
    assert isinstance(source, SlicedSource)
    slices = (piece for unit in units for piece in unit.slices)
    tables = _read_files(source, (list(own) for _, own in itertools.groupby(slices, key=lambda piece: piece.file)))
    for unit in units:
        own = list(itertools.islice(tables, len(unit.slices)))
        yield own[0] if len(own) == 1 else pa.concat_tables(own, promote_options="default")


def _read_files(source: SlicedSource, files: Iterable[list[Slice]]) -> Iterator[pa.Table]:
    for alone, some in itertools.groupby(files, key=lambda slices: len(slices) == 1):
        if alone:
            yield from itertools.chain.from_iterable(map_ahead(lambda slices: list(source.read(slices)), some))
        else:
            yield from itertools.chain.from_iterable(map(source.read, some))
