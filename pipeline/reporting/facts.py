"""All that a report shows, as plain values: the page follows from them alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

from pipeline.codec import DRAFT_SOURCES
from pipeline.progress.snapshot import ResourceSeconds, Snapshot
from pipeline.reporting.aggregate import Aggregate
from pipeline.reporting.chart import count, percent
from pipeline.reporting.traces import RowTrace
from pipeline.types import Totals

_MOST = 400
_SECONDS = 0.5
"""Between two points, at first."""


class Moment(NamedTuple):
    """Tokens that were generated in the first ``at`` seconds of a run, or committed where engines report none."""

    at: float
    tokens: int


class TimeLine:
    """Keeps moments, evenly spread over the run: when there are too many, every second one goes.

    An observer of a run (:class:`pipeline.progress.views.Observer`). ``keep`` is called every so many seconds with the
    time line so far, and at its end. ``before``: moments to go on from. ``most``: moments at most; even.
    """

    def __init__(
        self,
        keep: Callable[[TimeLine, Snapshot], None] | None = None,
        before: Iterable[Moment] = (),
        most: int = _MOST,
        every: float = 60.0,
    ) -> None:
        self.moments: list[Moment] = list(before)
        self._keep = keep
        self._most = most
        self._every = every
        self._apart = _SECONDS
        self._kept = 0.0

    def update(self, snapshot: Snapshot) -> None:
        """Take the moment, if the last one is old enough."""
        if not self.moments or snapshot.at - self.moments[-1].at >= self._apart:
            self._add(snapshot)
        if self._keep is not None and snapshot.at - self._kept >= self._every:
            self._kept = snapshot.at
            self._keep(self, snapshot)

    def close(self, snapshot: Snapshot) -> None:
        """Take the last moment, in any case."""
        self._add(snapshot)
        if self._keep is not None:
            self._keep(self, snapshot)

    def _add(self, snapshot: Snapshot) -> None:
        """Append a moment; thin the line if it has become long."""
        # Engines report every second or two, so their tokens are at least those committed.
        generated = 0 if snapshot.load is None else int(snapshot.load.counters.get("tokens", 0))
        last = Moment(snapshot.at, max(generated, snapshot.session.completion_tokens))
        self.moments.append(last)
        if len(self.moments) >= self._most:
            self.moments = [*self.moments[:-1:2], last]
            self._apart *= 2


def columns_of(moments: Sequence[Moment]) -> dict[str, Any]:
    """Moments as a list of times and a list of tokens."""
    return {"at": [round(moment.at, 3) for moment in moments], "tokens": [moment.tokens for moment in moments]}


def moments_of(raw: Mapping[str, Sequence[Any]]) -> tuple[Moment, ...]:
    """Inverse of :func:`columns_of`."""
    return tuple(map(Moment, raw["at"], raw["tokens"]))


@dataclass(frozen=True, kw_only=True)
class Session:
    """One call of a run: how it went.

    Attributes:
        epoch: of its lease; sessions of an output are in this order.
        began: seconds since 1970.
        outcome: "done", or why it ended before.
        generating_seconds: from its first engine's readiness to the last commit.
        rows, failed, tokens: committed by it.
        price_per_hour: of one accelerator or CPU, if it was given.
        gain: over autoregressive decoding; None if unknown.
        version: of the package.
    """

    epoch: int
    began: float
    seconds: float
    outcome: str
    generating_seconds: float = 0.0
    rows: int = 0
    failed: int = 0
    tokens: int = 0
    used: ResourceSeconds = field(default_factory=ResourceSeconds)
    price_per_hour: float | None = None
    gain: float | None = None
    moments: tuple[Moment, ...] = ()
    version: str = ""

    @property
    def cost(self) -> float | None:
        """In the currency of ``price_per_hour``; None if that was not given."""
        return None if self.price_per_hour is None else self.used.cost(self.price_per_hour)

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {**vars(self), "used": vars(self.used), "moments": columns_of(self.moments)}

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Session:
        """Inverse of :meth:`to_dict`; names that are not known are left out."""
        known = {own.name: raw[own.name] for own in fields(cls) if own.name in raw}
        return cls(**{**known, "used": ResourceSeconds(**raw["used"]), "moments": moments_of(raw["moments"])})


@dataclass(frozen=True, kw_only=True)
class Facts:
    """The facts of an output.

    Attributes:
        output: its name, without credentials.
        made: when the report was made, seconds since 1970.
        version: of the package that made it.
        state: in a few words: "complete", "30 of 100 rows committed" ...
        complete: whether every planned row is published.
        totals: sums over the committed units, by the ledger.
        settings: name -> value, of those that change the output.
        sessions: the runs that wrote it, the oldest first.
        trace_note: why there are no traces, or fewer than asked for.
        notes: sentences that a reader needs for these numbers.
        dropped: rows that a filter dropped; None of an output that a run generated.
        scheduled: whether scheduled runs keep the output.
    """

    output: str
    model: str
    made: float
    version: str
    state: str
    complete: bool
    planned_rows: int
    totals: Totals
    aggregate: Aggregate
    settings: Mapping[str, str] = field(default_factory=dict)
    sessions: tuple[Session, ...] = ()
    traces: tuple[RowTrace, ...] = ()
    trace_note: str | None = None
    notes: tuple[str, ...] = ()
    dropped: int | None = None
    scheduled: bool = False


@dataclass(frozen=True, kw_only=True)
class Drafts:
    """Drafts of one source: ``offered`` in rows of forwards, ``accepted`` as output, and all generated ``tokens``."""

    source: str
    offered: int
    accepted: int
    tokens: int

    @property
    def acceptance(self) -> float | None:
        """Share of the drafts that became output; None without drafts."""
        return self.accepted / self.offered if self.offered else None

    @property
    def share(self) -> float | None:
        """Share of the output that came from these drafts; None without output."""
        return self.accepted / self.tokens if self.tokens else None


def drafts_by_source(counts: Mapping[str, int | None], tokens: int) -> list[Drafts]:
    """Sort counts, named as in ``stats``, by source; a source without drafts is left out."""
    found = [
        Drafts(source=source, offered=counts.get(f"{source}_drafts") or 0,
               accepted=counts.get(f"{source}_drafts_accepted") or 0, tokens=tokens)
        for source in DRAFT_SOURCES
    ]  # fmt: skip
    return [own for own in found if own.offered]


def describe_drafts(counts: Mapping[str, int | None], tokens: int) -> str:
    """Describe the drafts of every source in a line; empty without drafts."""
    return "; ".join(
        f"{own.source} {count(own.accepted)} of {count(own.offered)} accepted ({percent(own.acceptance)}), "
        f"{percent(own.share)} of the output" for own in drafts_by_source(counts, tokens)
    )  # fmt: skip
