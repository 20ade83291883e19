"""Plans units: gives the source's slices ids, and groups units into read tasks."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from pipeline.errors import SourceError
from pipeline.sources.base import NO_ROWS, Source
from pipeline.types import Slice, SourceFile, Unit

__all__ = ["ReadTask", "Work", "check_any_rows", "plan_units", "read_tasks"]

_MOST_UNITS_PER_TASK = 256
_FEW_UNITS = 32


@dataclass(frozen=True, kw_only=True)
class ReadTask:
    """Units of one group of one file, read by one task in one pass."""

    units: tuple[Unit, ...]


@dataclass(frozen=True, kw_only=True)
class Work:
    """The work of an executor.

    Attributes:
        tasks: read tasks in input order; drawn once and lazily.
        units: number of units in all tasks.
        unit_rows: rows of the largest unit.
    """

    tasks: Iterable[ReadTask]
    units: int
    unit_rows: int

    @classmethod
    def of(cls, units: Iterable[Unit]) -> Work:
        """From a list of units."""
        units = list(units)
        most = max((unit.rows.num_rows for unit in units), default=0)
        return cls(tasks=read_tasks(units), units=len(units), unit_rows=most)


def check_any_rows(units: int, given: Any) -> None:
    """Refuse an input without rows: the rule of all commands and sources. ``given``: the configuration's ``input``.

    Raises:
        SourceError: there are no units.
    """
    if not units:
        name = f"input={given!r}" if isinstance(given, (str, os.PathLike)) else f"input of type {type(given).__name__}"
        raise SourceError(f"{name}: {NO_ROWS}")


def plan_units(source: Source, unit_rows: int, fingerprint: str, limit: int | None = None) -> Iterator[Unit]:
    """All units of the source, in input order; the same on every run over the same files.

    Args:
        source: the input.
        unit_rows: rows per unit.
        fingerprint: hash of everything that changes the output.
        limit: rows at most; the last unit is shortened.
    """
    for index, rows in enumerate(_limited(source.slices(unit_rows), limit)):
        yield Unit(unit_id=_unit_id(source.files[rows.file], rows, fingerprint), index=index, rows=rows)


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


def _unit_id(file: SourceFile, rows: Slice, fingerprint: str) -> str:
    text = f"{fingerprint}\x1f{file.key}\x1f{file.digest}\x1f{rows.first_row}\x1f{rows.num_rows}"
    return hashlib.blake2b(text.encode(), digest_size=10).hexdigest()


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
    if last.rows.file != unit.rows.file or len(held) >= _MOST_UNITS_PER_TASK:
        return False
    # Starting a task costs about as much as reading a few units; skipping a row costs as much as reading it.
    adjacent = last.index + 1 == unit.index and len(held) < _FEW_UNITS
    return adjacent or last.rows.group == unit.rows.group
