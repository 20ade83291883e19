"""Begins a run: recovers the output, checks that this run may continue it, and plans the work."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from pipeline.commands.run_checks import check_foreign, check_rows
from pipeline.commands.scheduled import ScheduledRun
from pipeline.commit.index import Index
from pipeline.commit.lease import Lease
from pipeline.commit.ledger import Ledger
from pipeline.commit.manifest import Manifest
from pipeline.commit.publish import clean
from pipeline.commit.recover import Recovery, discard, finish_discard, recover, withdraw
from pipeline.commit.repair import describe_damage, find_published_damage, index_publications, revoke
from pipeline.commit.retries import Retry
from pipeline.commit.run_record import Origin, RunState, is_begun, is_fresh
from pipeline.config import RunConfig
from pipeline.errors import DamagedError, FingerprintError, OutputError, SourceError
from pipeline.plan.corrections import Corrections, continued
from pipeline.plan.input_check import check_committed_rows, check_renamed, check_unique_ids, touched
from pipeline.plan.job import Job, new_run_record, resolve_job
from pipeline.plan.small_files import SmallFiles, plan_key, planned_units, recorded_shares
from pipeline.plan.stage_before import StageBefore
from pipeline.plan.units import check_any_rows
from pipeline.prompts.model_files import resolved_model
from pipeline.sources import source_of
from pipeline.storage.protocol import Storage

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Begun:
    """A run that is ready to generate: its job, and the ledger and manifest of its output.

    ``scheduled``: intake of a scheduled run; None for other runs. ``only``: ids of the units that a retry with
    corrected rows does; None for other runs. ``retries``: those that differed from the run.
    """

    job: Job
    ledger: Ledger
    manifest: Manifest
    scheduled: ScheduledRun | None = None
    only: Collection[str] | None = None
    retries: tuple[Retry, ...] = ()


def begin(
    config: RunConfig,
    storage: Storage,
    lease: Lease,
    index: Index,
    origin: Origin,
    *,
    scheduled: ScheduledRun | None = None,
    before: StageBefore | None = None,
) -> Begun:
    """Recover the output, check that this run may continue it, and plan its units.

    ``scheduled``: the intake of a scheduled run, in place of all of the input. ``before``: the stage before, for a
    later stage of a chain, whose input is its rows.

    Raises:
        DamagedError: published files or the record of the run are lost.
        FingerprintError: it was begun with other settings, or on other input.
    """
    fresh = not lease.predecessors and is_fresh(storage)
    found, ledger = Recovery(manifest=Manifest(first=origin.first)), Ledger(storage, index.records, lease, origin.begun)
    if not fresh:
        found = recover(storage, lease, origin, repair=config.repair)
        ledger, segment_notes = Ledger.load(storage, index.records, lease, origin.begun)
        say([*found.notes, *segment_notes])
    lease.forget_predecessors()
    job, corrections = _resolved(config, storage, origin, scheduled, before)
    state, old, small, retry = _plan(job, index, origin, config, scheduled, before, corrections)
    job = replace(job, retry=retry, apart=state.apart)
    manifest = found.manifest
    if not fresh:
        manifest = _checked_output(job, found, index, ledger, lease, small, old, scheduled)
    # Before the record is saved: settings that are refused are not those that the run was begun with.
    if old is None and not len(index.records) and before is None:
        check_rows(job, index.units)
    if before is None and corrections is None:
        _check_read(job, index, old, scheduled=scheduled is not None)
    if retry.settings:
        _check_done(storage, index, retry)
    only = None
    if corrections is not None:
        corrected = corrections.corrected(job, index, manifest)
        job, only = replace(job, source=corrected), corrected.units.keys()
    state = replace(state, units=len(index.units), rows=index.units.rows)
    if state != old:
        state.save(storage, lease.epoch)
    ledger.keep_snapshot(planned=index.units.loose)
    return Begun(job=job, ledger=ledger, manifest=manifest, scheduled=scheduled, only=only, retries=state.retries)


def _checked_output(
    job: Job, found: Recovery, index: Index, ledger: Ledger, lease: Lease, small: SmallFiles, old: RunState | None,
    scheduled: ScheduledRun | None,
) -> Manifest:  # fmt: skip
    """Enter the output's publications in the index, remove leftovers, and check the published files.

    Raises:
        DamagedError: published files, lists or records are lost.
    """
    manifest = _index(job, found, index, lease, known=old is not None, scheduled=scheduled is not None)
    _check_torn(small, index, job.storage)
    if scheduled is not None:
        scheduled.drop_replaced(index, ledger, old)
    clean(job.storage, manifest, index, lease, unnamed=True)
    replaced = () if scheduled is None else scheduled.replaced
    kept = replace(manifest, decided=tuple(p for p in manifest.decided if p.position not in replaced))
    _check_published(job.config, kept, index, ledger, job.storage)
    return manifest


def _resolved(
    config: RunConfig, storage: Storage, origin: Origin, scheduled: ScheduledRun | None, before: StageBefore | None
) -> tuple[Job, Corrections | None]:
    """The job over the run's input, with the identity of its model; and the corrected rows that a retry reads."""
    corrections = None
    if before is not None:
        job = resolve_job(config, before.rows, storage)
    elif scheduled is not None:
        job = scheduled.job(config, storage)
    else:
        source = source_of(config, storage, begun=origin.input_base)
        state = _known(storage)
        corrections = None if state is None else continued(config, source, state, storage, storage)
        job = resolve_job(config, corrections.source if corrections else source, storage)
    model = resolved_model(config)
    params = dict(model.generation_defaults(config.generation_config).values)
    return replace(job, model_digest=model.digest(config.engine.smoothing), model_params=params), corrections


def _check_read(job: Job, index: Index, old: RunState | None, *, scheduled: bool) -> None:
    """Check the input of a run that reads it: files that were read before are the same, and ids are unique."""
    if not scheduled and len(index.records):
        _check_touched(job, index, old)
    if job.config.id_column is not None:
        derives = job.prompt_kind == "request"  # a line that is no request has no id, and fails by itself
        check_unique_ids(job.source, index.units, job.config.id_column, derives=derives)


def _known(storage: Storage) -> RunState | None:
    """The record of the run that is there; None if it is damaged: it is made again from the run's own input."""
    try:
        return RunState.load(storage)
    except DamagedError:
        return None


def _index(
    job: Job, found: Recovery, index: Index, lease: Lease, *, known: bool, scheduled: bool
) -> Manifest:  # fmt: skip
    """Enter the visible publications in the index; returns the manifest without those that had to be given up.

    ``known``: whether the run record is there, so that the settings of the published rows are known.

    Raises:
        DamagedError: a list of units is lost; or the run record is lost and a published unit is not planned by this
            run; or a publication that has to be given up holds rows that cannot be generated again.
    """
    manifest = found.manifest
    lists = index_publications(job.storage, manifest, index, job.rows, repair=job.config.repair, scheduled=scheduled)
    if (lists.lost or found.unrecorded) and (record := index.stranded()) is not None:
        names = [*(publication.name for publication in lists.lost), *found.unrecorded]
        raise DamagedError(
            f"{job.storage.url}: {', '.join(names)} cannot be proven, and may hold rows of {record.file_key!r}, which "
            "is not in the input any more, so they cannot be generated again: put the input file back, restore the "
            "state from a copy, or discard the run with mode='new'."
        )
    manifest = withdraw(job.storage, found, lists.lost, lease, lists.notes)
    say(lists.notes)
    if not known and (unplanned := index.published.unplanned()) is not None:
        raise DamagedError(
            f"{job.storage.url}: the run's record is lost, and the published rows there (unit {unplanned}) were made "
            "with other settings (or input, or unit_rows) than these. Give the settings it was begun with, or discard "
            "the run with mode='new'."
        )
    if not known and manifest.publications and not manifest.publications[0].schema.equals(job.schema):
        raise DamagedError(
            f"{job.storage.url}: the run's record is lost, and the published rows there have other columns than "
            "these settings give. Write to another folder, or discard the run with mode='new'."
        )
    if dropped := index.drop_overtaken():
        say([f"{job.storage.url}: the ledger has earlier attempts of {dropped} units than are published; they are done "
             "again"])  # fmt: skip
    return manifest


def _check_touched(job: Job, index: Index, old: RunState | None) -> None:
    """Compare the content of input files whose stamp changed or is not known with the content that was read.

    Raises:
        FingerprintError: rows that were generated for have changed.
    """
    suspects = list(range(len(job.source.files))) if old is None else touched(job.source, old.files)
    if count := check_committed_rows(job, index, suspects):
        names = ", ".join(job.source.files[number].key for number in suspects[:3])
        why = "not known from the last run" if old is None else "touched or copied since the last run"
        same = "their rows that succeeded are the same" if job.retry.files else "their rows are the same"
        say([f"{names}: {why}; {count} units read again, {same}"])


def say(notes: Iterable[str]) -> None:
    """Log each note as a warning for the user."""
    for note in notes:
        _LOG.warning(note)


def _check_published(
    config: RunConfig, manifest: Manifest, index: Index, ledger: Ledger, storage: Storage
) -> None:  # fmt: skip
    """Check published files; with ``repair`` revoke the units of damaged ones.

    Raises:
        DamagedError: a file is missing or of another size, and ``repair`` is False.
    """
    damages = find_published_damage(storage, manifest, prove=config.repair)
    if damages and not config.repair:
        raise DamagedError(describe_damage(storage.url, damages))
    revoke(damages, manifest, index, ledger)


def _plan(
    job: Job, index: Index, origin: Origin, config: RunConfig, scheduled: ScheduledRun | None,
    before: StageBefore | None, corrections: Corrections | None,
) -> tuple[RunState, RunState | None, SmallFiles, Retry]:  # fmt: skip
    """Enter the input's units in the index.

    Returns:
        The run record as it is now, and as it was (None for a new run); the known groups of small files; and how this
        run differs from the one in the record.

    Raises:
        DamagedError: the record is lost, and the ledger does not agree with these settings.
        FingerprintError: the run was begun with other settings.
        SourceError: the input has no rows.
    """
    if scheduled is not None:
        return *scheduled.plan(job, index, origin), Retry()
    new = new_run_record(job, job.model_digest, origin)
    if before is not None:
        fingerprint = {**new.fingerprint, **before.fingerprint}
        new = replace(new, fingerprint=fingerprint, sampled=before.sampled_after)
    lost: DamagedError | None = None
    try:
        old = RunState.load(job.storage)
    except DamagedError as error:
        old, lost = None, error
    if old is not None:
        old.check_generated(job.storage.url)
    if old is not None and old.scheduled:
        raise OutputError(
            f"{job.storage.url}: scheduled runs keep this table, and know which input files it holds. Go on with them "
            "(`wedlm-batch etl`), or write to another folder."
        )
    state, retry = new, Retry()
    if old is not None:
        rows = None
        if corrections is not None:
            rows, new = corrections.retry, replace(new, files={})
        state = old.continued_by(new, job.storage.url, retry_failed=config.retry_failed, rows=rows)
        retry = state.retry_of(new, rows)
    if old is not None and before is None and corrections is None:
        check_renamed(job.source, old.files, job.storage.url)
    key = None
    if corrections is not None:
        units, small = corrections.units(index, state.units, job.storage.url), SmallFiles(known=state.files)
        small.shares |= state.files
    elif before is None:
        job.sliced.begun_with(state.begun_digests)
        known = recorded_shares(index.records, job.source.files) if old is None else old.files
        units, small = planned_units(job.sliced, state, known)
        key = plan_key(job.source.files, state, known)
    else:
        units, small = before.units(state.fingerprint_hash), SmallFiles(known={})
    if key is None or not index.units.restore(key):
        index.units.fill(units)
        if key is not None and not small.shares:
            index.units.keep(key)
    if before is None:
        check_any_rows(len(index.units), config.input)
    if old is None and len(index.records):
        _check_ledger_agrees(job, index, lost)
    if retry.files and old is not None:
        _check_same_rows(job, index, retry, old)
    return state.shared_by(small.shares), old, small, retry


def _check_same_rows(job: Job, index: Index, retry: Retry, old: RunState) -> None:
    """Check that files whose failed rows were corrected have as many rows as before.

    Raises:
        FingerprintError: a committed unit is of rows that are not there, or there are rows more.
    """
    grown = old.files.keys() == {file.key for file in job.source.files} and index.units.rows != old.rows
    if grown or next(index.unplanned_records(retry.files), None) is not None:
        raise FingerprintError(
            f"{job.storage.url}: {retry.describe()}: it has more or fewer rows than when it was read. Correct failed "
            "rows in their place, and add rows in a file of their own; or give corrected rows alone, with their row "
            "ids in a column row_id."
        )


def _check_done(storage: Storage, index: Index, retry: Retry) -> None:
    """Check that a retry with other settings has nothing to do but failed rows.

    Raises:
        FingerprintError: units are not done, or have to be done again.
    """
    if count := index.units.without_record:
        files = " and retry_failed=True" if retry.files else ""
        raise FingerprintError(
            f"{storage.url}: a retry with {retry.describe()} does failed rows only, and {count} units are not done. "
            f"Finish the run with its own settings{files} first."
        )


def _check_torn(small: SmallFiles, index: Index, storage: Storage) -> None:
    """Check that units whose files are no longer all there are published.

    Raises:
        SourceError: one is not, so rows of files that are there would be left out.
    """
    for unit_id, gone, left in small.torn:
        if left and not index.published.attempts([unit_id]):
            raise SourceError(
                f"input files {gone[:3]} are gone, and share a unit that is not published with {left[:3]} (small files "
                "are done together). Put them back and run again, or start again with mode='new'."
            )


def _check_ledger_agrees(job: Job, index: Index, lost: DamagedError | None) -> None:
    """Check that the ledger was written with these settings, without a run record.

    Unit ids follow from the settings and the input: if all units of the ledger are planned, the settings are the same.

    Raises:
        DamagedError: they are not.
    """
    fault = lost.fault if lost is not None else f"{job.storage.url}: the run's record is missing"
    unplanned = next(index.unplanned_records(file.key for file in job.source.files), None)
    if unplanned is not None or next(index.committed_units(), None) is None:
        raise DamagedError(
            f"{fault}, and the committed rows there were made with other settings (or input, or unit_rows) than these",
            "Give the settings it was begun with, or discard the run with mode='new'.",
        )
    say([f"{fault}; made again, as the ledger agrees with the settings"])


def prepare_output(config: RunConfig, storage: Storage, lease: Lease, keep: Sequence[str] = ()) -> Origin:
    """Apply ``mode``, and refuse a folder with tables of others, which readers would mix with ours.

    Returns:
        The origin of the run that is there or begins now.
    """
    if not lease.predecessors and is_fresh(storage):
        check_foreign(config, storage)
        return Origin(begun=lease.epoch)
    first = finish_discard(storage, lease)
    if config.mode == "new":
        first = max(discard(storage, lease, keep), first or 0)
    if first is not None:
        return Origin(begun=lease.epoch, first=first)
    if is_begun(storage):
        if config.mode == "error_if_exists":
            raise OutputError(
                f"{storage.url}: a run was begun there. Use mode='resume' to continue it, or another folder."
            )
        return Origin.of(storage)
    check_foreign(config, storage)
    return Origin(begun=lease.epoch)
