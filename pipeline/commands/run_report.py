"""The report of a run, kept while it goes on and written at its end. Nothing in here fails a run."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from pipeline import layout
from pipeline.codec import redact
from pipeline.commands.report import facts_of, load_session, published_aggregate, put_traces, write_page
from pipeline.commit.index import Index
from pipeline.commit.lease import Lease
from pipeline.commit.manifest import Manifest
from pipeline.commit.part_files import sweep_aggregates
from pipeline.commit.run_record import RunState
from pipeline.commit.sealed import seal
from pipeline.config import RunConfig
from pipeline.errors import LeaseLostError, log_failure
from pipeline.progress.monitor import Monitor
from pipeline.progress.snapshot import Snapshot
from pipeline.progress.views import Pulse
from pipeline.reporting.aggregate import Aggregate
from pipeline.reporting.facts import Session, TimeLine
from pipeline.storage.protocol import Storage
from pipeline.types import Totals
from pipeline.worker.row_traces import Traced
from wedlm_base.version import VERSION

_LOG = logging.getLogger(__name__)
_PULSE_SECONDS = 0.5
_KEPT_SESSIONS = 50
_OUTCOME_CHARACTERS = 300
_DONE = "done"
_UNDER_WAY = "under way, or killed"


class RunReport:
    """Keeps the time line of a run, and writes the page.

    Args:
        storage: the output.
        lease: the caller's.
        monitor: of the run.
        config: says whether a report is wanted.
        traced: gives the rows that were decoded once more, see :meth:`pipeline.cluster.executor.Executor.traced`.
    """

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
    """Write the page of an output whose lease the caller holds; an error is a warning.

    Args:
        storage: the output.
        lease: on it.
        index: its committed units.
        before: adds the other parts of the page.
    """
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
