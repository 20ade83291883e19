"""Plan and publish the intake of a scheduled run, in place of all of the input.

:mod:`pipeline.commands.run` has the rest: the ledger, the generating, the damage that is found and done again.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice

import pyarrow as pa

from pipeline.commit.index import Index, Inputs, ProcessedFile
from pipeline.commit.lease import Lease
from pipeline.commit.ledger import Ledger
from pipeline.commit.lists import write_watermark
from pipeline.commit.manifest import Manifest
from pipeline.commit.part_files import OutputTables, PartRecord
from pipeline.commit.publish import WriteParts, publish
from pipeline.commit.revise import Replacement, replace_files
from pipeline.commit.run_record import FileIdentity, Origin, RunState
from pipeline.config import RunConfig
from pipeline.errors import DamagedError, OutputError
from pipeline.plan.input_check import touched
from pipeline.plan.intake import AGAIN, Intake
from pipeline.plan.job import Job, new_run_record, resolve_job
from pipeline.plan.small_files import SmallFiles, planned_units
from pipeline.sources import FileSource
from pipeline.sources.listing import PartitionRange
from pipeline.storage.protocol import Storage
from pipeline.types import CommitRecord, Revocation, SourceFile

_BATCH = 1024


@dataclass(frozen=True, kw_only=True)
class ScheduledRun:
    """The intake of a scheduled run, and the objects needed to publish it.

    Attributes:
        intake: files to process, replace and remove.
        source: its files.
        inputs: the index with the watermark.
        revisions: position -> revision that is visible there, for the positions of ``intake.gone``.
        columns: input columns that the table has; None for a new table.
        within: the partitions that were listed.
    """

    intake: Intake
    source: FileSource
    inputs: Inputs
    revisions: Mapping[int, int]
    columns: pa.Schema | None
    within: PartitionRange

    @property
    def has_rows(self) -> bool:
        """Whether the files have any."""
        return next(self.source.slices(1), None) is not None

    @property
    def replaced(self) -> frozenset[int]:
        """Positions of the publications that this run replaces, now or in a further round."""
        return frozenset((*self.intake.gone, *self.inputs.differing_positions([AGAIN])))

    def job(self, config: RunConfig, storage: Storage) -> Job:
        """The job over the files of the intake, with the table's columns first.

        Raises:
            SourceError: the files lack a column that the configuration names.
        """
        if self.columns is None or self.has_rows:  # a text file without rows has no columns
            job = resolve_job(config, self.source, storage, self.columns)
            if self.columns is None:
                return job
        self.source.widen(self.columns)
        return resolve_job(config, self.source, storage, self.columns)

    def plan(self, job: Job, index: Index, origin: Origin) -> tuple[RunState, RunState | None, SmallFiles]:
        """Enter the intake's units in the index; as for :func:`pipeline.commands.begin.begin`.

        Raises:
            DamagedError: the run record is lost.
            FingerprintError: the table was begun with other settings.
            OutputError: another command writes this output.
        """
        old = RunState.load(job.storage)
        if old is None and len(index.records):
            raise DamagedError(
                f"{job.storage.url}: the run's record is missing, so the settings of the table are unknown",
                "Restore it from a copy, or discard the table with mode='new'.",
            )
        check_scheduled(old, job.storage)
        new = new_run_record(job, job.model_digest, origin, scheduled=True)
        state = new if old is None else old.followed_by(new, job.storage.url)
        known = {} if old is None else _pending(old.files, job.source.files)
        units, small = planned_units(job.sliced, state, known, self._group)
        index.units.fill(units)
        return state.shared_by(small.shares), old, small

    def _group(self, file: SourceFile) -> Hashable:
        """Files that may share a unit: from the same folder (a range has all or nothing of it) and publication."""
        return file.key.rpartition("/")[0], self.intake.targets.get(file.key)

    def drop_replaced(self, index: Index, ledger: Ledger, old: RunState | None = None) -> None:
        """Revoke units whose rows were replaced or removed, so that the ledger does not count them any more.

        Also units of files that a run left unpublished, if their stamp differs from its record (``old``).
        """
        known = {} if old is None else old.files
        again = {self.source.files[number].key for number in touched(self.source, known)}
        planned = {file.key for file in self.source.files}

        def is_stale(record: CommitRecord) -> bool:
            keys = [stretch.file_key for stretch in record.stretches]
            if index.units.has(record.unit_id):
                return not again.isdisjoint(keys)
            # Of a file that was read as it is not any more, or that is gone.
            return any(key in planned or self.inputs.get(key) is not None or self._is_gone(key) for key in keys)

        stale = (
            Revocation(unit_id=record.unit_id, attempt=record.attempt, reason="replaced", input_sha256="")
            for record in index.records.unpublished()
            if is_stale(record)
        )
        while batch := list(islice(stale, _BATCH)):
            ledger.revoke(batch)

    def _is_gone(self, key: str) -> bool:
        return self.inputs.listed(key) is None and bool(self.within.holds(key.rpartition("/")[0]))

    def publish(
        self,
        output: OutputTables,
        manifest: Manifest,
        index: Index,
        ledger: Ledger,
        lease: Lease,
        write_parts: WriteParts,
    ) -> Manifest:
        """Publish the intake: a revision for each publication that holds rows of an older version, then the new rows.

        Each decision has the watermark with its files; a kill in between leaves the others to the next run. To be
        called again after damage was found.
        """
        state = RunState.load(output.storage)
        shares = {} if state is None else state.files

        def written(manifest: Manifest, position: int | None) -> Manifest:
            def write_inputs(number: int, place: int) -> tuple[PartRecord, ...]:
                return write_watermark(
                    output.storage, manifest, self.inputs, lambda: self._processed(position, place, shares),
                    number=number, epoch=lease.epoch,
                )  # fmt: skip

            if position is None:
                return publish(output, manifest, index, lease=lease, write_parts=write_parts, write_inputs=write_inputs)
            replacement = Replacement(
                publication=next(p for p in manifest.publications if p.position == position),
                gone=self.intake.gone[position],
                whole=self.intake.gone[position].issuperset(file.key for file in self.inputs.at(position)),
                fresh=lambda: self._fresh(index, position),
            )
            return replace_files(output, manifest, index, replacement, lease=lease, write_inputs=write_inputs,
                                 write_parts=write_parts)  # fmt: skip

        for position in self.intake.gone:
            visible = next(p for p in manifest.publications if p.position == position)
            if visible.revision == self.revisions[position]:
                manifest = written(manifest, position)
        if next(index.units.unpublished(), None) is not None:
            manifest = written(manifest, None)
        self.drop_replaced(index, ledger)
        return manifest

    def _fresh(self, index: Index, position: int) -> Iterator[CommitRecord]:
        return (r for r in index.publishable() if self.intake.targets.get(r.file_key) == position)

    def _processed(
        self, position: int | None, place: int, shares: Mapping[str, FileIdentity]
    ) -> Iterator[ProcessedFile]:  # fmt: skip
        """The files with rows at ``place`` after this target is published, and the removed ones."""
        for file in self.source.files:
            if self.intake.targets.get(file.key) != position:
                continue
            share = shares.get(file.key)
            yield ProcessedFile(
                key=file.key, digest=file.digest, stamp=file.stamp, position=place, version=file.version,
                unit=None if share is None else share.unit, rows=0 if share is None else share.rows,
            )  # fmt: skip
        if position == next(iter(self.intake.gone), None):  # with the first decision
            yield from self.intake.restamped
        if position is not None:
            yield from (replace(file, removed=True) for file in self.intake.removed if file.position == position)


def check_scheduled(state: RunState | None, storage: Storage) -> None:
    """Check that the run in an output, if any, is one of scheduled runs.

    Raises:
        OutputError: it is not.
    """
    if state is not None:
        state.check_generated(storage.url)
    if state is not None and not state.scheduled:
        raise OutputError(
            f"{storage.url}: `wedlm-batch generate` began it, which keeps no list of published files. "
            "Go on with that command, or write to another folder."
        )


def _pending(known: Mapping[str, FileIdentity], files: tuple[SourceFile, ...]) -> dict[str, FileIdentity]:
    """The record of files that an earlier run left unprocessed, unchanged, with all files that share their units.

    Others are new: units that were committed of them alone do not count.
    """
    there = {file.key for file in files if file.key in known and known[file.key].digest == file.digest}
    torn = {own.unit for key, own in known.items() if own.unit is not None and key not in there}
    return {key: known[key] for key in there if known[key].unit not in torn}
