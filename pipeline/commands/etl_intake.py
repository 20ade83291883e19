"""The intake of a scheduled run: lists the input, compares it with the watermark, opens the files to process."""

from __future__ import annotations

import itertools
import math
import posixpath
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import pyarrow as pa

from pipeline.commands.begin import say
from pipeline.commands.etl_config import EtlConfig
from pipeline.commands.scheduled import check_scheduled
from pipeline.commit.index import Index, Inputs, ProcessedFile
from pipeline.commit.lease import Lease
from pipeline.commit.ledger import read_ledger
from pipeline.commit.lists import index_publication, load_watermark
from pipeline.commit.manifest import Manifest, Publication
from pipeline.commit.part_files import Rows
from pipeline.commit.recover import recover, withdraw
from pipeline.commit.repair import find_published_damage, index_publications
from pipeline.commit.run_record import Origin, RunState
from pipeline.config import RunConfig
from pipeline.errors import DamagedError, SourceError
from pipeline.plan.intake import Intake, IntakeCounts, compare, draw_intake
from pipeline.plan.job import named_columns, resolve_job
from pipeline.sinks import FORMATS
from pipeline.sources import ROWS, FileSource, stamp_now
from pipeline.sources.finding import has_suffix
from pipeline.sources.formats import all_suffixes
from pipeline.sources.formats.parquet import ParquetSource
from pipeline.sources.identity import source_file
from pipeline.sources.listing import found_of, list_files, open_added_files
from pipeline.sources.source_opening import check_files_apart
from pipeline.sources.types import wanted_by
from pipeline.storage.protocol import Storage
from pipeline.storage.retry import map_ahead
from pipeline.storage.urls import join, plain_name
from pipeline.types import ListedFile

_TAKEN_ANEW = "Run again: it is taken as it is then. With settle_seconds, files that are still written are left alone."


def compare_input(
    config: EtlConfig, storage: Storage, origin: Origin, inputs: Inputs, manifest: Manifest
) -> IntakeCounts:
    """Enter the watermark, a listing of the input and their differences in the index.

    Returns:
        The numbers of files that are left out.

    Raises:
        DamagedError: the watermark cannot be read.
        OutputError: another command writes this output.
        SourceError: the input cannot be listed; or a file has changed or is gone, and that is an error.
    """
    check_scheduled(RunState.load(storage), storage)
    options = config.run.input_options
    load_watermark(storage, manifest, inputs)
    files, left_out = _listed(config)
    settled = time.time() - config.settle_seconds if config.settle_seconds else math.inf
    inputs.list(files, settled=settled)
    if config.on_changed != "reprocess":
        _check_renamed(config, inputs)

    def same(files: Sequence[tuple[ListedFile, ProcessedFile]]) -> Iterator[bool]:
        digests = map_ahead(lambda pair: source_file(found_of(pair[0]), options).digest, files)
        return (digest == known.digest for digest, (_, known) in zip(digests, files, strict=True))

    redo = _again(config, storage, origin, inputs)
    compare(inputs, within=config.within, on_changed=config.on_changed, same=same, redo=redo)
    return left_out()


def _listed(config: EtlConfig) -> tuple[Iterator[ListedFile], Callable[[], IntakeCounts]]:
    """The files of the input, and those that were left out, once all of them are drawn."""
    suffixes = all_suffixes(config.run.input_format)
    left_out = IntakeCounts()

    def skip(key: str) -> None:
        nonlocal left_out
        left_out = replace(left_out, unread=left_out.unread.plus(key))

    def skip_undated(key: str) -> None:
        nonlocal left_out
        if has_suffix(key, suffixes):
            left_out = replace(left_out, undated=left_out.undated + 1)
        else:
            skip(key)

    def read() -> Iterator[ListedFile]:
        for file in list_files(config.run.input, config.run.input_options, config.within, skip_undated, skip):
            if has_suffix(file.key, suffixes):
                yield file
            else:
                skip(file.key)

    return read(), lambda: left_out


def check_new_table(config: EtlConfig, storage: Storage) -> None:
    """Check that a table can be begun over the first files of the input, before anything is removed for it.

    Raises:
        ConfigError, SourceError: the input cannot be listed; a file cannot be read, or lacks a column.
    """
    files = (file for file in _listed(config)[0] if file.size)
    intake = Intake(files=tuple(itertools.islice(files, config.max_files)))
    if intake.files:
        resolve_job(config.run, source_of_intake(config.run, intake, None), storage)


def _check_renamed(config: EtlConfig, inputs: Inputs) -> None:
    """Refuse a file that was processed under another name, which is gone: its rows would be in the table twice.

    Raises:
        SourceError: names both.
    """
    gone = {known.digest: known.key for known in inputs.unlisted() if config.within.holds(posixpath.dirname(known.key))}
    if not gone:
        return
    for file, _ in inputs.new():
        digest = source_file(found_of(file), config.run.input_options).digest
        if digest in gone:
            raise SourceError(
                f"input file {gone[digest]!r} was processed and is gone, and {file.key!r} has the same content: its "
                "rows would be in the table twice. Give the file its name back (and the input, if that was changed); "
                "or use on_changed='reprocess', which removes the rows of files that are gone."
            )


def draw(
    config: EtlConfig, inputs: Inputs, *, most: int | None = None, after: str = "", left_out: IntakeCounts | None = None
) -> Intake:  # fmt: skip
    """:func:`~pipeline.plan.intake.draw_intake` for a configuration; ``most``: in place of ``max_files``."""
    most = config.max_files if most is None else most
    left_out = left_out or IntakeCounts()
    intake = draw_intake(inputs, within=config.within, on_changed=config.on_changed, most=most, after=after)
    counts = replace(intake.counts, undated=left_out.undated, unread=left_out.unread)
    return replace(intake, counts=counts)


def source_of_intake(run: RunConfig, intake: Intake, table: pa.Schema | None) -> FileSource:
    """The files of the intake; with rows to remove only, a source without files that has the table's columns."""
    if not intake.files and table is not None:
        own = [*table, *(pa.field(name, pa.string()) for name in named_columns(run) if name not in table.names)]
        return ParquetSource((), pa.schema(own), {}, ())
    found = [found_of(file) for file in intake.files]
    source = open_added_files(
        plain_name(run.input), found, run.input_options, table=table, versions=intake.versions,
        input_format=run.input_format if run.input_format != "auto" else ROWS,
    )  # fmt: skip
    check_files_apart(source.files, run.output)
    source.remedy = _TAKEN_ANEW
    if source.input_format == ROWS:  # a dialect needs all of its columns
        source.want(wanted_by(run))
    return source


def is_listed(config: EtlConfig, key: str) -> bool:
    """Whether the input has a file; asked of single files."""
    place = join(plain_name(config.run.input), key)
    try:
        stamp_now(place, config.run.input_options)
    except FileNotFoundError:
        return False
    return True


def _again(config: EtlConfig, storage: Storage, origin: Origin, inputs: Inputs) -> Iterator[str]:
    """Keys of the files to do again.

    With ``retry_failed`` those with a failed row, with ``repair`` those of damaged publications.

    Raises:
        DamagedError: a publication is damaged, and a file whose rows it holds cannot be read again.
    """
    if config.run.retry_failed:
        with Index() as index:
            read_ledger(storage, index.records, origin.begun)
            for record in index.records:
                yield from (own.file_key for own in record.stretches if record.failed_rows)
    if not config.run.repair:
        return
    for publication, fault in unproven(storage, Manifest.load(storage, origin), origin):
        for file in inputs.at(publication.position):
            if inputs.listed(file.key) is None and config.on_changed != "reprocess":
                raise DamagedError(
                    f"{storage.url}/{publication.name}: {fault}. It holds rows of {file.key!r}, which is gone or "
                    "outside of the partitions given, so they cannot be generated again",
                    "Put the input file back and widen the range; restore the published file from a copy; or use "
                    "on_changed='reprocess', which removes the rows of files that are gone.",
                )
            yield file.key


def repair_records(storage: Storage, lease: Lease, origin: Origin, is_there: Callable[[str], bool]) -> None:
    """Restore those records and lists of units that can be restored; withdraw the publications whose cannot.

    The files of a publication that is withdrawn are in no watermark any more, so they are processed again.

    Raises:
        DamagedError: a publication that has to be withdrawn may hold rows of a file that is gone; or the run's record
            is damaged.
    """
    found = recover(storage, lease, origin, repair=True)
    say(found.notes)
    state = RunState.load(storage)
    if state is None:
        return
    with Index() as index:
        read_ledger(storage, index.records, origin.begun)
        lists = index_publications(storage, found.manifest, index, _rows_of(state), repair=True, scheduled=True)
        names = [*(publication.name for publication in lists.lost), *found.unrecorded]
        if names:
            _check_readable(storage, names, index, is_there)
    withdraw(storage, found, lists.lost, lease, lists.notes)
    say(lists.notes)


def _check_readable(storage: Storage, names: list[str], index: Index, is_there: Callable[[str], bool]) -> None:
    for record in index.records.unpublished():
        for own in record.stretches:
            if not is_there(own.file_key):
                raise DamagedError(
                    f"{storage.url}: {', '.join(names)} cannot be proven, and may hold rows of {own.file_key!r}, which "
                    "is not in the input any more, so they cannot be generated again",
                    "Put the input file back, restore the state from a copy, or discard the table with mode='new'.",
                )


def _rows_of(state: RunState) -> Rows:
    return Rows(
        format=FORMATS[state.fingerprint["output_format"]],
        schema=state.schema,
        inputs=len(state.columns),
        prefix=state.fingerprint["column_prefix"],
        derived_ids=state.fingerprint["id_column"] is None,
    )


def unproven(storage: Storage, manifest: Manifest, origin: Origin) -> Iterator[tuple[Publication, str]]:
    """The publications with a damaged file, or with a unit that the ledger lacks, and why."""
    faults = {damage.key: damage.fault for damage in find_published_damage(storage, manifest, prove=True)}
    with Index() as index:
        read_ledger(storage, index.records, origin.begun)
        for publication in manifest.publications:
            index_publication(storage, publication, index.published)
            fault = next((f"{key}: {faults[key]}" for key in publication.files if key in faults), None)
            lacking = (unit.unit.unit_id for unit in index.published.units(publication.position) if unit.record is None)
            if fault is None and (unit_id := next(lacking, None)) is not None:
                fault = f"the ledger lacks its unit {unit_id}"
            if fault is not None:
                yield publication, fault
