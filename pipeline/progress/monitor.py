"""Follows a run: counts its commits, knows its stage, and makes the snapshots for observers.

A chain is followed by one monitor, too: it counts each of its stages for itself, and a snapshot has the sums.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from pipeline.progress.eta import Counts, RateTracker
from pipeline.progress.snapshot import ExecutorState, Progress, Snapshot, Stage
from pipeline.progress.views import Observer, Pulse
from pipeline.stages import announced_to
from pipeline.types import CommitRecord, Totals

_NOTE_SECONDS = 60.0
"""An announcement is shown for so many seconds."""
_ONLY = ""
"""Name of the stage of a run that is no chain."""


class Monitor:
    """The counts and the stage of a run so far. Thread-safe: the run updates it, a thread of its own shows it.

    Args:
        observers: are shown snapshots, for as long as :meth:`shown` lasts.
        on_progress: called by :meth:`plan` and after each committed unit, in the run's own thread.
        on_stage: the same of a chain: with the name of the stage, and its progress.
        output: where the run writes, without credentials.
        model: its name.
        price_per_hour: of one accelerator or CPU, if it is known.
        chain: names of a chain's stages that generate, in order; a run that is no chain has none.
        clock: seconds.
    """

    def __init__(
        self,
        observers: Sequence[Observer] = (),
        on_progress: Callable[[Progress], None] | None = None,
        *,
        on_stage: Callable[[str, Progress], None] | None = None,
        output: str = "",
        model: str = "",
        price_per_hour: float | None = None,
        chain: Sequence[str] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock, self._begin = clock, clock()
        self._output, self._model, self._price = output, model, price_per_hour
        self._listen, self._listen_to_stage = on_progress, on_stage
        self._lock = threading.Lock()
        self._read: Callable[[], ExecutorState] = ExecutorState
        self._stage, self._since = Stage.PLANNING, self._begin
        self._spent: dict[Stage, float] = {Stage.PLANNING: 0.0}
        self._rates = RateTracker()
        self._chain = tuple(chain)
        self._counts = {name: Counts() for name in self._chain or (_ONLY,)}
        self._note, self._noted = "", self._begin
        self._pulse = Pulse(self.snapshot, observers)

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Context: observers get snapshots. They are closed at its end, whatever ends it."""
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
            for counts in self._counts.values():
                counts.begin()
            self._enter(Stage.PLANNING, self._clock())

    def enter(self, stage: Stage) -> None:
        """The run does something else now."""
        with self._lock:
            self._enter(stage, self._clock())

    def plan(
        self, total_rows: int, done: Totals, units: int, *, stage: str = _ONLY, estimated: bool = False
    ) -> None:  # fmt: skip
        """Generating begins, or begins again.

        ``done``: totals over the units that need not be done; ``units`` are to be done now. ``estimated``:
        ``total_rows`` is an upper bound, and the number itself follows from the units so far.
        """
        with self._lock:
            self._counts[stage].plan(total_rows, done, units, estimated=estimated)
            self._enter(Stage.STARTING, self._clock())
        self._tell(stage)

    def add(self, record: CommitRecord, before: CommitRecord | None = None, *, stage: str = _ONLY) -> None:
        """Count a unit; ``before``: the record that it replaces, if its failed rows were generated again."""
        new = record if before is None else record.since(before)
        with self._lock:
            self._counts[stage].add(record, new)
            self._rates.add(rows=new.num_rows, tokens=new.completion_tokens)
        self._tell(stage)

    def now(self, stage: str = _ONLY) -> Progress:
        """The committed part of this run (of a chain: of one stage), without those before."""
        with self._lock:
            return self._counts[stage].committed

    def snapshot(self) -> Snapshot:
        """The run at this moment."""
        state = self._read()
        with self._lock:
            now = self._clock()
            generating = self._stage not in (Stage.PUBLISHING, Stage.FILTERING, Stage.DONE)
            self._rates.advance(now, state.actors.ready if generating else 0)
            counts = self._counts.values()
            if self._stage in (Stage.STARTING, Stage.LOADING, Stage.COMPILING):
                begun = state.actors.ready or any(own.committed.session.units for own in counts)
                self._enter(Stage.GENERATING if begun else state.phase, now)
            else:
                self._enter(self._stage, now)
            whole = functools.reduce(Progress.merged_with, (own.whole for own in counts))
            known = all(own.committed.session.units or not own.units_left for own in counts)
            left = sum(own.units_left for own in counts) if known and self._stage is Stage.GENERATING else 0
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
                actors=state.actors,
                load=state.load,
                used=state.used,
                price_per_hour=self._price,
                note=self._note if now < self._noted + _NOTE_SECONDS else "",
                eta=self._rates.eta(left, state.actors.ready),
                chain=tuple(self._counts[name].as_stage(name) for name in self._chain),
            )

    def _enter(self, stage: Stage, now: float) -> None:
        """Count the time since the last look, and go on in a stage."""
        self._spent[self._stage] = self._spent.get(self._stage, 0.0) + now - self._since
        self._since, self._stage = now, stage
        self._spent.setdefault(stage, 0.0)

    def _take_note(self, text: str) -> None:
        self._note, self._noted = text, self._clock()

    def _tell(self, stage: str) -> None:
        if self._listen is not None:
            self._listen(self.now(stage))
        if self._listen_to_stage is not None:
            self._listen_to_stage(stage, self.now(stage))
