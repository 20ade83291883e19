"""``verify`` of a filter's output: its files, and with its source that no row is lost, changed or doubled."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

from pipeline.commands.published_output import PublishedOutput
from pipeline.commands.verify_parts import Findings, check_bytes
from pipeline.commit.committed_rows import published_dead_letters
from pipeline.errors import PipelineError
from pipeline.sinks.staged import data_checksum
from pipeline.sinks.stored_rows import RowStream

_ROWS_AT_ONCE = 1024


def check_filtered(output: PublishedOutput, source: PublishedOutput | None, found: Findings) -> None:
    """Check the published files; with the source, that each row there is kept, unchanged, or dropped, in order."""
    whole = _check_files(output, found)
    rows = output.state.rows
    kept, dropped = found.counts["output_rows"], _dropped_rows(output)
    found.add("units", len(output.manifest.publications))
    found.add("rows", rows)
    if kept + dropped != rows:
        found.problem(f"{kept} rows are kept and {dropped} dropped, of {rows}")
    if source is None or not whole:
        return
    if source.identity != {name: output.state.fingerprint[name] for name in source.identity}:
        found.problem(f"{source.storage.url}: its published rows are not those that the filter has read")
        return
    try:
        source.check()
        _check_rows(output, source, found)
    except (PipelineError, pa.ArrowException, OSError, ValueError, KeyError) as error:
        found.problem(f"cannot be compared to the end ({type(error).__name__}: {str(error)[:200]})")


def proved_of_filtered(*, against_source: bool) -> tuple[str, ...]:
    """Sentences that hold if no problem was found."""
    every = (
        "the published files are, byte for byte, those that were published",
        "as many rows are kept or dropped as were read",
    )
    row = "each row of the source is there once, unchanged and in order, or has a note of why it was dropped"
    return (*every, row) if against_source else every


def not_proved_of_filtered(*, against_source: bool) -> tuple[str, ...]:
    """Sentences that could not be proved."""
    choice = "that the filter drops these rows: filter the source once more, to another folder, and compare"
    return (choice,) if against_source else (choice, "that the rows are those of the source: give it as --input")


def _check_files(output: PublishedOutput, found: Findings) -> bool:
    """Whether all files are as they were published."""
    whole = True
    for publication in output.manifest.publications:
        for key, part in publication.files.items():
            whole &= bool(check_bytes(output.storage, key, part, found))
            found.add("parts", 1)
            found.add("bytes", part.bytes)
    found.add("output_rows", output.manifest.rows)
    return whole


def _dropped_rows(output: PublishedOutput) -> int:
    return sum(p.dead_letters.rows for p in output.manifest.publications if p.dead_letters is not None)


def _check_rows(output: PublishedOutput, source: PublishedOutput, found: Findings) -> None:
    """Go through the source: a row is the next that was dropped, else the next that was kept, with the same values."""
    names = [f"{source.prefix}{name}" for name in ("row_id", "sample_index")]
    dropped = (own for table in _notes(output) for own in _ids(table, names))
    kept = RowStream(output.tables(), output.schema)
    following = next(dropped, None)
    for table in _small(source.tables()):
        marks = []
        for own in _ids(table, names):
            marks.append(own != following)
            following = following if marks[-1] else next(dropped, None)
        wanted = table.filter(pa.array(marks, pa.bool_()))
        there = kept.take(wanted.num_rows).select(source.schema.names)
        differing = [name for name in wanted.column_names
                     if data_checksum(there, [name]) != data_checksum(wanted, [name])]  # fmt: skip
        if differing:
            first, last = _ids(table, names)[0], _ids(table, names)[-1]
            found.problem(
                f"between rows {first[0]!r} and {last[0]!r}: columns {differing} of the rows that are kept are not the "
                "source's, or rows are missing, doubled or out of order"
            )
            return
    if following is not None:
        found.problem(f"row {following[0]!r}, sample {following[1]}: dropped, and the source has no such row there")
    if kept.take(1).num_rows:
        found.problem("rows are kept that the source does not have")


def _ids(table: pa.Table, names: list[str]) -> list[tuple[str, int]]:
    return list(zip(*(table[name].to_pylist() for name in names), strict=True))


def _notes(output: PublishedOutput) -> Iterator[pa.Table]:
    for publication in output.manifest.publications:
        for part in published_dead_letters(output.storage, publication):
            yield from part.tables()


def _small(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    for table in tables:
        for first in range(0, table.num_rows, _ROWS_AT_ONCE):
            yield table.slice(first, _ROWS_AT_ONCE)
