"""Plans a retry whose input is corrected rows alone: which units they belong to, by the ids of failed rows."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from pipeline.codec import redact_forms
from pipeline.commit.committed_rows import DEAD_LETTERS, committed_tables
from pipeline.commit.index import Index
from pipeline.commit.manifest import Manifest
from pipeline.commit.part_files import staged_dead_place
from pipeline.commit.retries import Retry
from pipeline.commit.revise import dead_pieces
from pipeline.commit.run_record import RunState
from pipeline.config import RunConfig
from pipeline.errors import FingerprintError, SourceError
from pipeline.plan.job import Job
from pipeline.plan.retry_failed import failed_rows, load_place, with_previous
from pipeline.schema import DEAD_FIELDS
from pipeline.sinks.staged import data_checksum
from pipeline.sources import SlicedSource
from pipeline.sources.corrected_rows import CorrectedRows, CorrectedUnit, read_as_begun, row_ids_of, table_of
from pipeline.sources.formats.openai_batch import CUSTOM_ID, OpenAIBatchSource
from pipeline.sources.spool import spool
from pipeline.sources.types import wanted_by
from pipeline.storage.protocol import Storage
from pipeline.types import CommitRecord, Place, Slice, SourceFile, Unit

_LOOKED_AT = 4096
"""Rows of an input that are looked at to tell whether they are corrected rows."""


@dataclass(frozen=True, kw_only=True)
class Corrections:
    """Corrected rows of a retry.

    Attributes:
        source: the rows.
        ids: of each of them, the id of the failed row whose place it takes.
        retry: how the retry differs from the run.
    """

    source: CorrectedRows
    ids: Sequence[str]
    retry: Retry

    def units(self, index: Index, planned: int, url: str) -> Iterator[Unit]:
        """The run's units, by its ledger, as its input is not at hand.

        Raises:
            FingerprintError: some are not done.
        """
        if len(index.records) < planned:
            raise FingerprintError(
                f"{url}: a retry with {self.retry.describe()} does failed rows only, and "
                f"{planned - len(index.records)} units are not done. Finish the run with its own input first."
            )
        numbers = {file.key: number for number, file in enumerate(self.source.files)}
        records = sorted((r.file_key, r.first_row, r.unit_id) for r in index.records)
        for position, (_, _, unit_id) in enumerate(records):
            record = index.records.get(unit_id)
            assert record is not None
            yield _unit(record, position, numbers)

    def corrected(self, job: Job, index: Index, manifest: Manifest) -> CorrectedRows:
        """The source with the rows of each unit.

        Raises:
            SourceError: an id is not that of a failed row.
            FoundDamageError: output rows differ from the committed ones.
        """
        places = {row_id: number for number, row_id in enumerate(self.ids)}
        prefix, number = job.config.column_prefix, job.retry.number
        found: dict[str, tuple[CorrectedUnit, bool]] = {}  # with whether other rows of the unit failed
        for unit in with_previous(_concerned(index, number), index, derived_ids=job.rows.derived_ids):
            assert unit.previous is not None
            before = load_place(job, unit.previous)
            first = before.filter(pa.array(before[f"{prefix}sample_index"].to_numpy() == 0))
            ids, failed = first[f"{prefix}row_id"].to_pylist(), failed_rows(before, prefix)
            own = [(row, places.pop(ids[row])) for row in failed if ids[row] in places]
            for row_id, retry in zip(ids, first[f"{prefix}retry"].to_pylist(), strict=True):
                if retry == number:
                    places.pop(row_id, None)  # this retry was interrupted, and had done it
            if own:
                numbers, rows = zip(*own, strict=True)
                found[unit.unit_id] = CorrectedUnit(numbers=numbers, rows=rows), len(own) < len(failed)
        if places:
            raise SourceError(
                f"{self.retry.rows}: {sorted(places)[:3]} are not ids of failed rows of {job.storage.url}. Leave these "
                "rows out; pipeline.read(output, table='dead_letters') has the failed ones. A line that could not be "
                "read has no id of its own: correct it in its file."
            )
        letters = _letters(index, manifest, [unit_id for unit_id, (_, some) in found.items() if some])
        return self.source.planned_for(
            {unit_id: replace(own, letters=letters.get(unit_id)) for unit_id, (own, _) in found.items()}
        )


def continued(
    config: RunConfig, source: SlicedSource, state: RunState, storage: Storage, copies: Storage
) -> Corrections | None:
    """The corrected rows of a retry, if its input is these. Else ``source`` is the run's input, and is read as such.

    Args:
        config: continues the run.
        source: its input.
        state: record of the run.
        storage: its output.
        copies: where a copy of corrected rows is written to.

    Raises:
        SourceError: they cannot take the place of rows of the run; or they are given without ``retry_failed``.
    """
    if not config.retry_failed:
        check_no_corrections(config, source, state, storage)
    elif is_correction(config, source, state):
        return corrections_of(config, source, state, copies)
    if config.retry_failed or state.begun_digests:
        read_as_begun(source, state.read_columns)
    return None


def is_correction(config: RunConfig, source: SlicedSource, state: RunState) -> bool:
    """Whether the input of a retry is corrected rows alone: no file of the run, and not all rows of a corrected one.

    Under the name of a file of the run, rows without ids are that file, where other files of the run are gone.
    """
    if state.scheduled:
        return False
    own = [(state.files[file.key], file) for file in source.files if file.key in state.files]
    if any(file.digest in (known.digest, known.first_digest) for known, file in own):
        return False
    if own and _ids_of(config, source) not in source.schema.names:
        return False
    return not own or sum(piece.num_rows for piece in source.slices(4096)) < state.rows


def check_no_corrections(config: RunConfig, source: SlicedSource, state: RunState, storage: Storage) -> None:
    """Refuse corrected rows that are given without ``retry_failed``: they would be further rows of the output.

    Looks at the first rows of an input that has no file of the run. Their ids belong to the output if they name a file
    of the run, or (in an id column) if a failed row has such an id.

    Raises:
        SourceError: the input is corrected rows.
    """
    derived = f"{config.column_prefix}row_id"
    name = config.id_column or derived
    if state.scheduled or name not in source.schema.names or any(file.key in state.files for file in source.files):
        return
    first = next(source.slices(_LOOKED_AT), None)
    if first is None:
        return
    ids = [str(value) for table in source.read([first]) for value in table[name].to_pylist()]
    if config.id_column is None:
        same = next((own for own in ids if own.rpartition(":")[0] in state.files), None)
    else:
        letters = committed_tables(storage, DEAD_LETTERS, state, state.dead_schema)
        failed = {own for table in letters for own in table[derived].to_pylist()}
        same = next((own for own in ids if own in failed), None)
    if same is not None:
        raise SourceError(
            f"{storage.url}: the input has no file of this run, and its {name}={same!r} is that of a row of this "
            "output: these rows would be in it twice. If they are corrected rows, run again with --retry-failed "
            "(retry_failed=True); else give the input that the run was begun with."
        )


def corrections_of(config: RunConfig, source: SlicedSource, state: RunState, storage: Storage) -> Corrections:
    """The corrected rows in ``source``; a copy is written into the output.

    Raises:
        SourceError: see :func:`pipeline.sources.corrected_rows.table_of`.
    """
    prefix, ids = config.column_prefix, _ids_of(config, source)
    names = [f"{prefix}{field.name}" for field in DEAD_FIELDS]
    given = config.input
    where = os.fspath(given) if isinstance(given, (str, os.PathLike)) else source.files[0].key
    where = redact_forms(where)
    letters = [name for name in names if name not in state.columns.names]
    rows = table_of(source, where, ids, state.columns, letters, wanted_by(config))
    copy = spool(rows, storage, config.output_options)
    (file,) = copy.files
    sha256 = data_checksum(rows, rows.column_names)
    files = tuple(SourceFile(key=key, path=file.path, digest=own.digest, stamp="") for key, own in state.files.items())
    return Corrections(
        source=CorrectedRows(
            files=files,
            schema=rows.drop(rows.column_names[-1:]).schema,
            input_format=source.input_format,
            path=file.path,
            sha256=sha256,
            options=copy.options,
            units={},
        ),
        ids=row_ids_of(rows),
        retry=Retry(rows=where, rows_key="/".join(file.path.split("/")[-4:]), rows_sha256=sha256),
    )


def _ids_of(config: RunConfig, source: SlicedSource) -> str:
    """The column with the ids of corrected rows."""
    requests = source.input_format == OpenAIBatchSource.input_format
    return (CUSTOM_ID if requests else config.id_column) or f"{config.column_prefix}{DEAD_FIELDS[0].name}"


def _unit(record: CommitRecord, index: int, numbers: dict[str, int]) -> Unit:
    first, *more = (
        Slice(file=numbers[own.file_key], first_row=own.first_row, num_rows=own.num_rows) for own in record.stretches
    )
    return Unit(unit_id=record.unit_id, index=index, rows=first, more=tuple(more))


def _concerned(index: Index, number: int) -> Iterator[Unit]:
    """The planned units with failed rows, or with rows done by the retry of this number, as of their next attempt."""
    for unit in index.units:
        record = index.records.get(unit.unit_id)
        if record is not None and (record.failed_rows or str(number) in record.retried):
            yield replace(unit, attempt=record.attempt + 1)


def _letters(index: Index, manifest: Manifest, units: Collection[str]) -> dict[str, Place]:
    """The place of the dead letters of each of these units."""
    found = {record.unit_id: staged_dead_place(record) for record in index.records.among(list(units))}
    for publication in manifest.publications:
        for unit, place in dead_pieces(publication, index.published.units(publication.position)):
            if unit.unit.unit_id in found and unit.latest is None and place is not None:
                found[unit.unit.unit_id] = place
    return found
