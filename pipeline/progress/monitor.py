"""Follows a run: counts what is committed, knows its stage, and makes the snapshots that observers are shown."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from pipeline.progress.eta import RateTracker
from pipeline.progress.observers import Observer, Pulse
from pipeline.progress.snapshot import ExecutorState, Progress, Snapshot, Stage, Units
from pipeline.stages import announced_to
from pipeline.types import CommitRecord, Totals

__all__ = ["Monitor"]
_NOTE_SECONDS = 60.0
"""What was announced is news for so long."""


class Monitor:
    """What is known of a run so far. Thread-safe: the run tells it, a thread of its own shows it.

    Args:
        observers: are shown snapshots, for as long as :meth:`shown` lasts.
        on_progress: called by :meth:`plan` and after each committed unit, in the run's own thread.
        output: where the run writes, without credentials.
        model: its name.
        price_per_hour: of one accelerator or CPU, if it is known.
        clock: seconds.
    """

    def __init__(
        self,
        observers: Sequence[Observer] = (),
        on_progress: Callable[[Progress], None] | None = None,
        *,
        output: str = "",
        model: str = "",
        price_per_hour: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock, self._begin = clock, clock()
        self._output, self._model, self._price = output, model, price_per_hour
        self._listen = on_progress
        self._lock = threading.Lock()
        self._read: Callable[[], ExecutorState] = ExecutorState
        self._stage, self._since = Stage.PLANNING, self._begin
        self._spent: dict[Stage, float] = {Stage.PLANNING: 0.0}
        self._rates = RateTracker()
        self._past = self._own = Progress()  # of the runs before, and of this one; its seconds but for the last pass
        self._units, self._seconds = 0, 0.0
        self._note, self._noted = "", self._begin
        self._pulse = Pulse(self.snapshot, observers)

    @contextmanager
    def shown(self) -> Iterator[None]:
        """A block in which the observers are shown snapshots. They are closed at its end, whatever ends it."""
        self._pulse.start()
        try:
            with announced_to(self._take_note):
                yield
            self.enter(Stage.DONE)
        finally:
            self._pulse.close()

    def begin(self, read: Callable[[], ExecutorState] = ExecutorState) -> None:
        """A run begins, or a further one that is shown as part of the same: a scheduled run may have several rounds.

        Args:
            read: says how the actors do, from any thread and at little cost.
        """
        self._read = read
        with self._lock:
            self._past, self._units = self._whole(), 0
            self._own, self._seconds = Progress(), 0.0
            self._enter(Stage.PLANNING, self._clock())

    def enter(self, stage: Stage) -> None:
        """The run does something else now."""
        with self._lock:
            self._enter(stage, self._clock())

    def plan(self, total_rows: int, done: Totals, units: int) -> None:
        """Generating begins, or begins again.

        Args:
            total_rows: input rows of the run.
            done: totals over the units that need not be done.
            units: to be done now.
        """
        with self._lock:
            own = self._own
            self._units = own.session.units + units
            self._own = replace(own, total_rows=total_rows, done=done, seconds=own.seconds + self._seconds)
            self._seconds = 0.0
            self._enter(Stage.STARTING, self._clock())
        self._tell()

    def add(self, record: CommitRecord, before: CommitRecord | None = None) -> None:
        """Count a unit; ``before``: the record that it replaces, if its failed rows were generated again."""
        new = record if before is None else record.since(before)
        with self._lock:
            own = self._own
            self._own = replace(own, done=own.done.plus(record), session=own.session.plus(new))
            self._seconds = max(self._seconds, record.engine_seconds)
            self._rates.add(rows=new.num_rows, tokens=new.completion_tokens, forwards=new.decode_forwards)
        self._tell()

    def now(self) -> Progress:
        """The committed part of this run, without those before."""
        with self._lock:
            return self._committed()

    def snapshot(self) -> Snapshot:
        """The run at this moment."""
        state = self._read()
        with self._lock:
            now = self._clock()
            generating = self._stage not in (Stage.PUBLISHING, Stage.DONE)
            self._rates.advance(now, state.actors.ready if generating else 0)
            if self._stage in (Stage.STARTING, Stage.LOADING, Stage.COMPILING):
                self._enter(Stage.GENERATING if state.actors.ready or self._own.session.units else state.phase, now)
            else:
                self._enter(self._stage, now)
            left = self._own.total_rows - self._own.done.rows if self._stage is Stage.GENERATING else 0
            whole = self._whole()
            return Snapshot(
                total_rows=whole.total_rows,
                done=whole.done,
                session=whole.session,
                seconds=whole.seconds,
                output=self._output,
                model=self._model,
                at=now - self._begin,
                stage=self._stage,
                stages=dict(self._spent),
                recent=self._rates.recent(),
                units=Units(total=self._past.session.units + self._units, waiting=state.waiting, running=state.running,
                            committed=whole.session.units),
                actors=state.actors,
                load=state.load,
                used=state.used,
                price_per_hour=self._price,
                note=self._note if now < self._noted + _NOTE_SECONDS else "",
                eta=self._rates.eta(left, state.actors.ready, state.running, self._ahead(state)),
            )  # fmt: skip

    def _committed(self) -> Progress:
        return replace(self._own, seconds=self._own.seconds + self._seconds)

    def _whole(self) -> Progress:
        """The runs before and this one."""
        past, own = self._past, self._committed()
        return Progress(
            total_rows=past.total_rows + own.total_rows, done=past.done.merged_with(own.done),
            session=past.session.merged_with(own.session), seconds=past.seconds + own.seconds,
        )  # fmt: skip

    def _ahead(self, state: ExecutorState) -> float | None:
        """Work that is done in units not committed yet, in rows, by what the engines count; None if they do not say."""
        session = self._whole().session
        if state.load is None or not session.completion_tokens:
            return None
        tokens = state.load.counters.get("tokens", 0) - session.completion_tokens
        # Work that is lost or done twice is counted too; no more is ahead than units are held.
        most = state.running * session.rows / session.units
        return min(max(0.0, tokens * session.rows / session.completion_tokens), most)

    def _enter(self, stage: Stage, now: float) -> None:
        """Count the time since the last look, and go on in a stage."""
        self._spent[self._stage] = self._spent.get(self._stage, 0.0) + now - self._since
        self._since, self._stage = now, stage
        self._spent.setdefault(stage, 0.0)

    def _take_note(self, text: str) -> None:
        self._note, self._noted = text, self._clock()

    def _tell(self) -> None:
        if self._listen is not None:
            self._listen(self.now())
