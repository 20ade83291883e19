"""The state of a unit in the crash bisection, and the plan of its next run. Plain logic."""

from __future__ import annotations

from dataclasses import dataclass, field

Rows = tuple[int, int]
"""Consecutive rows of a unit: first and one past the last."""


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """The way to run a unit this time.

    Attributes:
        concurrent_units: most units that may run in the process meanwhile, this one included; all of them limited too.
            None: no limit.
        steps: pieces to be run one after the other; with the rows of ``done`` and ``quarantined`` they are the unit.
        in_children: whether each step runs in a child process of its own.
        quarantined: row -> deaths of its process while the row ran alone.
        done: pieces that were done before -> their results, as they were given to ``finish_step``.
        verdict: whether the search may go on; of :meth:`CrashBisection.lose_step`.
    """

    concurrent_units: int | None
    steps: tuple[Rows, ...]
    in_children: bool = False
    quarantined: dict[int, int] = field(default_factory=dict)
    done: dict[Rows, bytes] = field(default_factory=dict)
    verdict: Verdict


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Whether a process may begin. ``deaths``: of its worker's processes in a row, without any progress."""

    go_on: bool
    deaths: int


@dataclass(kw_only=True)
class Piece:
    """Rows that were always run in the same step. ``results``: kept once they are done."""

    rows: Rows
    deaths: int = 0
    quarantined: bool = False
    results: bytes | None = None

    @property
    def size(self) -> int:
        """Its number of rows."""
        return self.rows[1] - self.rows[0]

    @property
    def is_open(self) -> bool:
        """Whether its rows are still to be run."""
        return self.results is None and not self.quarantined


@dataclass(kw_only=True)
class Trial:
    """A unit's history.

    ``concurrent_units``: limit of the current attempt; ``process``: the one that runs it; ``running``: the piece that
    runs in that process itself, and ``fresh``: whether the process had run nothing before; ``deaths``: while alone.
    """

    pieces: list[Piece]
    shared_deaths: int = 0
    deaths: int = 0
    losses: int = 0
    concurrent_units: int | None = None
    process: str | None = None
    running: Piece | None = None
    fresh: bool = False

    @property
    def rows_open(self) -> int:
        """Rows that are still to be run."""
        return sum(piece.size for piece in self.pieces if piece.is_open)

    def piece(self, rows: Rows) -> Piece | None:
        """The piece with these rows, if it is still to be run."""
        return next((piece for piece in self.pieces if piece.rows == rows and piece.is_open), None)

    def attempt(self, verdict: Verdict, *, in_children: bool) -> Attempt:
        """The next attempt. ``in_children``: whether the process can run steps in child processes."""
        return Attempt(
            concurrent_units=self.concurrent_units,
            steps=self._steps(),
            in_children=in_children and self.concurrent_units == 1,
            quarantined={piece.rows[0]: piece.deaths for piece in self.pieces if piece.quarantined},
            verdict=verdict,
        )

    def _steps(self) -> tuple[Rows, ...]:
        """Rows that died alone first, as evidence counts in a fresh process; then the largest pieces first.

        Every other time the smallest piece is before those: it is the soonest done where a fault needs several rows.
        """
        pieces = sorted((piece for piece in self.pieces if piece.is_open), key=lambda piece: -piece.size)
        if self.deaths % 2 and pieces:
            pieces.insert(0, pieces.pop())
        pieces.sort(key=lambda piece: piece.deaths == 0)
        return tuple(piece.rows for piece in pieces)
