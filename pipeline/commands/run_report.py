"""The report of a run, kept while it goes on and written at its end. Nothing in here fails a run."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress

import pyarrow as pa

from pipeline import layout
from pipeline.codec import redact
from pipeline.commit.committed_rows import published_rows
from pipeline.commit.index import Index
from pipeline.commit.lease import Lease
from pipeline.commit.manifest import Manifest
from pipeline.commit.part_files import load_aggregates, sweep_aggregates
from pipeline.commit.retries import describe_retries
from pipeline.commit.run_record import RunState
from pipeline.commit.sealed import read_state, seal, unseal
from pipeline.config import RunConfig
from pipeline.errors import LeaseLostError, PipelineError, log_failure
from pipeline.progress.monitor import Monitor
from pipeline.progress.snapshot import Snapshot
from pipeline.progress.views import Pulse
from pipeline.reporting.aggregate import Aggregate, Aggregator
from pipeline.reporting.chart import count
from pipeline.reporting.facts import Facts, Session, TimeLine
from pipeline.reporting.page import render
from pipeline.storage.protocol import Storage
from pipeline.types import Totals
from pipeline.worker.row_traces import Traced
from wedlm_base.version import VERSION

_LOG = logging.getLogger(__name__)
_PULSE_SECONDS = 0.5
_KEPT_SESSIONS = 50
"""Runs that are kept and shown, the last ones."""
_OUTCOME_CHARACTERS = 300
_DONE = "done"
_UNDER_WAY = "under way, or killed"


class RunReport:
    """Keeps the time line of a run, and writes the page."""

    def __init__(
        self,
        storage: Storage,
        lease: Lease,
        monitor: Monitor,
        config: RunConfig,
        traced: Callable[[], Traced | None] = lambda: None,
    ) -> None:
        self._storage, self._lease, self._monitor = storage, lease, monitor
        self._wanted, self._price = config.report, config.price_per_hour
        self._began, self._traced = time.time(), traced
        # A call that publishes in rounds comes here once for each: its time line goes on.
        before = load_session(storage, layout.session(lease.epoch)) if config.report else None
        if before is not None:
            self._began = before.began
        self._line = TimeLine(self._keep, before.moments if before is not None else ())
        self._pulse = Pulse(monitor.snapshot, [self._line], _PULSE_SECONDS)
        self._outcome = _UNDER_WAY

    @contextmanager
    def kept(self, index: Index) -> Iterator[None]:
        """Context: the run generates and publishes; at its end the page is written, whatever ends it."""
        if not self._wanted:
            yield
            return
        self._pulse.start()
        try:
            yield
            self._outcome = _DONE
        except LeaseLostError:
            self._wanted = False  # another run writes here now
            raise
        except BaseException as error:
            reason = " ".join(redact(str(error)).split())[:_OUTCOME_CHARACTERS]
            self._outcome = f"{type(error).__name__}: {reason}" if reason else type(error).__name__
            raise
        finally:
            with suppress(Exception):
                self._pulse.close()
            if self._wanted:
                self._write(index)

    def _keep(self, line: TimeLine, snapshot: Snapshot) -> None:
        """Put the session as it is so far."""
        session = Session(
            epoch=self._lease.epoch,
            began=self._began,
            seconds=snapshot.at,
            outcome=self._outcome,
            generating_seconds=snapshot.seconds,
            rows=snapshot.session.rows,
            failed=snapshot.session.failed_rows,
            tokens=snapshot.session.completion_tokens,
            used=snapshot.used,
            price_per_hour=self._price,
            gain=snapshot.load.gain if snapshot.load is not None else None,
            moments=tuple(line.moments),
            version=VERSION,
        )
        try:
            self._storage.put(layout.session(self._lease.epoch), seal(session.to_dict()))
        except Exception as error:
            log_failure(_LOG, "the time line of this run could not be kept for its report", error)

    def _write(self, index: Index) -> None:
        def put_own(storage: Storage) -> None:
            if self._outcome == _DONE and (traced := self._traced()) is not None:
                put_traces(storage, self._lease.epoch, traced)

        put_page(self._storage, self._lease, index, put_own)


def put_page(
    storage: Storage, lease: Lease, index: Index, before: Callable[[Storage], None] = lambda storage: None
) -> None:
    """Write the page of an output whose lease the caller holds; an error is a warning."""
    try:
        lease.check()
        state = RunState.load(storage)
        if state is None:
            return
        manifest = Manifest.load(storage)
        before(storage)
        aggregate, unread = published_aggregate(storage, manifest, state, read=False)
        totals = index.records.totals()
        write_page(storage, facts_of(storage, state, totals, aggregate, _notes(aggregate, totals, unread)))
        sweep_aggregates(storage, (part.sha256 for p in manifest.publications for part in p.parts))
        old = sorted(storage.keys(f"{layout.REPORT}/sessions"))[:-_KEPT_SESSIONS]
        storage.delete_objects(old)
    except Exception as error:
        log_failure(_LOG, "the report could not be written; `wedlm-batch report` writes it", error)


def _notes(aggregate: Aggregate, totals: Totals, unread: int) -> list[str]:
    """Notes for a reader of the page."""
    notes = []
    if unread:
        notes.append(
            f"{unread:,} published files have no aggregate (an earlier version wrote them), so their rows are in no "
            "chart: `wedlm-batch report` reads them."
        )
    elif aggregate.rows < totals.samples + totals.failed_rows:
        notes.append(
            "The run ended before all rows that are committed were published, and the charts are about published rows: "
            "`wedlm-batch report` reads the others too."
        )
    return notes


def facts_of(storage: Storage, state: RunState, totals: Totals, aggregate: Aggregate, notes: list[str]) -> Facts:
    """The facts of a page, from the parts of an output's state."""
    traced = load_traces(storage) or Traced()
    planned = totals.rows if state.scheduled else max(state.rows, totals.rows)
    settings = state.fingerprint
    adapter = settings.get("adapter")
    done = totals.rows >= planned
    return Facts(
        output=redact(str(storage.url)),
        model=redact(" + ".join([str(settings.get("model", "")).partition("@")[0], *filter(None, [adapter])])),
        made=time.time(),
        version=VERSION,
        state=_state(totals, planned, done=done),
        complete=done,
        planned_rows=planned,
        totals=totals,
        aggregate=aggregate,
        settings={name: str(value) for name, value in sorted(settings.items()) if value not in (None, "", [], {})},
        sessions=load_sessions(storage),
        traces=traced.traces,
        trace_note=trace_note(traced),
        notes=(*notes, *describe_retries(state.retries, totals.retried)),
        scheduled=state.scheduled,
    )


def trace_note(traced: Traced) -> str | None:
    """Why rows have no traces; None if none lacks one."""
    if not traced.reasons:
        return None
    reasons = "; ".join(dict.fromkeys(traced.reasons))
    return f"Not shown step by step: {redact(reasons)}."


def _state(totals: Totals, planned: int, *, done: bool) -> str:
    if not done:
        return f"{totals.rows:,} of {planned:,} rows done"
    if totals.all_failed:
        return "done, every row failed"
    rows = "row" if totals.failed_rows == 1 else "rows"
    return f"done, {count(totals.failed_rows)} {rows} failed" if totals.failed_rows else "done"


def published_aggregate(
    storage: Storage, manifest: Manifest, state: RunState, *, read: bool = True
) -> tuple[Aggregate, int]:
    """Of the published rows: of each part as it was made when the part was written, else from its rows.

    Args:
        storage: the output.
        manifest: its publications.
        state: its run record.
        read: whether parts without an aggregate are read, which may take long.

    Returns:
        The aggregate, and how many parts are not in it, for want of theirs.

    Raises:
        DamagedError: a part that has to be read cannot be.
    """
    total, unread = Aggregate(), 0
    for publication in manifest.publications:
        known = load_aggregates(storage, [(part.sha256, part.rows) for part in publication.parts])
        for own, part in zip(known, published_rows(storage, publication), strict=True):
            if own is None and not read:
                unread += 1
                continue
            total = total.merged_with(aggregated(part.tables(), state) if own is None else own)
    return total, unread


def aggregated(tables: Iterable[pa.Table], state: RunState) -> Aggregate:
    """Of rows of an output."""
    aggregator = Aggregator(state.fingerprint["column_prefix"])
    for table in tables:
        aggregator.add(table)
    return aggregator.result()


def load_sessions(storage: Storage) -> tuple[Session, ...]:
    """How the last runs went; records that cannot be read are left out."""
    keys = sorted(storage.keys(f"{layout.REPORT}/sessions"))[-_KEPT_SESSIONS:]
    return tuple(found for key in keys if (found := load_session(storage, key)) is not None)


def load_session(storage: Storage, key: str) -> Session | None:
    """How a run went; None if there is no record of it that can be read."""
    try:
        return Session.from_dict(unseal(read_state(storage, key)))
    except (PipelineError, OSError, LookupError, TypeError, ValueError, AttributeError):
        return None


def put_traces(storage: Storage, epoch: int, traced: Traced) -> None:
    """Keep traces, in place of those of earlier epochs."""
    key = layout.traces(epoch)
    storage.put(key, seal(json.loads(traced.to_json())))
    storage.delete_objects([other for other in storage.keys(f"{layout.REPORT}/traces") if other < key])


def load_traces(storage: Storage) -> Traced | None:
    """The last traces that were kept; None if there are none that can be read."""
    keys = storage.keys(f"{layout.REPORT}/traces")
    try:
        return Traced.from_json(json.dumps(unseal(read_state(storage, max(keys))))) if keys else None
    except (PipelineError, OSError, LookupError, TypeError, ValueError, AttributeError):
        return None


def write_page(storage: Storage, facts: Facts) -> None:
    """Put the page into the output's state folder."""
    storage.put(layout.REPORT_PAGE, render(facts).encode())
