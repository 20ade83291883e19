"""The table of metrics: the meaning of each, and the source of its value. Knows no Ray.

A metric costs one line of :data:`METRICS`. The reporter (:mod:`pipeline.cluster.metrics_reporter`), the Grafana
dashboard and the table in the documentation follow from it. ``source`` names an attribute, dotted, of one of

``engine``
    :class:`wedlm_core.engine.scheduling.counters.EngineSnapshot` of an actor's engine,
``actor``
    :class:`ActorSource`, one for each generate actor,
``driver``
    :class:`DriverSource`, one for each run.

Every metric has the labels of :data:`LABELS`: none is kept by row.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from pipeline.types import CommitRecord

if TYPE_CHECKING:
    from pipeline.cluster.dispatcher import Dispatcher
    from pipeline.cluster.members import Members

LABELS = ("job", "model", "pool")
"""Labels of every metric: the run's output, without credentials; the model; the pool of actors (empty: the driver)."""

_PREFIX = "wedlm_"


@dataclass(frozen=True, kw_only=True)
class Metric:
    """One metric; its name is without the prefix.

    Attributes:
        kind: ``counter`` (only grows), ``gauge`` (a level), ``ratio`` (growth of ``source`` over growth of ``over``,
            since the last sample), ``rate`` (growth of ``source`` per second) or ``histogram`` (of single values, which
            are reported when they occur; no source).
        source: where the value is read; of a ``ratio`` or ``rate`` it is the source of a counter too.
        over: of a ``ratio``: source of the counter below the line.
        label: a further label; the source is then a mapping from its values.
        across: how a dashboard joins the values of several actors, where they do not follow from counters.
        buckets: upper bounds, of a histogram.
    """

    name: str
    kind: Literal["counter", "gauge", "ratio", "rate", "histogram"]
    unit: str
    help: str
    source: str = ""
    over: str = ""
    label: str = ""
    across: Literal["sum", "avg"] = "sum"
    buckets: tuple[float, ...] = ()

    @property
    def ray_name(self) -> str:
        """The name that Ray is given."""
        return f"{_PREFIX}{self.name}"

    @property
    def scraped_name(self) -> str:
        """Its name for Prometheus, on a node's metrics port; of a histogram, without its suffixes."""
        return f"ray_{self.ray_name}{'_total' if self.kind == 'counter' else ''}"

    @property
    def labels(self) -> tuple[str, ...]:
        """All of its labels."""
        return (*LABELS, self.label) if self.label else LABELS

    @property
    def reported_by(self) -> str:
        """``engine`` and ``actor`` metrics are reported by actors, ``driver`` metrics by the driver."""
        return self.source.partition(".")[0]


METRICS: tuple[Metric, ...] = (
    # ---- progress, by the driver
    Metric(name="tokens_committed", kind="counter", unit="tokens", source="driver.tokens",
           help="Generated tokens of committed units, as the ledger counts them."),
    Metric(name="input_rows_committed", kind="counter", unit="rows", source="driver.rows",
           help="Input rows of committed units, failed ones included."),
    Metric(name="failures", kind="counter", unit="rows", source="driver.failures", label="class",
           help="Committed rows that failed, by error class."),
    Metric(name="units", kind="gauge", unit="units", source="driver.units", label="state",
           help="Units of this run by state: planned, waiting (read, for an actor), running, committed."),
    # ---- decoding, by actors
    Metric(name="tokens_generated", kind="counter", unit="tokens", source="engine.counters.tokens",
           help="Tokens that engines generated, also for units that were lost or done twice."),
    Metric(name="rows_forwarded", kind="counter", unit="token rows", source="engine.counters.decode_rows",
           help="Token rows of decode forwards: last tokens, drafts, masks."),
    Metric(name="prompt_rows_forwarded", kind="counter", unit="token rows", source="engine.counters.prompt_rows",
           help="Token rows that only filled the KV cache, those after a preemption included."),
    Metric(name="forwards", kind="counter", unit="forwards", source="engine.counters.forwards",
           help="Forwards of the model."),
    Metric(name="decode_forwards", kind="counter", unit="forwards", source="engine.counters.decode_forwards",
           help="Decode forwards of each sequence, added up: one with 32 decoding sequences counts 32 times."),
    Metric(name="masks", kind="counter", unit="token rows", source="engine.counters.masks",
           help="Masks allocated to windows, before windows are cut at max_tokens."),
    Metric(name="tokens_per_forward", kind="ratio", unit="tokens",
           source="engine.counters.tokens", over="engine.counters.decode_forwards",
           help="Generated tokens per decode forward of a sequence."),
    Metric(name="p_cache", kind="ratio", unit="share",
           source="engine.counters.tokens", over="engine.counters.decode_rows",
           help="Prefix cacheability: generated tokens over token rows of decode forwards."),
    Metric(name="masks_per_forward", kind="ratio", unit="token rows",
           source="engine.counters.masks", over="engine.counters.decode_forwards",
           help="Masks allocated per decode forward of a sequence."),
    Metric(name="forwards_per_second", kind="rate", unit="forwards/s", source="engine.counters.forwards",
           help="Forwards of the model per second."),
    Metric(name="decode_seconds", kind="counter", unit="s", source="engine.counters.decode_seconds",
           help="Seconds of steps whose windows drafting chose, prefill and steps with a grammar left out."),
    Metric(name="autoregressive_seconds", kind="counter", unit="s", source="engine.counters.autoregressive_seconds",
           help="Seconds that autoregressive decoding was expected to take for the tokens of these steps."),
    Metric(name="gain", kind="ratio", unit="times",
           source="engine.counters.autoregressive_seconds", over="engine.counters.decode_seconds",
           help="How many times faster decoding is than autoregressive decoding would be at this load."),
    # ---- load of an engine
    Metric(name="engine_occupancy", kind="gauge", unit="share", source="engine.occupancy", across="avg",
           help="Share of the engine's slots (max_num_seqs) that run."),
    Metric(name="queue_depth", kind="gauge", unit="requests", source="actor.queue_depth",
           help="Requests of an actor's units that do not run yet."),
    Metric(name="kv_pages_used", kind="gauge", unit="pages", source="engine.kv_pages_used",
           help="KV pages that some sequence holds."),
    Metric(name="kv_pages_share", kind="gauge", unit="share", source="engine.kv_pages_share", across="avg",
           help="Share of the KV pool's pages that some sequence holds."),
    Metric(name="prompt_tokens", kind="counter", unit="tokens", source="engine.counters.prompt_tokens",
           help="Tokens of the prompts that began to run."),
    Metric(name="prefix_hits", kind="counter", unit="tokens", source="engine.counters.cached_prompt_tokens",
           help="Prompt tokens whose KV was found in the prefix cache."),
    Metric(name="prefix_hit_share", kind="ratio", unit="share",
           source="engine.counters.cached_prompt_tokens", over="engine.counters.prompt_tokens",
           help="Share of the prompts' tokens whose KV was found in the prefix cache."),
    Metric(name="preemptions", kind="counter", unit="sequences", source="engine.counters.preemptions",
           help="Times that a sequence lost its KV pages and had to be recomputed."),
    Metric(name="fallbacks", kind="counter", unit="exceptions", source="engine.counters.fallbacks",
           help="Exceptions of optimisations; the engine went on in the plain way, and its log has the cause."),
    # ---- actors and their cost
    Metric(name="actor_starts", kind="counter", unit="processes", source="actor.starts",
           help="Processes of generate actors that have loaded their model."),
    Metric(name="actor_deaths", kind="counter", unit="processes", source="actor.deaths",
           help="Processes of generate actors that died and were started again, counted when the new one is ready."),
    Metric(name="actor_start_seconds", kind="histogram", unit="s", buckets=(5, 10, 20, 40, 80, 160, 320, 640),
           help="From the start of an actor's process until its engine is ready."),
    Metric(name="accelerator_seconds", kind="counter", unit="GPU s", source="actor.accelerator_seconds",
           help="Seconds that actor processes have lived, times the GPUs that each reserves."),
    Metric(name="cpu_seconds", kind="counter", unit="CPU s", source="actor.cpu_seconds",
           help="Seconds that actor processes have lived, times the CPUs that each reserves."),
)  # fmt: skip
"""Every metric, in the order of the dashboard and of the documentation."""


@dataclass(frozen=True, kw_only=True)
class ActorSource:
    """Values of ``actor.*`` in the table of metrics at one moment, of one actor's process.

    ``deaths`` is 1 if this process replaces one that died; seconds are its age times the GPUs and CPUs of the actor.
    """

    starts: int = 1
    deaths: int
    queue_depth: int
    accelerator_seconds: float
    cpu_seconds: float


def engine_load(snapshot: Any, process: str) -> dict[str, Any] | None:
    """Counts of an engine of this process for the driver's progress; None for an engine that makes no snapshot."""
    if snapshot is None:
        return None
    own = {name: getattr(snapshot, name) for name in ("kv_pages_used", "kv_pages")}
    return {"process": process, "counters": asdict(snapshot.counters), **own}


class DriverSource:
    """Values of ``driver.*`` in the table of metrics, of one run.

    ``dispatcher`` and ``members`` are set once they are there.
    """

    def __init__(self, units: int = 0) -> None:
        self._units, self._committed = units, 0
        self._lock = threading.Lock()
        self._failures: Counter[str] = Counter()
        self.tokens = self.rows = 0
        self.dispatcher: Dispatcher | None = None
        self.members: Members | None = None

    def watch(self, lists: Iterator[list[CommitRecord]]) -> Iterator[list[CommitRecord]]:
        """``lists``; each counts as committed when the consumer asks for the next one."""
        for records in lists:
            yield records
            with self._lock:
                self._committed += len(records)
                self.tokens += sum(record.completion_tokens for record in records)
                self.rows += sum(record.num_rows for record in records)
                for record in records:
                    self._failures.update(record.failures)

    @property
    def failures(self) -> Mapping[str, int]:
        """Failed rows by error class."""
        with self._lock:
            return dict(self._failures)

    @property
    def units(self) -> Mapping[str, int]:
        """Units by state. One that is staged and not committed yet counts as planned, for a moment."""
        waiting, running = (self.dispatcher.waiting, self.dispatcher.running) if self.dispatcher else (0, 0)
        planned = max(0, self._units - self._committed - waiting - running)
        return {"planned": planned, "waiting": waiting, "running": running, "committed": self._committed}
