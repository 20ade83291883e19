"""Whether what was generated comes from the input as it is: the content decides where the file system is in doubt.

Each unit's record holds a checksum of the rows that were read for it, made while they were read. A file whose stamp
(see :mod:`pipeline.sources.identity`) is what it was needs no second look. Of one with another stamp the units that
are committed are read once more and compared; one that differs ends the run before anything of it is published.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

from pipeline.commit.index import Index
from pipeline.commit.run_record import FileIdentity
from pipeline.errors import FingerprintError, SourceError
from pipeline.plan.units import read_tasks
from pipeline.sinks.staged import data_checksum
from pipeline.sources import RESTORE_INPUT, FileSource, Source, stamp_now
from pipeline.storage.urls import is_url
from pipeline.types import SourceFile, Unit

__all__ = ["changed_since_planned", "check_committed_rows", "touched"]

_THREADS = 16


def touched(source: Source, known: Mapping[str, FileIdentity]) -> list[int]:
    """Numbers of the source's files that have another stamp than an earlier run has seen."""
    return [
        number for number, file in enumerate(source.files) if file.key in known and known[file.key].stamp != file.stamp
    ]


def changed_since_planned(source: Source) -> tuple[list[int], list[str]]:
    """What has become of the source's files since they were planned.

    Returns:
        Numbers of those that have another stamp now, and paths of those that are gone: what was read of these was
        checked when it was read.

    Raises:
        SourceError: a file cannot be asked for.
    """
    options = source.options if isinstance(source, FileSource) else {}

    def look(file: SourceFile) -> str | None:
        try:
            return stamp_now(file.path, options)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise SourceError(f"{file.path}: cannot be looked at ({error}). Check it and run again.") from error

    far = any(is_url(file.path) for file in source.files)
    with ThreadPoolExecutor(_THREADS if far else 1) as threads:
        stamps = list(threads.map(look, source.files))
    pairs = list(zip(source.files, stamps, strict=True))
    changed = [number for number, (file, now) in enumerate(pairs) if now is not None and now != file.stamp]
    return changed, [file.path for file, now in pairs if now is None]


def check_committed_rows(source: Source, index: Index, files: Collection[int]) -> int:
    """Read the committed units of some files again; how many there are.

    Raises:
        FingerprintError: one does not hold the rows that were read for it.
        SourceError: a file cannot be read any more as it was planned.
    """
    count = 0
    wanted = frozenset(files)
    if not wanted:
        return 0
    for task in read_tasks(_committed(index, wanted)):
        tables = source.read([unit.rows for unit in task.units])
        for unit, table in zip(task.units, tables, strict=True):
            count += 1
            if data_checksum(table, table.column_names) != unit.input_sha256:
                file, first = source.files[unit.rows.file], unit.rows.first_row
                raise FingerprintError(
                    f"input file {file.path!r}: rows {first} to {first + unit.rows.num_rows - 1} are not those that "
                    f"were read for what is committed: its content changed. {RESTORE_INPUT}"
                )
    return count


def _committed(index: Index, files: frozenset[int]) -> Iterator[Unit]:
    """Planned units of these files that have a record, each with the checksum of what was read for it."""
    return (unit for unit in index.committed_units() if unit.rows.file in files)
