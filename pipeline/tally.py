"""Which rows were running when a process died: pins the row that kills, and clears those merely beside it.

Plain logic, one instance per session, kept outside the processes that may die. A unit that lost its process
twice is run alone in its process from then on; if that dies too, its rows are halved, until the guilty row is
alone and has been so at ``max_row_deaths`` deaths: then it is quarantined and the rest of the unit is done
without it. A death says nothing about rows that were not running, and a row that was innocently beside a
death (or whose machine was taken away) is simply done again.
"""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["Attempt", "Rows", "Tally", "Verdict"]

_SHARED_DEATHS = 2
"""Deaths beside other units before a unit is run alone: one may be chance."""

Rows = tuple[int, int]
"""Consecutive rows of a unit: first and one past the last."""


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """How a unit is to be run this time.

    Attributes:
        alone: nothing else may run in the process meanwhile.
        steps: rows to run together, step after step; they cover the unit but for the quarantined rows.
        quarantined: row -> deaths of its process while it was running alone.
    """

    alone: bool
    steps: tuple[tuple[Rows, ...], ...]
    quarantined: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Whether a process may begin; ``deaths`` in a row of its slot, without progress anywhere."""

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
    def single(self) -> bool:
        return self.rows[1] - self.rows[0] == 1


@dataclass(kw_only=True)
class _Trial:
    """A unit's history."""

    pieces: list[_Piece]
    shared_deaths: int = 0
    one_by_one: bool = False
    process: str | None = None
    running: tuple[_Piece, ...] = ()

    @property
    def alone(self) -> bool:
        return self.shared_deaths >= _SHARED_DEATHS


class Tally:
    """What ran where, and what died.

    Args:
        max_row_deaths: deaths of a process with one row running alone, before that row is quarantined.
        max_engine_deaths: deaths in a row of one slot's processes while nothing at all is achieved.
    """

    def __init__(self, max_row_deaths: int, max_engine_deaths: int) -> None:
        self._max_row_deaths = max_row_deaths
        self._max_engine_deaths = max_engine_deaths
        self._trials: dict[str, _Trial] = {}
        self._deaths: dict[str, int] = {}

    def start(self, slot: str) -> Verdict:
        """A process begins in ``slot`` (whatever replaces a dead process is in the same slot)."""
        self._deaths[slot] = self._deaths.get(slot, -1) + 1
        deaths = self._deaths[slot]
        return Verdict(go_on=deaths <= self._max_engine_deaths, deaths=deaths)

    def begin(self, unit_id: str, rows: int, process: str) -> Attempt:
        """``process`` is given a unit of so many rows. If another one had it, that one is dead.

        An attempt that is not alone counts as running from here on; the steps of one that is, from
        :meth:`enter` on.
        """
        trial = self._trials.setdefault(unit_id, _Trial(pieces=[_Piece(rows=(0, rows))]))
        if trial.process is not None and trial.process != process:
            self._bury(trial)
        trial.process = process
        trial.running = ()
        if not trial.alone:
            trial.running = tuple(trial.pieces)
            return Attempt(alone=False, steps=(((0, rows),),))
        suspects = [p for p in trial.pieces if not p.survived and not p.quarantined]
        cleared = tuple(p.rows for p in trial.pieces if p.survived)
        last = tuple((rows,) for rows in cleared) if trial.one_by_one else (cleared,) if cleared else ()
        return Attempt(
            alone=True,
            steps=(*((p.rows,) for p in suspects), *last),
            quarantined={p.rows[0]: p.deaths for p in trial.pieces if p.quarantined},
        )

    def enter(self, unit_id: str, process: str, step: tuple[Rows, ...]) -> None:
        """The rows of a step begin to run, alone in ``process``."""
        trial = self._trials.get(unit_id)
        if trial is not None and trial.process == process:
            trial.running = tuple(p for p in trial.pieces if p.rows in step)

    def survive(self, unit_id: str, process: str) -> None:
        """The rows that were entered last are done, and the process lives."""
        trial = self._trials.get(unit_id)
        if trial is not None and trial.process == process:
            for piece in trial.running:
                piece.survived, piece.deaths = True, 0
            trial.running = ()
            self._progress()

    def finish(self, unit_id: str) -> None:
        """The unit is staged: its history is of no more use."""
        self._trials.pop(unit_id, None)
        self._progress()

    def abandon(self, unit_id: str) -> None:
        """The unit ended with an error that its process survived."""
        self._trials.pop(unit_id, None)

    def _progress(self) -> None:
        self._deaths = dict.fromkeys(self._deaths, 0)

    def _bury(self, trial: _Trial) -> None:
        """Draw the conclusions from the death of the process that had the unit."""
        if not trial.running:
            return  # it waited or was being staged: the death tells nothing about it
        if not trial.alone:
            trial.shared_deaths += 1
            return
        self._progress()  # each of these narrows the search or counts towards an end
        for piece in trial.running:
            piece.survived = False
        if len(trial.running) > 1:  # each lived without the others: chance, or too much at once
            trial.one_by_one = True
        else:
            self._suspect(trial, trial.running[0])

    def _suspect(self, trial: _Trial, piece: _Piece) -> None:
        if piece.single:
            piece.deaths += 1
            piece.quarantined = piece.deaths >= self._max_row_deaths
            return
        first, stop = piece.rows
        middle = (first + stop) // 2
        place = trial.pieces.index(piece)
        trial.pieces[place : place + 1] = [_Piece(rows=(first, middle)), _Piece(rows=(middle, stop))]
