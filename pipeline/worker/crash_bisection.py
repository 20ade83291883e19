"""Which rows were running when a process died: pins the row that kills, and clears those merely beside it.

Plain logic, one instance per session, kept outside the processes that may die. A unit that lost its process
twice runs in small company from then on: an eighth of the units that last died with it, and so on, until it is
alone in its process. If that dies too, its rows are halved, until the guilty row is alone and has been so at
``max_row_deaths`` deaths: then it is quarantined and the rest of the unit is done without it. A death says
nothing about rows that were not running, and a row that was innocently beside a death (or whose machine was
taken away) is simply done again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

__all__ = ["Attempt", "Rows", "Tally", "Verdict"]

_SHARED_DEATHS = 2
"""Deaths beside any number of other units before the company is cut: one may be chance."""
_CUT = 8
"""By this the company is divided then. One more death costs a start; a unit that is alone leaves the engine idle."""

Rows = tuple[int, int]
"""Consecutive rows of a unit: first and one past the last."""


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """How a unit is to be run this time.

    Attributes:
        company: units in the process at most, itself among them; all of them of this kind. None: any.
        steps: rows to run together, step after step; they cover the unit but for the quarantined rows.
        quarantined: row -> deaths of its process while it was running alone.
    """

    company: int | None
    steps: tuple[tuple[Rows, ...], ...]
    quarantined: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Whether a process may begin; ``deaths`` in a row of its slot, without anything done meanwhile."""

    go_on: bool
    deaths: int


@dataclass(kw_only=True)
class _Piece:
    """Rows that have one history: they lived or died together."""

    rows: Rows
    deaths: int = 0
    survived: bool = False
    quarantined: bool = False

    @property
    def size(self) -> int:
        return self.rows[1] - self.rows[0]


@dataclass(kw_only=True)
class _Trial:
    """A unit's history; ``company`` is that of the attempt under way."""

    pieces: list[_Piece]
    shared_deaths: int = 0
    company: int | None = None
    process: str | None = None
    running: tuple[_Piece, ...] = ()


class Tally:
    """What ran where, and what died.

    Args:
        max_row_deaths: deaths of a process with one row running alone, before that row is quarantined.
        max_engine_deaths: deaths in a row of one slot's processes while nothing at all is done; more are allowed
            while a row is being searched.
    """

    def __init__(self, max_row_deaths: int, max_engine_deaths: int) -> None:
        self._max_row_deaths = max_row_deaths
        self._max_engine_deaths = max_engine_deaths
        self._trials: dict[str, _Trial] = {}
        self._deaths: dict[str, int] = {}
        self._running: dict[str, set[str]] = {}
        self._searched = 0
        self._achieved = False

    def start(self, slot: str) -> Verdict:
        """A process begins in ``slot`` (whatever replaces a dead process is in the same slot)."""
        deaths = self._deaths[slot] = self._deaths.get(slot, -1) + 1
        allowed = self._max_engine_deaths
        if self._searched and self._achieved:
            # Processes could do rows before. All rows of a unit may kill, one after the other, and the job goes on;
            # were it more, the fault would be the machine's, and every row left out in the end.
            allowed += 4 + self._searched * (1 + self._max_row_deaths)
        elif self._searched:
            # As many more as it may take to find a few rows where nothing else succeeds.
            allowed += 4 + math.ceil(math.log2(self._searched)) + 3 * self._max_row_deaths
        return Verdict(go_on=deaths <= allowed, deaths=deaths)

    def leave(self, slot: str) -> None:
        """What ran in ``slot`` has ended as it should."""
        self._deaths.pop(slot, None)

    def begin(self, unit_id: str, rows: int, process: str, *, alone: bool = False) -> Attempt:
        """``process`` is given a unit of so many rows. If another one had it, that one is dead.

        With any company it counts as running from here on; else each step does from :meth:`enter` on. ``alone``:
        the process runs nothing else meanwhile, so that its first death already tells something.
        """
        new = _Trial(pieces=[_Piece(rows=(0, rows))], company=1 if alone else None)
        trial = self._trials.setdefault(unit_id, new)
        if trial.process is not None and trial.process != process:
            self._bury(trial)
        trial.process = process
        trial.running = ()
        if trial.company is None:
            self._run(unit_id, trial, tuple(trial.pieces))
        else:
            self._searched = max(self._searched, rows)
        return Attempt(
            company=trial.company,
            steps=_steps(trial) if trial.company == 1 else (((0, rows),),),
            quarantined={p.rows[0]: p.deaths for p in trial.pieces if p.quarantined},
        )

    def enter(self, unit_id: str, process: str, step: tuple[Rows, ...]) -> None:
        """The rows of a step begin to run, in ``process`` and the company that was granted."""
        trial = self._trials.get(unit_id)
        if trial is not None and trial.process == process:
            self._run(unit_id, trial, tuple(p for p in trial.pieces if p.rows in step))

    def survive(self, unit_id: str, process: str) -> None:
        """The rows that were entered last are done, and the process lives."""
        trial = self._trials.get(unit_id)
        if trial is not None and trial.process == process:
            for piece in trial.running:
                piece.survived, piece.deaths = True, 0
            trial.running = ()
            self._running[process].discard(unit_id)
            self._succeed()

    def finish(self, unit_id: str) -> None:
        """The unit is staged: its history is of no more use."""
        trial = self._trials.get(unit_id)
        self.abandon(unit_id)
        if trial is None or not all(piece.quarantined for piece in trial.pieces):
            self._succeed()

    def suspects(self, unit_id: str) -> bool:
        """Whether a process has died while it was running this unit, which is not done yet."""
        trial = self._trials.get(unit_id)
        return trial is not None and (trial.shared_deaths > 0 or len(trial.pieces) > 1 or trial.pieces[0].deaths > 0)

    def abandon(self, unit_id: str) -> None:
        """The unit ended with an error that its process survived."""
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
        self._searched = 0

    def _bury(self, trial: _Trial) -> None:
        """Draw the conclusions from the death of the process that had the unit."""
        if not trial.running:
            return  # it waited or was being staged: the death tells nothing about it
        if trial.company != 1:
            trial.shared_deaths += 1
            if trial.shared_deaths >= _SHARED_DEATHS:
                assert trial.process is not None
                trial.company = max(1, len(self._running[trial.process]) // _CUT)
            return
        for piece in trial.running:
            piece.survived = False
        if len(trial.running) == 1:
            self._suspect(trial, trial.running[0])
        # Else each lived without the others: chance, or too much at once. They are tried one by one again.

    def _suspect(self, trial: _Trial, piece: _Piece) -> None:
        if piece.size == 1:
            piece.deaths += 1
            piece.quarantined = piece.deaths >= self._max_row_deaths
            if piece.quarantined and any(p.survived for p in trial.pieces):
                self._succeed()  # processes can do rows: it was this one
            return
        first, stop = piece.rows
        middle = (first + stop) // 2
        place = trial.pieces.index(piece)
        trial.pieces[place : place + 1] = [_Piece(rows=(first, middle)), _Piece(rows=(middle, stop))]


def _steps(trial: _Trial) -> tuple[tuple[Rows, ...], ...]:
    """Suspects one by one, the largest first, as they may be cleared; then what was cleared, all at once."""
    suspects = [piece for piece in trial.pieces if not piece.survived and not piece.quarantined]
    cleared = tuple(piece.rows for piece in trial.pieces if piece.survived)
    first = (((piece.rows,)) for piece in sorted(suspects, key=lambda piece: -piece.size))
    return (*first, cleared) if cleared else tuple(first)
