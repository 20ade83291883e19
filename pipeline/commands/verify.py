"""``verify``: checks a published output against its ledger, its checksums and its source.

Streams, so memory does not grow with rows or units. Changes nothing; of rows that it generates once more it writes a
record.
"""

from __future__ import annotations

import itertools
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa

from pipeline import layout
from pipeline.commands.published_output import PublishedOutput, open_published
from pipeline.commands.regenerate import Regeneration, config_of_run, drawn_rows, regenerate_rows
from pipeline.commands.verify_filtered import check_filtered, not_proved_of_filtered, proved_of_filtered
from pipeline.commands.verify_parts import Expected, Findings, check_publication
from pipeline.commit.index import Index, Inputs
from pipeline.commit.lease import current_holder
from pipeline.commit.ledger import read_ledger
from pipeline.commit.lists import index_publication, load_watermark
from pipeline.commit.manifest import Manifest
from pipeline.commit.retries import describe_retries
from pipeline.commit.run_record import RunState
from pipeline.config import RunConfig
from pipeline.errors import ConfigError, OutputError, SourceError
from pipeline.plan.small_files import planned_units
from pipeline.sinks import FORMATS
from pipeline.sources import ROWS, SlicedSource, source_of
from pipeline.sources.corrected_rows import load_rows, read_as_begun, row_ids_of
from pipeline.sources.types import COLUMN_SETTINGS
from pipeline.storage.local import LocalStorage
from pipeline.storage.open import open_storage
from pipeline.storage.protocol import Storage
from pipeline.storage.urls import join
from pipeline.types import Unit


@dataclass(frozen=True, kw_only=True)
class Verification:
    """The result of a verification.

    Attributes:
        output: the folder or URL.
        parts, bytes: published files read, and their size.
        units, rows: checked, input rows.
        output_rows: rows in the published files.
        failed_rows: input rows that failed.
        against_source: whether the input was read too, and compared.
        problems: one line for each problem, at most 50; empty if the output is correct.
        more_problems: number of problems beyond these.
        notes: findings that do not affect the rows.
        proved, not_proved: one line for each property that was proved, or could not be.
    """

    output: str
    parts: int
    bytes: int
    units: int
    rows: int
    output_rows: int
    failed_rows: int
    against_source: bool
    problems: tuple[str, ...]
    more_problems: int
    notes: tuple[str, ...] = ()
    proved: tuple[str, ...] = ()
    not_proved: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether no problem was found."""
        return not self.problems


def verify(
    output: str | os.PathLike[str],
    *,
    input: Any = None,
    storage_options: Mapping[str, Any] | None = None,
    input_storage_options: Mapping[str, Any] | None = None,
    dataset_options: Mapping[str, Any] | None = None,
    regenerate: int = 0,
    model: str | None = None,
) -> Verification:
    """Check that an output equals the commits of its run, and (with ``input``) belongs to that input.

    Of an output of :func:`pipeline.filter`, checksums and counts are checked. With ``input``, the source of the filter,
    each row there has to be kept unchanged and in order, or noted as dropped.

    Checked are: each published file is there, of the recorded size and SHA-256, with the schema of the run, and there
    are no other files; each committed unit is published once, with the attempt, the rows, the order and the checksum of
    the data columns that the ledger has; row ids follow from the source's file and row numbers, and samples are
    numbered from 0; dead letters are the failed rows, in order. With ``input`` also: each unit of the input is there,
    in input order, the passed-through columns (and ids from a column) equal the input's, and all columns of its rows,
    prompts among them, have the checksum of the input at their generation.

    Args:
        output: the folder or URL of a run.
        input: the run's input, as given to :func:`pipeline.run`.
        storage_options: keyword arguments of the file system of ``output``, and of ``input`` unless it has its own.
        input_storage_options: of ``input``.
        dataset_options: as in ``RunConfig``.
        regenerate: number of rows that are drawn at random and generated once more in this process, with all the others
            at once and alone; they have to be equal to the bit. A record of it is written into the output's state
            folder. Needs ``input``.
        model: of these rows; None is the model that the run names.

    Raises:
        ConfigError: ``regenerate`` without ``input``, or the run's settings cannot be read back.
        WeightsError: the model cannot be found.
        DamagedError: the state cannot be read.
        OutputError: no run was begun there, or nothing is published.
        SourceError: ``input`` cannot be read.
    """
    storage = open_storage(output, layout.SCRATCH, storage_options)
    state, manifest = _records(storage, against_source=input is not None, regenerate=regenerate)
    found = Findings()
    drawn = drawn_rows(state, regenerate) if regenerate else None
    if state.derived is not None:
        _verify_filtered(storage, state, manifest, input, input_storage_options or storage_options or {}, found)
        return _verification(storage, state, found, against_source=input is not None)
    options = {
        "storage_options": storage_options or {},
        "input_storage_options": input_storage_options,
        "dataset_options": dataset_options,
    }
    config = again = None
    if drawn is not None:
        config = config_of_run(state, model, input=input, output=storage.url, **options)
    with Index() as index, nullcontext() if input is None else _opened(input, storage.url, state, options) as source:
        _check_records(storage, manifest, index, state, found)
        if source is not None:
            _check_source(source, state, manifest, index, found)
        corrected = _corrected_rows(storage, state, storage_options or {}, found)
        expected = Expected(state=state, index=index, source=source, corrected=corrected, drawn=drawn)
        for publication in manifest.publications:
            check_publication(storage, publication, expected, found)
        if config is not None and source is not None and drawn is not None:
            again = _generated_again(regenerate_rows(state, config, source, storage, drawn), storage, found)
    return _verification(storage, state, found, against_source=input is not None, again=again)


def _records(storage: Storage, *, against_source: bool, regenerate: int) -> tuple[RunState, Manifest]:
    """The records of an output that can be verified in this way; raises as :func:`verify`."""
    state = RunState.load_begun(storage)
    if regenerate and not against_source:
        raise ConfigError(f"regenerate={regenerate}: prompts are made of the input. Give it too (--input).")
    if state.scheduled and against_source:
        raise OutputError(
            f"{storage.url}: scheduled runs keep this table, and its input may have moved on since. Leave --input out: "
            "the files are proved against the ledger."
        )
    manifest = Manifest.load(storage)
    if not manifest.publications:
        raise OutputError(f"{storage.url}: nothing is published there. Run it again to continue.")
    return state, manifest


def _check_records(storage: Storage, manifest: Manifest, index: Index, state: RunState, found: Findings) -> None:
    """Enter ledger and publications in the index, and check them against each other and the files there."""
    found.notes += read_ledger(storage, index.records, state.begun).describe(storage.url)
    for publication in manifest.publications:
        index_publication(storage, publication, index.published)
    _check_ledger(storage, manifest, index, state, found)
    found.notes += describe_retries(state.retries, index.records.totals().retried)
    _check_foreign_files(storage, manifest, found)


def _generated_again(result: Regeneration, storage: Storage, found: Findings) -> Regeneration:
    """Add the differences of rows that were generated once more to the findings, and write the record."""
    for line in result.differences:
        found.problem(line)
    found.notes += [f"likely cause: {cause}" for cause in result.causes]
    found.notes.append(f"generated again: {result.describe()}; record: {result.save(storage)}")
    return result


def _verification(
    storage: Storage, state: RunState, found: Findings, *, against_source: bool, again: Regeneration | None = None
) -> Verification:  # fmt: skip
    own = partial(_proved, state, again=again), partial(_not_proved, again=again)
    proved, not_proved = own if state.derived is None else (proved_of_filtered, not_proved_of_filtered)
    holder = current_holder(storage)
    if found.problems and holder is not None:
        found.notes.append(f"{holder.describe()} is writing there: verify again after it has ended")
    return Verification(
        output=storage.url,
        against_source=against_source,
        problems=tuple(found.problems),
        more_problems=found.more,
        notes=tuple(found.notes),
        proved=() if found.problems else proved(against_source=against_source),
        not_proved=not_proved(against_source=against_source),
        **found.counts,
    )


def _verify_filtered(
    storage: Storage, state: RunState, manifest: Manifest, source: Any, options: Mapping[str, Any], found: Findings
) -> None:
    """Check the output of a filter; ``source`` is the output it was made of, or None."""
    _check_foreign_files(storage, manifest, found)
    if source is not None and not isinstance(source, (str, os.PathLike)):
        raise OutputError(f"{storage.url}: a filter made it. As input give the output that was filtered.")
    before = None if source is None else open_published(open_storage(source, layout.SCRATCH, options))
    check_filtered(PublishedOutput(storage=storage, state=state, manifest=manifest), before, found)


def _proved(state: RunState, *, against_source: bool, again: Regeneration | None) -> tuple[str, ...]:
    every = [
        "the published files are, byte for byte, those that were published",
        "each committed row is there once, in order, with the values that were committed",
    ]
    if state.apart:
        every.append("each row of a retry with corrected rows has the values in the output's copy of them")
    if not against_source:
        return tuple(every)
    if again is not None and again.rows:
        every.append(f"{again.drawn} drawn at random, generated once more alone and in another batch: equal to the bit")
    corrected = bool(state.apart or state.begun_digests)
    others = ", except failed rows that were corrected since," if corrected else ""
    return (
        *every,
        f"each row of the input is there{others or ','} and its columns, also those of prompts and parameters, have "
        "the values that were read for it",
    )


def _not_proved(*, against_source: bool, again: Regeneration | None) -> tuple[str, ...]:
    others = "" if again is None or not again.rows else ", for the other rows"
    generation = f"that the model gives these tokens for these prompts{others}: --regenerate 200 generates some again"
    if against_source:
        return (generation,)
    return (generation, "that the rows are those of the input, and their prompts made of it: give --input")


@contextmanager
def _opened(input: Any, output: str, state: RunState, options: Mapping[str, Any]) -> Iterator[SlicedSource]:
    """The source of ``input``; in-memory input is kept in a temporary folder for the duration of the block."""
    own = {name: state.fingerprint[name] for name in ("limit", *COLUMN_SETTINGS) if name in state.fingerprint}
    config = RunConfig(
        input=input, output=output, input_format=state.fingerprint.get("input_format", ROWS), **own, **options
    )
    with tempfile.TemporaryDirectory() as folder:
        storage = LocalStorage(folder, layout.SCRATCH)
        source = source_of(config, storage, begun=state.input_base)
        read_as_begun(source, state.read_columns)
        yield source


def _corrected_rows(
    storage: Storage, state: RunState, options: Mapping[str, Any], found: Findings
) -> dict[int, tuple[pa.Table, dict[str, int]]]:
    """Number of each retry that had corrected rows -> these, and the place of each row id among them."""
    corrected = {}
    for retry in state.retries:
        if not retry.rows_key:
            continue
        try:
            rows = load_rows(join(storage.url, retry.rows_key), retry.rows_sha256, options)
        except SourceError as error:
            found.problem(f"{retry.rows_key}: {error}")
            continue
        corrected[retry.number] = rows, {row_id: place for place, row_id in enumerate(row_ids_of(rows))}
    return corrected


def _check_ledger(
    storage: Storage, manifest: Manifest, index: Index, state: RunState, found: Findings
) -> None:  # fmt: skip
    """Check that each committed unit is published once, as of its latest attempt."""
    for publication in manifest.publications:
        for unit in index.published.units(publication.position):
            unit_id = unit.unit.unit_id
            if unit.record is None:
                found.problem(f"{publication.name}: unit {unit_id} is published, and the ledger lacks it")
            elif unit.record.attempt != unit.unit.attempt:
                found.problem(
                    f"{publication.name}: unit {unit_id} is published as of attempt {unit.unit.attempt}, the ledger "
                    f"has attempt {unit.record.attempt}: run again to publish it"
                )
    for unit_id, count in index.published.duplicates():
        found.problem(f"unit {unit_id} is published {count} times")
    with Inputs() as inputs:
        if state.scheduled:
            load_watermark(storage, manifest, inputs)
        for record in index.records.unpublished():
            if inputs.get(record.file_key) is None:
                found.problem(f"{record.where} are committed and not published: run again")
            else:
                found.notes.append(f"{record.where}: of another version than is published; the next run settles it")
    published = len(index.published)
    if published < state.units and not state.scheduled:
        found.problem(f"{state.units} units were planned, {published} are published")


def _check_foreign_files(storage: Storage, manifest: Manifest, found: Findings) -> None:
    """Find files that plain readers of the folder would take for published ones."""
    ours = manifest.parts
    suffixes = tuple(format_.suffix for format_ in FORMATS.values())
    for key in itertools.chain.from_iterable(storage.walk(".")):
        strange = key not in ours and not key.startswith(f"{layout.STATE}/")
        if strange and (key.endswith(suffixes) or key.startswith("data-")):
            found.problem(f"{key}: no publication has this file; remove it")


def _check_source(source: SlicedSource, state: RunState, manifest: Manifest, index: Index, found: Findings) -> None:
    """Plan the input's units and check that they are the published ones, in input order."""
    changed = [f.key for f in source.files if f.key in state.files and state.files[f.key].digest != f.digest]
    for key in changed:
        found.problem(f"input file {key!r}: its content changed after the run read it")
    if changed:
        return
    source.begun_with(state.begun_digests)
    index.units.fill(planned_units(source, state, state.files)[0])
    for unit in index.units.unpublished():
        found.problem(f"{_where(source, unit)}: not in the output")
    for publication in manifest.publications:
        last, ordered = -1, True
        for there in index.published.units(publication.position):
            if there.planned is None:
                found.problem(f"{publication.name}: unit {there.unit.unit_id} is of no row of the input")
            else:
                ordered &= there.planned.index >= last
                last = there.planned.index
        if not ordered:
            found.problem(f"{publication.name}: its units are not in input order")


def _where(source: SlicedSource, unit: Unit) -> str:
    return " and ".join(map(str, unit.stretches(source.files)))
