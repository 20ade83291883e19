"""Checks that the input has not changed since rows were generated from it.

Each unit's ledger record holds a checksum of its input rows. A file with an unchanged stamp (see
:mod:`pipeline.sources.identity`) is not read again. If the stamp has changed, the committed units of the file are read
again and their checksums compared; a difference ends the run before anything of the file is published.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace

import pyarrow as pa

from pipeline.commit.index import Index, PlannedUnits
from pipeline.commit.index.scratch import Scratch
from pipeline.commit.run_record import FileIdentity
from pipeline.errors import FingerprintError, SourceError
from pipeline.plan.job import Job
from pipeline.plan.retry_failed import kept_sha256, load_place, with_previous
from pipeline.plan.units import read_tasks, read_units
from pipeline.sinks.staged import data_checksum, row_digests
from pipeline.sources import FileSource, stamp_now
from pipeline.sources.source import BAD, Source
from pipeline.storage.urls import is_url
from pipeline.types import SourceFile, Unit, derived_row_ids

_THREADS = 16


def touched(source: Source, known: Mapping[str, FileIdentity]) -> list[int]:
    """Numbers of the source's files whose stamp differs from the one that an earlier run recorded."""
    return [
        number for number, file in enumerate(source.files) if file.key in known and known[file.key].stamp != file.stamp
    ]


def check_renamed(source: Source, known: Mapping[str, FileIdentity], url: str) -> None:
    """Refuse a file that the run has read under another name, which is gone: its rows would be in the output twice.

    Raises:
        FingerprintError: names both.
    """
    there = {file.key for file in source.files}
    gone = {file.digest: key for key, file in known.items() if key not in there}
    for number, file in enumerate(source.files):
        if file.key in known or file.digest not in gone or not isinstance(source, FileSource):
            continue
        if next(source.file_slices(number, 1), None) is not None:
            raise FingerprintError(
                f"{url}: input file {gone[file.digest]!r}, which this run has read, is gone, and {file.key!r} has the "
                "same content: its rows would be in the output twice. Give the file its name back, or the input as it "
                "was given when the run was begun. Or start again with "
                "mode='new'."
            )


def changed_since_planned(source: Source) -> tuple[list[int], list[str]]:
    """Compare the stamps of the source's files with those at planning.

    Returns:
        Numbers of the files whose stamp has changed, and paths of the files that are gone. Rows of the latter were
        checked when they were read.

    Raises:
        SourceError: the file system does not answer.
    """
    options = source.options if isinstance(source, FileSource) else {}

    def stamp(file: SourceFile) -> str | None:
        try:
            return stamp_now(file.path, options)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise SourceError(f"{file.path}: cannot be read ({error}). Check it and run again.") from error

    remote = any(is_url(file.path) for file in source.files)
    with ThreadPoolExecutor(_THREADS if remote else 1) as threads:
        stamps = list(threads.map(stamp, source.files))
    pairs = list(zip(source.files, stamps, strict=True))
    changed = [number for number, (file, now) in enumerate(pairs) if now is not None and now != file.stamp]
    return changed, [file.path for file, now in pairs if now is None]


def check_committed_rows(job: Job, index: Index, files: Collection[int]) -> int:
    """Read the committed units of these files again and compare their checksums; returns the number of units.

    Of a file whose failed rows were corrected, only the rows that succeeded are compared.

    Raises:
        FingerprintError: the rows of a unit have changed.
        SourceError: a file can no longer be read as it was planned.
    """
    count = 0
    wanted = frozenset(files)
    if not wanted:
        return 0
    source = job.source
    for task in read_tasks(_committed(index, wanted)):
        for unit, table in zip(task.units, read_units(source, task.units), strict=True):
            count += 1
            same = data_checksum(table, table.column_names) == unit.input_sha256
            if not same and not _is_kept(table, unit, job, index):
                raise FingerprintError(
                    f"{_where(source, unit)}: its content changed after the rows were generated. {source.remedy}"
                )
    return count


def _is_kept(table: pa.Table, unit: Unit, job: Job, index: Index) -> bool:
    """Whether the rows of a unit that succeeded are those that were read, where its files were corrected."""
    if not any(job.source.files[piece.file].begun for piece in unit.slices):
        return False
    (now,) = with_previous([replace(unit, attempt=2)], index, derived_ids=job.rows.derived_ids)
    if now.previous is None or not now.kept_sha256:
        return False
    digests = row_digests(table, job.source.schema.names)
    return kept_sha256(load_place(job, now.previous), digests, job.config.column_prefix, job.apart) == now.kept_sha256


def _where(source: Source, unit: Unit) -> str:
    file, own = source.files[unit.rows.file], unit.rows
    others = f" (or of the {len(unit.more)} files with it)" if unit.more else ""
    return f"input file {file.path!r}: rows {own.first_row} to {own.first_row + own.num_rows - 1}{others}"


def _committed(index: Index, files: frozenset[int]) -> Iterator[Unit]:
    """Planned units of these files that have a record, each with the recorded checksum of its input rows."""
    return (unit for unit in index.committed_units() if any(piece.file in files for piece in unit.slices))


def check_unique_ids(source: Source, units: PlannedUnits, column: str, *, derives: bool = False) -> None:
    """Check that no id is null or empty and no id occurs twice; a row that could not be read needs none.

    Writes about 30 bytes per row to a temporary database. ``derives``: a row may lack its id.

    Raises:
        SourceError: a null, empty or repeated id, with the row it is in.
    """
    with closing(Scratch()) as scratch:
        scratch.run("CREATE TABLE ids (hash BLOB, row INTEGER)")
        hashes = itertools.chain.from_iterable(_hashes(source, units, column, derives))
        scratch.write("INSERT INTO ids VALUES (?, ?)", ((own, row) for row, own in enumerate(hashes)))
        same = scratch.one("SELECT min(row), max(row) FROM ids GROUP BY hash HAVING count(*) > 1 ORDER BY 1 LIMIT 1")
    if same is not None:
        raise SourceError(
            f"id_column={column!r}: input rows {same[0]} and {same[1]} (counted from 0 over all files) have "
            "the same id. Make ids unique, or leave id_column out."
        )


def _hashes(source: Source, units: PlannedUnits, column: str, derives: bool) -> Iterator[Iterator[bytes]]:
    """A 128-bit hash of the id of each row; accidental collisions are negligible at any input size."""
    for task in read_tasks(units):
        for unit, table in zip(task.units, read_units(source, task.units), strict=True):
            ids = table[column].to_pylist()
            derived = derived_row_ids(unit.stretches(source.files))
            faults = table[BAD].to_pylist() if BAD in table.column_names else [None] * len(ids)
            ids = [
                own if value in (None, "") and (derives or fault is not None) else value
                for value, own, fault in zip(ids, derived, faults, strict=True)
            ]
            _check_ids(ids, source, unit, column)
            yield (hashlib.blake2b(str(value).encode(), digest_size=16).digest() for value in ids)


def _check_ids(ids: list[object], source: Source, unit: Unit, column: str) -> None:
    for offset, value in enumerate(ids):
        if value in (None, "") or isinstance(value, (list, dict, float)):
            places = [(piece.file, piece.first_row + i) for piece in unit.slices for i in range(piece.num_rows)]
            file, row = places[offset]
            raise SourceError(
                f"id_column={column!r}: {value!r} in row {row} of {source.files[file].path} is not an id. "
                "Ids are text or integers, never null or empty."
            )
