"""What a scheduled run finds when it looks: lists the input, compares it with the watermark, opens what it takes."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence

import pyarrow as pa

from pipeline.commands.etl_config import EtlConfig
from pipeline.commands.etl_repair import unproven
from pipeline.commands.scheduled import check_scheduled
from pipeline.commit.index import Index, Inputs, ProcessedFile
from pipeline.commit.ledger import read_ledger
from pipeline.commit.manifest import Manifest
from pipeline.commit.manifest_head import ManifestHead
from pipeline.commit.run_record import Origin, RunState
from pipeline.commit.watermark import load_watermark
from pipeline.config import RunConfig
from pipeline.errors import DamagedError
from pipeline.plan.intake import Intake, compare, draw_intake
from pipeline.plan.job import named_columns
from pipeline.sources import FileSource, stamp_now
from pipeline.sources.evolving import open_added_files
from pipeline.sources.finding import source_file
from pipeline.sources.formats import all_suffixes
from pipeline.sources.formats.parquet import ParquetSource
from pipeline.sources.listing import found_of, list_files
from pipeline.storage.concurrent import map_ahead
from pipeline.storage.protocol import Storage
from pipeline.storage.urls import join, plain_name
from pipeline.types import ListedFile

__all__ = ["compare_input", "draw", "is_listed", "source_of_intake"]

_TAKEN_ANEW = "Run again: it is taken as it is then. With settle_seconds, files that are still written are left alone."


def compare_input(config: EtlConfig, storage: Storage, origin: Origin, inputs: Inputs, head: ManifestHead) -> int:
    """Enter the watermark, a listing of the input and what differs in the index.

    Returns:
        The number of files that lie in no folder of the partition key, where there is a range.

    Raises:
        DamagedError: the watermark cannot be read.
        OutputError: another command writes this output.
        SourceError: the input cannot be listed; or a file has changed or is gone, and that is an error.
    """
    check_scheduled(RunState.load(storage), storage)
    options, suffixes = config.run.input_options, all_suffixes()
    load_watermark(storage, head, inputs)
    undated = 0

    def left_out(key: str) -> None:
        nonlocal undated
        undated += key.endswith(suffixes)

    listed = list_files(config.run.input, options, config.within, left_out)
    settled = time.time() - config.settle_seconds if config.settle_seconds else math.inf
    inputs.list((file for file in listed if file.key.endswith(suffixes)), settled=settled)

    def same(files: Sequence[tuple[ListedFile, ProcessedFile]]) -> Iterator[bool]:
        digests = map_ahead(lambda pair: source_file(found_of(pair[0]), options).digest, files)
        return (digest == known.digest for digest, (_, known) in zip(digests, files, strict=True))

    redo = _again(config, storage, origin, inputs)
    compare(inputs, within=config.within, on_changed=config.on_changed, same=same, redo=redo)
    return undated


def draw(
    config: EtlConfig, inputs: Inputs, *, most: int | None = None, after: str = "", undated: int = 0
) -> Intake:  # fmt: skip
    """:func:`~pipeline.plan.intake.draw_intake` for a configuration; ``most``: in place of ``max_files``."""
    most = config.max_files if most is None else most
    return draw_intake(
        inputs, within=config.within, on_changed=config.on_changed, most=most, after=after, undated=undated
    )  # fmt: skip


def source_of_intake(run: RunConfig, intake: Intake, table: pa.Schema | None) -> FileSource:
    """The files of the intake; with rows to remove only, a source without files that has the table's columns."""
    if not intake.files and table is not None:
        own = [*table, *(pa.field(name, pa.string()) for name in named_columns(run) if name not in table.names)]
        return ParquetSource((), pa.schema(own), {}, ())
    found = [found_of(file) for file in intake.files]
    source = open_added_files(
        plain_name(run.input), found, run.input_options, table=table, versions=intake.versions
    )  # fmt: skip
    source.remedy = _TAKEN_ANEW
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

    With ``retry_failed`` those of which a row has failed, with ``repair`` those of publications that are damaged.

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
                    "outside of the partitions given, so they cannot be generated anew",
                    "Put the input file back and widen the range; restore the published file from a copy; or use "
                    "on_changed='reprocess', which removes the rows of files that are gone.",
                )
            yield file.key
