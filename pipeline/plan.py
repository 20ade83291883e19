"""What is left to do: the source's slices as units with an identity, minus what is committed."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pipeline.errors import SourceError
from pipeline.sources.base import Source
from pipeline.types import Slice, SourceFile, Unit

__all__ = ["ReadTask", "Work", "check_unique_ids", "derived_row_id", "plan_units", "read_tasks"]

_MOST_UNITS_PER_TASK = 256
_FEW_UNITS = 32


@dataclass(frozen=True, kw_only=True)
class ReadTask:
    """Units of one group of one file, read by one task in one pass."""

    units: tuple[Unit, ...]


@dataclass(frozen=True, kw_only=True)
class Work:
    """What an executor is to do.

    Attributes:
        tasks: in input order; read once, as far as the work has come.
        units: how many they hold together.
        unit_rows: rows of the largest.
    """

    tasks: Iterable[ReadTask]
    units: int
    unit_rows: int

    @classmethod
    def of(cls, units: Sequence[Unit]) -> Work:
        """Work of units that are all at hand."""
        most = max((unit.rows.num_rows for unit in units), default=0)
        return cls(tasks=read_tasks(units, ()), units=len(units), unit_rows=most)


def plan_units(source: Source, unit_rows: int, fingerprint: str, limit: int | None = None) -> list[Unit]:
    """All units of the source, in input order; the same on every run over the same files.

    Args:
        source: what to cut.
        unit_rows: rows per unit.
        fingerprint: hash of everything that changes the output.
        limit: rows at most; the last unit is shortened.
    """
    units = []
    for index, rows in enumerate(_limited(source.slices(unit_rows), limit)):
        units.append(Unit(unit_id=_unit_id(source.files[rows.file], rows, fingerprint), index=index, rows=rows))
    return units


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


def read_tasks(units: Iterable[Unit], done: Collection[str]) -> list[ReadTask]:
    """The units that are not done, gathered so that a task reads neighbouring rows once."""
    tasks: list[ReadTask] = []
    held: list[Unit] = []
    for unit in units:
        if unit.unit_id in done:
            continue
        if held and not _together(held, unit):
            tasks.append(ReadTask(units=tuple(held)))
            held = []
        held.append(unit)
    if held:
        tasks.append(ReadTask(units=tuple(held)))
    return tasks


def _together(held: list[Unit], unit: Unit) -> bool:
    """Whether ``unit`` is better read with the units held than by another task."""
    last = held[-1]
    if last.rows.file != unit.rows.file or len(held) >= _MOST_UNITS_PER_TASK:
        return False
    # Starting a task costs about as much as reading a few units; rows that are skipped cost as much as others.
    adjacent = last.index + 1 == unit.index and len(held) < _FEW_UNITS
    return adjacent or last.rows.group == unit.rows.group


def derived_row_id(file: SourceFile, row: int) -> str:
    """Row id where no id column is configured: file key and row number, stable under re-runs and moves."""
    return f"{file.key}:{row}"


def check_unique_ids(source: Source, units: Iterable[Unit], column: str) -> None:
    """Every id is there and occurs once; holds eight bytes per row.

    Raises:
        SourceError: a null or repeated id, with the row it is in.
    """
    hashes: list[np.ndarray] = []
    for task in read_tasks(units, ()):
        tables = source.read([unit.rows for unit in task.units])
        for unit, table in zip(task.units, tables, strict=True):
            hashes.append(_hashed(table[column].to_pylist(), source.files[unit.rows.file], unit, column))
    if not hashes:
        return
    every = np.concatenate(hashes)
    ordered = np.argsort(every, kind="stable")
    same = np.flatnonzero(every[ordered][1:] == every[ordered][:-1])
    if len(same):
        first, second = int(ordered[same[0]]), int(ordered[same[0] + 1])
        raise SourceError(
            f"id_column={column!r}: input rows {first} and {second} (counted from 0 over all files) have the same id. "
            "Make ids unique, or leave id_column out."
        )


def _hashed(ids: list[object], file: SourceFile, unit: Unit, column: str) -> np.ndarray:
    for offset, value in enumerate(ids):
        if value is None or isinstance(value, (list, dict, float)):
            raise SourceError(
                f"id_column={column!r}: {value!r} in row {unit.rows.first_row + offset} of {file.path} is not an id. "
                "Ids are text or integers, never null."
            )
    digests = (hashlib.blake2b(str(value).encode(), digest_size=8).digest() for value in ids)
    return np.frombuffer(b"".join(digests), np.uint64)
