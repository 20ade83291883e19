"""The state of a run at one moment. Plain numbers; any thread may keep them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from pipeline.codec import gain_of
from pipeline.types import Totals

_HOUR = 3600.0
_LEAST_SECONDS = 0.5  # of decoding: a gain measured over less is noise


class Stage(StrEnum):
    """The stage of a run. They come in this order; a run may go back to generating if it finds damage.

    Only a chain with filters at its end is ``filtering``. The stages of a chain are others: :class:`ChainStage`.
    """

    PLANNING = "planning"
    STARTING = "starting"
    LOADING = "loading"
    COMPILING = "compiling"
    GENERATING = "generating"
    PUBLISHING = "publishing"
    FILTERING = "filtering"
    DONE = "done"


@dataclass(frozen=True, kw_only=True)
class ResourceSeconds:
    """How long actors have lived, times the resources of each.

    Attributes:
        accelerators: GPU-seconds.
        cpus: CPU-seconds.
    """

    accelerators: float = 0.0
    cpus: float = 0.0

    def __add__(self, other: ResourceSeconds) -> ResourceSeconds:
        """The sums."""
        return ResourceSeconds(accelerators=self.accelerators + other.accelerators, cpus=self.cpus + other.cpus)

    @property
    def priced(self) -> float:
        """The seconds that are paid for: of accelerators; where there were none, of CPUs."""
        return self.accelerators or self.cpus

    @property
    def unit(self) -> str:
        """The resource of :attr:`priced`: ``GPU`` or ``CPU``."""
        return "GPU" if self.accelerators else "CPU"

    def per_million(self, tokens: int) -> float | None:
        """:attr:`priced` per million tokens; None without tokens."""
        return self.priced * 1e6 / tokens if tokens else None

    def cost(self, price_per_hour: float) -> float:
        """Price of the priced seconds, in the currency of ``price_per_hour`` (of one GPU or CPU)."""
        return self.priced / _HOUR * price_per_hour


@dataclass(frozen=True, kw_only=True)
class Progress:
    """The committed part of a run at one moment.

    Attributes:
        total_rows: input rows of the run, those of earlier sessions included.
        done: totals over all committed units.
        session: totals over the units that this session committed.
        seconds: time since the first engine was ready in this session (without the start of processes and
            model loading), up to the last committed unit; 0 before the first one.
    """

    total_rows: int = 0
    done: Totals = field(default_factory=Totals)
    session: Totals = field(default_factory=Totals)
    seconds: float = 0.0

    @property
    def tokens_per_second(self) -> float:
        """Generated tokens of this session per second."""
        return self.session.completion_tokens / self.seconds if self.seconds > 0 else 0.0

    def merged_with(self, other: Progress) -> Progress:
        """The sum of both; ``seconds`` is the larger one."""
        return Progress(
            total_rows=self.total_rows + other.total_rows, done=self.done.merged_with(other.done),
            session=self.session.merged_with(other.session), seconds=max(self.seconds, other.seconds),
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Rates:
    """Input rows and generated tokens per second, of the latest commits; 0 before there are any."""

    rows_per_second: float = 0.0
    tokens_per_second: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Actors:
    """Generate actors.

    Attributes:
        ready: have loaded their model and take units.
        starting: asked for, and not ready yet; those that wait for a node included.
        leaving: finish their units and take no new one.
        most: that there may be at once: the number given, or the top of the range.
    """

    ready: int = 0
    starting: int = 0
    leaving: int = 0
    most: int = 0

    def __add__(self, other: Actors) -> Actors:
        """Both."""
        return Actors(**{name: own + getattr(other, name) for name, own in vars(self).items()})


@dataclass(frozen=True, kw_only=True)
class Load:
    """How full the engines are, as the actors said last (:mod:`pipeline.cluster.metrics` has the same values).

    Attributes:
        actors: that are in these sums.
        kv_pages_used, kv_pages: pages that some sequence holds, and pages of the pools.
        counters: sums of :class:`wedlm_core.engine.scheduling.counters.EngineCounters` by name, since this session
            began; engines of actors that ended or died included. They only grow.
    """

    actors: int = 0
    kv_pages_used: int = 0
    kv_pages: int = 0
    counters: Mapping[str, float] = field(default_factory=dict)

    @property
    def kv_share(self) -> float:
        """Share of the KV pages that some sequence holds; 0 where none are known."""
        return self.kv_pages_used / self.kv_pages if self.kv_pages else 0.0

    @property
    def gain(self) -> float | None:
        """Speed of decoding over that of autoregressive decoding; None for less than half a second of decoding."""
        expected = self.counters.get("autoregressive_seconds", 0.0)
        return gain_of(expected, self.counters.get("decode_seconds", 0.0)) if expected >= _LEAST_SECONDS else None

    def __add__(self, other: Load) -> Load:
        """The sums of both."""
        own, more = self.counters, other.counters
        counted = {name: own.get(name, 0) + more.get(name, 0) for name in {**own, **more}}
        plain = {name: value + getattr(other, name) for name, value in vars(self).items() if name != "counters"}
        return Load(**plain, counters=counted)


@dataclass(frozen=True, kw_only=True)
class ExecutorState:
    """The executor's view of a run at one moment.

    Attributes:
        actors: by state.
        phase: of the actors that are not ready yet: the latest of starting, loading, compiling that any has reached.
        load: of the engines; None if nothing is known.
        used: by the actors so far.
    """

    actors: Actors = field(default_factory=Actors)
    phase: Stage = Stage.STARTING
    load: Load | None = None
    used: ResourceSeconds = field(default_factory=ResourceSeconds)

    def __add__(self, other: ExecutorState) -> ExecutorState:
        """Two executors that work for one chain."""
        return ExecutorState(
            actors=self.actors + other.actors,
            phase=max(self.phase, other.phase, key=list(Stage).index),
            load=self.load + other.load if self.load and other.load else self.load or other.load,
            used=self.used + other.used,
        )


@dataclass(frozen=True, kw_only=True)
class ChainStage(Progress):
    """A stage of a chain at one moment. ``total_rows`` of a later one is an estimate until all of its units are done.

    Attributes:
        name: of the stage.
        units: that it has in all, those of earlier sessions included; 0 before they are planned.
        estimated: whether ``total_rows`` is an estimate: how many rows the stage before will give is not known yet.
    """

    name: str = ""
    units: int = 0
    estimated: bool = False

    @property
    def share(self) -> float:
        """Share of its units that are committed."""
        return self.done.units / self.units if self.units else 0.0


@dataclass(frozen=True, kw_only=True)
class Snapshot(Progress):
    """A run at one moment: its commits, and the work in progress. Of a chain, the sums over its stages.

    Attributes:
        output: where it writes, without credentials.
        model: its name.
        at: seconds since the run was called.
        stage: its stage.
        stages: seconds in each stage so far, in the order of their begin, the present one included.
        recent: rates of the last commits.
        actors: by state.
        load: of the engines; None if nothing is known.
        used: GPU-seconds or CPU-seconds of the actors so far.
        price_per_hour: of one accelerator or CPU, if it was given.
        note: the latest announcement (:func:`pipeline.stages.announce`), such as the reason of a wait; mostly empty.
        eta: seconds from now to the end; None before enough is committed, and when nothing is left.
        chain: of a chain, its stages that generate, in order.
    """

    output: str = ""
    model: str = ""
    at: float = 0.0
    stage: Stage = Stage.PLANNING
    stages: Mapping[Stage, float] = field(default_factory=dict)
    recent: Rates = field(default_factory=Rates)
    actors: Actors = field(default_factory=Actors)
    load: Load | None = None
    used: ResourceSeconds = field(default_factory=ResourceSeconds)
    price_per_hour: float | None = None
    note: str = ""
    eta: float | None = None
    chain: tuple[ChainStage, ...] = ()

    @property
    def cost(self) -> float | None:
        """Price of the actors' resources so far, in the currency of ``price_per_hour``; None if that was not given."""
        return None if self.price_per_hour is None else self.used.cost(self.price_per_hour)

    @property
    def share(self) -> float:
        """Share of the rows that are committed; 0 before the rows are counted."""
        return self.done.rows / self.total_rows if self.total_rows else 0.0
