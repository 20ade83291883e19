"""Reports the metrics of :mod:`pipeline.cluster.metrics` to Ray, whose agent on each node serves them to Prometheus.

A thread of its own samples every few seconds: nothing here runs for each row, and nothing on the path of a forward. On
a node without a metrics port there is no reporter at all.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import reduce
from typing import Any

from pipeline.cluster.metrics import LABELS, METRICS, ActorSource, DriverSource, Metric
from pipeline.config import RunConfig
from pipeline.stages import seconds_since_start
from pipeline.worker.engine_thread import EngineThread

_LOG = logging.getLogger(__name__)
_VARIABLE, _LEAST_SECONDS, _USUAL_SECONDS = "WEDLM_METRICS_SECONDS", 0.1, 5.0


def seconds_between(given: str | None) -> float:
    """Seconds between two samples, as the variable says; a run does not fail for its metrics, nor spins for them."""
    try:
        seconds = _USUAL_SECONDS if not given else float(given)
    except ValueError:
        seconds = math.nan
    if not _LEAST_SECONDS <= seconds < math.inf:
        _LOG.warning("%s=%r: a number of %g or more; %g is taken", _VARIABLE, given, _LEAST_SECONDS, _USUAL_SECONDS)
        return _USUAL_SECONDS
    return seconds


_DRIVER = ""
"""The pool of metrics that the driver reports."""
SAMPLE_SECONDS = seconds_between(os.environ.get(_VARIABLE))
"""Seconds between two samples. Ray passes them on every 10 s, and forgets a gauge that was not set for 20 s."""
_MOST = 200
"""Characters of a label's value."""


Instrument = Callable[[float, Mapping[str, str]], None]
"""Takes values of one metric, with labels: adds to a counter, sets a gauge, or observes in a histogram."""


class Reporter:
    """Samples sources and gives changed values to the instruments.

    ``make`` makes the instrument of a metric, when it first has a value.
    """

    def __init__(self, labels: Mapping[str, str], make: Callable[[Metric], Instrument]) -> None:
        self._labels = dict(labels)
        self._make = make
        self._instruments: dict[str, Instrument] = {}
        self._before: dict[tuple[str, str], float] = {}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._last: float | None = None

    def sample(self, sources: Mapping[str, Any], seconds: float) -> None:
        """Report every metric whose source is among ``sources`` (first name of ``Metric.source`` -> source).

        ``seconds``: since the last sample; 0 for the first one, which gives neither ratios nor rates.
        """
        with self._lock:
            grown: dict[str, float] = {}
            for metric in METRICS:
                if metric.reported_by not in sources:
                    continue
                value = _read(sources, metric.source)
                if metric.kind == "gauge":
                    for label, one in _by_label(metric, value):
                        self._give(metric, one, label)
                elif metric.kind == "counter":
                    for label, one in _by_label(metric, value):
                        more = one - self._before.get((metric.source, label), 0)
                        self._before[metric.source, label] = one
                        grown[metric.source] = more
                        if more > 0:  # Ray refuses to add nothing
                            self._give(metric, more, label)
            for metric in METRICS if seconds else ():
                below = seconds if metric.kind == "rate" else grown.get(metric.over, 0)
                if metric.kind in ("ratio", "rate") and metric.source in grown and below > 0:
                    self._give(metric, grown[metric.source] / below)

    def observe(self, name: str, value: float) -> None:
        """Report one value of a histogram, by the metric's name."""
        try:
            with self._lock:
                self._give(_BY_NAME[name], value)
        except Exception:  # a run does not fail for its metrics
            _LOG.warning("metric %s could not be reported", name, exc_info=True)

    def start(self, read: Callable[[], Mapping[str, Any]], seconds: float = SAMPLE_SECONDS) -> None:
        """Sample the result of ``read`` from now on, in a thread, until :meth:`close`."""

        def run() -> None:
            while not self._stop.wait(seconds):
                self._sample(read)
            self._sample(read)

        self._sample(read)
        self._thread = threading.Thread(target=run, name="metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Sample once more and end the thread."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def _sample(self, read: Callable[[], Mapping[str, Any]]) -> None:
        now = time.monotonic()
        seconds, self._last = 0.0 if self._last is None else now - self._last, now
        try:
            self.sample(read(), seconds)
        except Exception:  # a run does not fail for its metrics
            _LOG.warning("metrics could not be reported", exc_info=True)

    def _give(self, metric: Metric, value: float, label: str = "") -> None:
        if metric.name not in self._instruments:
            self._instruments[metric.name] = self._make(metric)
        own = {metric.label: label_of(label)} if metric.label else {}
        self._instruments[metric.name](value, {**self._labels, **own})


_BY_NAME = {metric.name: metric for metric in METRICS}


def _read(sources: Mapping[str, Any], source: str) -> Any:
    root, *names = source.split(".")
    return reduce(getattr, names, sources[root])


def _by_label(metric: Metric, value: Any) -> list[tuple[str, float]]:
    return list(value.items()) if metric.label else [("", value)]


def labels_of(config: RunConfig, pool: str) -> dict[str, str]:
    """The labels of a run's metrics; without credentials."""
    job = config.output_name
    return {name: label_of(value) for name, value in zip(LABELS, (job, config.model_name, pool), strict=True)}


def label_of(value: str) -> str:
    """A label's value: the end of a text, in ASCII, as Ray takes no other; other characters are escaped."""
    plain = value.encode("ascii", "backslashreplace").decode()
    return "".join(one if one.isprintable() else f"\\x{ord(one):02x}" for one in plain)[-_MOST:]


def report_actor(config: RunConfig, engine: EngineThread, pool: str, *, restarted: bool) -> Reporter | None:
    """Report the metrics of this generate actor, whose engine is ready now, for as long as its process lives.

    ``restarted``: whether this process replaces one that died. None if no process serves metrics here.
    """
    if (reporter := _reporter(config, pool)) is None:
        return None
    import ray

    reserved = ray.get_runtime_context().get_assigned_resources()

    def read() -> Mapping[str, Any]:
        age, snapshot = seconds_since_start(), engine.snapshot()
        actor = ActorSource(
            deaths=int(restarted),
            queue_depth=engine.queue_depth,
            accelerator_seconds=age * float(reserved.get("GPU", 0)),
            cpu_seconds=age * float(reserved.get("CPU", 0)),
        )
        return {"actor": actor} if snapshot is None else {"actor": actor, "engine": snapshot}

    reporter.observe("actor_start_seconds", seconds_since_start())
    reporter.start(read)
    return reporter


@contextmanager
def report_run(config: RunConfig, source: DriverSource) -> Iterator[None]:
    """Context: the metrics of a run's driver are reported, if somebody serves them here."""
    reporter = _reporter(config, _DRIVER)
    if reporter is not None:
        reporter.start(lambda: {"driver": source})
    try:
        yield
    finally:
        if reporter is not None:
            reporter.close()


def _reporter(config: RunConfig, pool: str) -> Reporter | None:
    return Reporter(labels_of(config, pool), _ray_instrument) if _has_metrics_port() else None


def _has_metrics_port() -> bool:
    """Whether the node of this process serves metrics."""
    import ray

    here = ray.get_runtime_context().get_node_id()
    return any(node["NodeID"] == here and node.get("MetricsExportPort", 0) > 0 for node in ray.nodes())


def _ray_instrument(metric: Metric) -> Instrument:
    from ray.util.metrics import Counter, Gauge, Histogram

    given: dict[str, Any] = {"description": f"{metric.help} Unit: {metric.unit}.", "tag_keys": metric.labels}
    take: Callable[[float, dict[str, str]], None]
    if metric.kind == "counter":
        take = Counter(metric.ray_name, **given).inc
    elif metric.kind == "histogram":
        take = Histogram(metric.ray_name, boundaries=list(metric.buckets), **given).observe
    else:
        take = Gauge(metric.ray_name, **given).set
    return lambda value, labels: take(value, dict(labels))
