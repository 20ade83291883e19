"""Crash bisection: finds the row that kills its process, from records of what ran when processes died.

Plain logic, one instance per session, kept outside the processes that may die. After a unit has lost two processes it
runs with fewer concurrent units: an eighth of those in the last process that died, then an eighth of these, until it is
alone in its process. If that process dies too, the unit's rows are halved, until one row runs alone. After
``max_row_deaths`` deaths while it ran alone, that row is quarantined and the unit is finished without it. A death says
nothing about rows that were not running; rows that only ran beside the fatal one are run again.

A process that goes with its machine is no evidence: a machine that was drained never, one that was lost without notice
a few times in a row. A row that takes the machine down with it is found after that.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

__all__ = ["Attempt", "CrashBisection", "Machine", "Rows", "Verdict"]

_SHARED_DEATHS = 2
"""Deaths with any number of concurrent units before that number is limited: a single death may be chance."""
_CUT = 8
"""Divisor of the number of concurrent units after each such death. A larger one needs fewer deaths, each of which
costs a process start; a smaller one keeps the engine fuller."""

_EXCUSED_LOSSES = 2
"""Machines lost in a row, without notice, under one unit or one worker, before a loss counts as a death like others."""

Machine = Literal["there", "lost", "drained"]
"""What became of a machine: it is there, was lost without notice, or is or was being drained."""

Rows = tuple[int, int]
"""Consecutive rows of a unit: first and one past the last."""


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """How a unit is to be run this time.

    Attributes:
        concurrent_units: most units that may run in the process meanwhile, this one included; all of them limited too.
            None: no limit.
        steps: groups of rows, to be run one group after the other; they cover the unit except for quarantined rows.
        quarantined: row -> deaths of its process while the row ran alone.
    """

    concurrent_units: int | None
    steps: tuple[tuple[Rows, ...], ...]
    quarantined: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Whether a process may begin. ``deaths``: of its worker's processes in a row, without any progress."""

    go_on: bool
    deaths: int


@dataclass(kw_only=True)
class _Piece:
    """Rows with the same history: they were always run in the same step."""

    rows: Rows
    deaths: int = 0
    survived: bool = False
    quarantined: bool = False

    @property
    def size(self) -> int:
        return self.rows[1] - self.rows[0]


@dataclass(kw_only=True)
class _Trial:
    """A unit's history. ``concurrent_units``: limit of the current attempt; ``process``: the one that runs it."""

    pieces: list[_Piece]
    shared_deaths: int = 0
    losses: int = 0
    concurrent_units: int | None = None
    process: str | None = None
    running: tuple[_Piece, ...] = ()


class CrashBisection:
    """Records what runs in which process. A unit that comes to a new process has lost the old one: that is a death.

    A *worker* is what Ray restarts under the same name (an actor, a prefetch task); its processes have unique names.

    Args:
        max_row_deaths: deaths while a row ran alone, after which it is quarantined.
        max_engine_deaths: deaths in a row of one worker's processes without any progress, after which the job ends;
            more are allowed while the search for a row goes on.
        machine: what became of a machine, by its name; asked when a process on it has ended.
    """

    def __init__(
        self, max_row_deaths: int, max_engine_deaths: int, machine: Callable[[str], Machine] = lambda name: "there"
    ) -> None:
        self._max_row_deaths = max_row_deaths
        self._max_engine_deaths = max_engine_deaths
        self._trials: dict[str, _Trial] = {}
        self._machine = machine
        self._machines: dict[str, str] = {}
        self._processes: dict[str, str] = {}
        self._deaths: dict[str, int] = {}
        self._losses: dict[str, int] = {}
        self._running: dict[str, set[str]] = {}
        self._searched = 0
        self._achieved = False

    def start_process(self, worker: str, process: str = "", machine: str = "") -> Verdict:
        """A process of ``worker`` begins; it replaces the one before, if there was one, which has died.

        ``machine``: the name of the machine that ``process`` runs on.
        """
        before = self._processes.get(worker, "")
        if worker not in self._deaths:
            self._deaths[worker] = 0
        elif self._is_evidence(before, self._losses.get(worker, 0)):
            self._deaths[worker] += 1
        else:
            self._losses[worker] = self._losses.get(worker, 0) + (self._fate(before) == "lost")
        self._processes[worker], self._machines[process] = process, machine
        deaths = self._deaths[worker]
        allowed = self._max_engine_deaths
        if self._searched and self._achieved:
            # Processes have finished rows before. Every row of a unit may kill, and the job goes on. More deaths than
            # that are the machine's fault: without this limit all rows would end in quarantine.
            allowed += 4 + self._searched * (1 + self._max_row_deaths)
        elif self._searched:
            # As many more as the search for a few rows takes, if nothing else succeeds meanwhile.
            allowed += 4 + math.ceil(math.log2(self._searched)) + 3 * self._max_row_deaths
        return Verdict(go_on=deaths <= allowed, deaths=deaths)

    def end_process(self, worker: str) -> None:
        """The worker has ended normally, or is ended on purpose: what it was running has not killed it."""
        for record in (self._deaths, self._losses):
            record.pop(worker, None)
        process = self._processes.pop(worker, "")
        self._machines.pop(process, None)
        self._running.pop(process, None)
        for trial in self._trials.values():
            if process and trial.process == process:
                trial.running = ()

    def begin_unit(self, unit_id: str, rows: int, process: str, *, alone: bool = False) -> Attempt:
        """``process`` receives a unit of ``rows`` rows. If another process had the unit, that one has died.

        Without a limit on concurrent units, all rows count as running from now on; otherwise each step does from
        :meth:`begin_step` on. ``alone``: the process runs one unit at a time, so its first death already concerns this
        unit.
        """
        new = _Trial(pieces=[_Piece(rows=(0, rows))], concurrent_units=1 if alone else None)
        trial = self._trials.setdefault(unit_id, new)
        if trial.process is not None and trial.process != process:
            self._record_death(trial)
        trial.process = process
        trial.running = ()
        if trial.concurrent_units is None:
            self._run(unit_id, trial, tuple(trial.pieces))
        else:
            self._searched = max(self._searched, rows)
        return Attempt(
            concurrent_units=trial.concurrent_units,
            steps=_steps(trial) if trial.concurrent_units == 1 else (((0, rows),),),
            quarantined={p.rows[0]: p.deaths for p in trial.pieces if p.quarantined},
        )

    def begin_step(self, unit_id: str, process: str, step: tuple[Rows, ...]) -> None:
        """The rows of a step begin to run in ``process``."""
        trial = self._trials.get(unit_id)
        if trial is not None and trial.process == process:
            self._run(unit_id, trial, tuple(p for p in trial.pieces if p.rows in step))

    def finish_step(self, unit_id: str, process: str) -> None:
        """The rows of the current step are done, and the process lives."""
        trial = self._trials.get(unit_id)
        if trial is not None and trial.process == process:
            for piece in trial.running:
                piece.survived, piece.deaths = True, 0
            trial.running = ()
            self._running.get(process, set()).discard(unit_id)
            self._succeed()

    def finish_unit(self, unit_id: str) -> None:
        """The unit is staged: forget its history."""
        trial = self._trials.get(unit_id)
        self.abandon_unit(unit_id)
        if trial is None or not all(piece.quarantined for piece in trial.pieces):
            self._succeed()

    def is_suspect(self, unit_id: str) -> bool:
        """Whether a process died while it ran this unit, and the unit is not done yet."""
        trial = self._trials.get(unit_id)
        return trial is not None and (trial.shared_deaths > 0 or len(trial.pieces) > 1 or trial.pieces[0].deaths > 0)

    def abandon_unit(self, unit_id: str) -> None:
        """The unit failed with an error that its process survived: forget its history."""
        self._trials.pop(unit_id, None)
        for process, units in list(self._running.items()):
            units.discard(unit_id)
            if not units:
                del self._running[process]

    def _run(self, unit_id: str, trial: _Trial, pieces: tuple[_Piece, ...]) -> None:
        assert trial.process is not None
        trial.running = pieces
        self._running.setdefault(trial.process, set()).add(unit_id)

    def _succeed(self) -> None:
        self._achieved = True
        self._deaths = dict.fromkeys(self._deaths, 0)
        self._losses.clear()
        self._searched = 0

    def _record_death(self, trial: _Trial) -> None:
        """The process that had the unit died: limit the concurrent units, or narrow down the rows."""
        if not trial.running:
            return  # no row of it was running: the death says nothing about this unit
        assert trial.process is not None
        if not self._is_evidence(trial.process, trial.losses):
            trial.losses += self._fate(trial.process) == "lost"
            return
        if trial.concurrent_units != 1:
            trial.shared_deaths += 1
            if trial.shared_deaths >= _SHARED_DEATHS:
                trial.concurrent_units = max(1, len(self._running.get(trial.process, ())) // _CUT)
            return
        for piece in trial.running:
            piece.survived = False
        if len(trial.running) == 1:
            self._suspect(trial, trial.running[0])
        # Else each piece survived alone before: chance, or too much at once. They are tried one by one again.

    def _fate(self, process: str) -> Machine:
        """What became of the machine of a process."""
        name = self._machines.get(process)
        return "there" if not name else self._machine(name)

    def _is_evidence(self, process: str, losses: int) -> bool:
        """Whether the end of a process may be the fault of what it ran. ``losses``: machines lost in a row before."""
        fate = self._fate(process)
        return fate == "there" or (fate == "lost" and losses >= _EXCUSED_LOSSES)

    def _suspect(self, trial: _Trial, piece: _Piece) -> None:
        if piece.size == 1:
            piece.deaths += 1
            piece.quarantined = piece.deaths >= self._max_row_deaths
            if piece.quarantined and any(p.survived for p in trial.pieces):
                self._succeed()  # other rows succeeded, so this row was the cause
            return
        first, stop = piece.rows
        middle = (first + stop) // 2
        index = trial.pieces.index(piece)
        trial.pieces[index : index + 1] = [_Piece(rows=(first, middle)), _Piece(rows=(middle, stop))]


def _steps(trial: _Trial) -> tuple[tuple[Rows, ...], ...]:
    """Suspected pieces one by one, the largest first; then all cleared pieces in one step."""
    suspects = [piece for piece in trial.pieces if not piece.survived and not piece.quarantined]
    cleared = tuple(piece.rows for piece in trial.pieces if piece.survived)
    first = ((piece.rows,) for piece in sorted(suspects, key=lambda piece: -piece.size))
    return (*first, cleared) if cleared else tuple(first)
