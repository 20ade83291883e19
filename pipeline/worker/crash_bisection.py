"""Crash bisection: finds the row that kills its process, from records of the rows that ran when processes died.

Plain logic, one instance per session, kept outside the processes that may die. After a unit has lost two processes it
runs with fewer concurrent units: an eighth of the units in the last process that died, then an eighth again, until it
is alone. From then on its rows run in *pieces*, one after the other. The results of a piece that is done are kept here;
the piece whose process dies is halved, until one row runs alone. That row is quarantined after ``max_row_deaths``
deaths, the last of them in a process that had run nothing else, and the unit is finished without it. A death says
nothing about rows that were not running.

A fault may also need several rows in one process (a leak, a counter, memory). No row of it is quarantined: kept
pieces never run again, and a row that died goes first in a fresh process. Only a row that is done for good counts as
progress, so deaths without progress are bounded, and so are all deaths.

Where a process can fork (:mod:`pipeline.worker.forks`), each piece runs in a child process of its own: its death
costs no start of an engine. After trouble in a second unit, new units run in child processes from their first row on.

A process that goes with its machine is no evidence: never if the machine was drained, a few times in a row if it was
lost without notice. A row that takes the machine down with it is found after that.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Literal

from pipeline.worker.crash_trial import Attempt, Piece, Rows, Trial, Verdict

QUARANTINED = "QuarantinedRow"
"""Error class of a row that is left out because it kills its process."""

_SHARED_DEATHS = 2
"""Deaths with any number of concurrent units before that number is limited: a single death may be chance."""
_CUT = 8
"""Divisor of the number of concurrent units after each such death. A larger one needs fewer deaths (each costs
a process start); a smaller one keeps the engine fuller."""

_WARY_ROWS = 256
"""After trouble in two units, or two quarantined rows in one, new units run in child processes until so many rows are
done without the death of a child."""
_MOST_IN_A_ROW = 256
"""Rows quarantined in a row, with no row done in between, before the engine counts as broken."""

_EXCUSED_LOSSES = 2
"""Machines lost in a row, without notice, under one unit or one worker, before a loss counts as a death like others."""

Machine = Literal["there", "lost", "drained"]
"""State of a machine: it is there, was lost without notice, or is or was being drained."""


class CrashBisection:
    """Records the process of each running unit. A unit that comes to a new process has lost the old one: a death.

    A *worker* is an actor or task that Ray restarts under the same name; its processes have unique names.

    Args:
        max_row_deaths: deaths while a row ran alone that quarantine it.
        max_engine_deaths: the job ends after so many deaths in a row of one worker's processes without progress;
            more are allowed while the search for a row goes on.
        machine: name of a machine -> its state; called when a process on it has ended.
    """

    def __init__(
        self, max_row_deaths: int, max_engine_deaths: int, machine: Callable[[str], Machine] = lambda name: "there"
    ) -> None:
        self._max_row_deaths = max_row_deaths
        self._max_engine_deaths = max_engine_deaths
        self._trials: dict[str, Trial] = {}
        self._machine = machine
        self._machines: dict[str, str] = {}
        self._processes: dict[str, str] = {}
        self._deaths: dict[str, int] = {}
        self._losses: dict[str, int] = {}
        self._running: dict[str, set[str]] = {}
        self._used: set[str] = set()
        """Processes that have begun to run rows."""
        self._searched = 0
        self._achieved = False
        self._in_a_row = 0
        """Rows quarantined since a row was done."""
        self._troubles = self._calm = 0
        """Units with a child that died and further quarantined rows in them; rows done since a child died."""

    def start_process(self, worker: str, process: str = "", machine: str = "") -> Verdict:
        """A process of ``worker`` begins on a machine; it replaces the one before, if there was one, which has died."""
        before = self._processes.get(worker, "")
        if worker not in self._deaths:
            self._deaths[worker] = 0
        elif self._is_evidence(before, self._losses.get(worker, 0)):
            self._deaths[worker] += 1
        else:
            self._losses[worker] = self._losses.get(worker, 0) + (self._fate(before) == "lost")
        self._used.discard(before)
        self._processes[worker], self._machines[process] = process, machine
        return self._verdict(self._deaths[worker])

    def end_process(self, worker: str) -> None:
        """The worker has ended normally, or is ended on purpose: its rows have not killed it."""
        for record in (self._deaths, self._losses):
            record.pop(worker, None)
        process = self._processes.pop(worker, "")
        self._machines.pop(process, None)
        self._running.pop(process, None)
        self._used.discard(process)
        for trial in self._trials.values():
            if process and trial.process == process:
                trial.running = None

    def begin_unit(
        self, unit_id: str, rows: int, process: str, *, alone: bool = False, forks: bool = False
    ) -> Attempt:  # fmt: skip
        """``process`` receives a unit of ``rows`` rows. If another process had the unit, that one has died.

        Without a limit on concurrent units, all rows count as running from now on; otherwise each step does from
        :meth:`begin_step` on. A step in a child process is no business of ``process``: it ends with
        :meth:`finish_step` or :meth:`lose_step`.

        ``alone``: the process runs one unit at a time, so its first death already concerns this unit. ``forks``: the
        process can run rows in child processes.
        """
        trial = self._trial(unit_id, rows, alone=alone)
        if trial.process is not None and trial.process != process:
            self._record_death(trial)
        if forks and (trial.concurrent_units is not None or self._is_wary):
            trial.concurrent_units = 1  # children cost less than a search among concurrent units
        trial.process = process
        trial.running = None
        if trial.concurrent_units is None:
            self._run(unit_id, trial, trial.pieces[0])
        else:
            self._searched = max(self._searched, rows)
        done = {piece.rows: piece.results for piece in trial.pieces if piece.results is not None}
        return replace(trial.attempt(self._verdict(0), in_children=forks), done=done)

    def begin_step(self, unit_id: str, process: str, step: Rows) -> None:
        """The rows of a step begin to run in ``process``."""
        trial = self._trials.get(unit_id)
        piece = None if trial is None or trial.process != process else trial.piece(step)
        if trial is not None and piece is not None:
            self._run(unit_id, trial, piece)

    def finish_step(self, unit_id: str, process: str, step: Rows, results: bytes) -> None:
        """The rows of a step of the unit that ``process`` has are done: keep their results until the unit is staged."""
        trial = self._trials.get(unit_id)
        piece = None if trial is None or trial.process != process else trial.piece(step)
        if trial is not None and piece is not None:
            piece.results = results
            trial.running = None
            self._running.get(process, set()).discard(unit_id)
            self._succeed(piece.size)

    def lose_step(self, unit_id: str, rows: int, step: Rows) -> Attempt:
        """Record the death of the child process that ran a step of a unit of ``rows`` rows; give the rows to run."""
        trial = self._trial(unit_id, rows, alone=True)
        piece = trial.piece(step)
        self._searched = max(self._searched, rows)
        if piece is not None:
            trial.deaths += 1
            self._troubles += trial.deaths == 1
            self._calm = 0
            self._deaths[unit_id] = self._deaths.get(unit_id, 0) + 1
            self._suspect(trial, piece, fresh=True)
        return trial.attempt(self._verdict(self._deaths.get(unit_id, 0)), in_children=True)

    def finish_unit(self, unit_id: str) -> None:
        """The unit is staged: forget its history."""
        trial = self._trials.get(unit_id)
        self.abandon_unit(unit_id)
        if trial is None or trial.rows_open:
            self._succeed(1 if trial is None else trial.rows_open)

    def is_suspect(self, unit_id: str) -> bool:
        """Whether a process died while it ran this unit, and the unit is not done yet."""
        trial = self._trials.get(unit_id)
        return trial is not None and (trial.shared_deaths > 0 or len(trial.pieces) > 1 or trial.pieces[0].deaths > 0)

    def abandon_unit(self, unit_id: str) -> None:
        """The unit failed with an error that its process survived: forget its history."""
        self._trials.pop(unit_id, None)
        self._deaths.pop(unit_id, None)
        for process, units in list(self._running.items()):
            units.discard(unit_id)
            if not units:
                del self._running[process]

    @property
    def _is_wary(self) -> bool:
        return self._troubles >= 2 and self._calm < _WARY_ROWS

    def _trial(self, unit_id: str, rows: int, *, alone: bool) -> Trial:
        new = Trial(pieces=[Piece(rows=(0, rows))], concurrent_units=1 if alone else None)
        return self._trials.setdefault(unit_id, new)

    def _verdict(self, deaths: int) -> Verdict:
        some = self._max_engine_deaths + 4
        allowed = self._max_engine_deaths
        if self._searched and self._achieved:
            # Processes have finished rows before. Every row of a unit may kill, and the job goes on. More deaths than
            # that are the machine's fault: without this limit all rows would end in quarantine.
            allowed = some + self._searched * (1 + self._max_row_deaths)
        elif self._searched:
            # As many more as the search for a few rows takes, if nothing else succeeds meanwhile.
            allowed = some + math.ceil(math.log2(self._searched)) + 3 * self._max_row_deaths
        elif sum(trial.shared_deaths > 0 for trial in self._trials.values()) > 1:
            allowed = some  # units that ran one after the other; each is to lose two processes
        in_a_row = _MOST_IN_A_ROW if self._achieved else some
        return Verdict(go_on=deaths <= allowed and self._in_a_row <= in_a_row, deaths=deaths)

    def _run(self, unit_id: str, trial: Trial, piece: Piece) -> None:
        assert trial.process is not None
        trial.running, trial.fresh = piece, trial.process not in self._used
        self._used.add(trial.process)
        self._running.setdefault(trial.process, set()).add(unit_id)

    def _succeed(self, rows: int) -> None:
        """So many rows more are done for good."""
        self._forgive()
        self._in_a_row = 0
        self._calm += rows

    def _forgive(self) -> None:
        self._achieved = True
        self._deaths = dict.fromkeys(self._deaths, 0)
        self._losses.clear()
        self._searched = 0

    def _record_death(self, trial: Trial) -> None:
        """The process that had the unit died: limit the concurrent units, or narrow down the rows."""
        piece = trial.running
        if piece is None:
            return  # no row of it was running: the death says nothing about this unit
        assert trial.process is not None
        if not self._is_evidence(trial.process, trial.losses):
            trial.losses += self._fate(trial.process) == "lost"
            return
        if trial.concurrent_units == 1:
            trial.deaths += 1
            self._suspect(trial, piece, fresh=trial.fresh)
            return
        trial.shared_deaths += 1
        if trial.shared_deaths >= _SHARED_DEATHS:
            trial.concurrent_units = max(1, len(self._running.get(trial.process, ())) // _CUT)

    def _fate(self, process: str) -> Machine:
        """The state of the machine of a process."""
        name = self._machines.get(process)
        return "there" if not name else self._machine(name)

    def _is_evidence(self, process: str, losses: int) -> bool:
        """Whether the end of a process may be the fault of its rows. ``losses``: machines lost in a row before."""
        fate = self._fate(process)
        return fate == "there" or (fate == "lost" and losses >= _EXCUSED_LOSSES)

    def _suspect(self, trial: Trial, piece: Piece, *, fresh: bool) -> None:
        """A process died that ran the piece alone. ``fresh``: it had run nothing before."""
        if piece.size > 1:
            first, stop = piece.rows
            middle = (first + stop) // 2
            index = trial.pieces.index(piece)
            trial.pieces[index : index + 1] = [Piece(rows=(first, middle)), Piece(rows=(middle, stop))]
            return
        piece.deaths += 1
        # In a process that has run other rows the row may have been the last straw only. It goes first in the next
        # one; where other units are always quicker, twice the deaths have to do.
        if piece.deaths >= self._max_row_deaths * (1 if fresh else 2):
            self._troubles += any(other.quarantined for other in trial.pieces)
            piece.quarantined = True
            self._in_a_row += 1
            if any(other.results is not None for other in trial.pieces):
                self._forgive()  # other rows of the unit are done, so this row was the cause
