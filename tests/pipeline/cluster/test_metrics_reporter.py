"""Reported metrics. ``tests/repository/test_infra_readme.py`` scrapes those of a real job."""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.cluster.metrics import LABELS, ActorSource, DriverSource, Metric
from pipeline.cluster.metrics_reporter import Instrument, Reporter, label_of, labels_of, seconds_between
from pipeline.config import RunConfig
from pipeline.types import CommitRecord
from wedlm_core.engine.scheduling.counters import EngineCounters, EngineSnapshot

OWN = dict(zip(LABELS, ("out", "tiny", "default"), strict=True))


class Recorder:
    """Keeps the values of instruments: sums of counters, last values of gauges, lists of histograms."""

    def __init__(self) -> None:
        self.values: dict[tuple[str, str], Any] = {}
        self.labels: dict[str, Mapping[str, str]] = {}

    def make(self, metric: Metric) -> Instrument:
        def take(value: float, labels: Mapping[str, str]) -> None:
            assert set(labels) == set(metric.labels)
            self.labels[metric.name] = labels
            key = metric.name, labels.get(metric.label, "")
            if metric.kind == "counter":
                assert value > 0, "Ray refuses it"
                self.values[key] = self.values.get(key, 0) + value
            elif metric.kind == "histogram":
                self.values.setdefault(key, []).append(value)
            else:
                self.values[key] = value

        return take

    def __getitem__(self, key: str | tuple[str, str]) -> Any:
        return self.values[(key, "") if isinstance(key, str) else key]


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def reporter(recorder: Recorder) -> Reporter:
    return Reporter(OWN, recorder.make)


def snapshot(**counts: float) -> EngineSnapshot:
    counters = EngineCounters(**counts)
    return EngineSnapshot(counters=counters, running=3, waiting=1, slots=4, kv_pages_used=5, kv_pages=10)


def test_a_counter_is_given_its_growth_and_a_gauge_its_value(reporter: Reporter, recorder: Recorder) -> None:
    for tokens in (0, 30, 30, 70):
        reporter.sample({"engine": snapshot(tokens=tokens)}, 5.0)
    assert recorder["tokens_generated"] == 70
    assert (recorder["engine_occupancy"], recorder["kv_pages_used"], recorder["kv_pages_share"]) == (0.75, 5, 0.5)
    assert recorder.labels["tokens_generated"] == OWN


def test_ratios_and_rates_are_of_the_time_since_the_last_sample(reporter: Reporter, recorder: Recorder) -> None:
    reporter.sample({"engine": snapshot(tokens=1000, decode_forwards=1000, decode_rows=1000, forwards=7)}, 0.0)
    assert ("forwards_per_second", "") not in recorder.values, "nothing is known of the time before the first sample"
    later = snapshot(tokens=1060, decode_forwards=1020, decode_rows=1240, masks=80, forwards=17)
    reporter.sample({"engine": later}, 5.0)
    assert (recorder["tokens_per_forward"], recorder["p_cache"]) == (3.0, 0.25)
    assert (recorder["masks_per_forward"], recorder["forwards_per_second"]) == (4.0, 2.0)
    reporter.sample({"engine": later}, 5.0)
    assert recorder["forwards_per_second"] == 0.0
    assert recorder["p_cache"] == 0.25, "a ratio of nothing is not reported"


def test_the_driver_reports_units_by_state_and_failures_by_class(reporter: Reporter, recorder: Recorder) -> None:
    source = DriverSource(10)
    source.dispatcher = SimpleNamespace(waiting=3, running=2)
    reporter.sample({"driver": source}, 5.0)
    assert {state: recorder["units", state] for state in source.units} == {
        "planned": 5, "waiting": 3, "running": 2, "committed": 0
    }  # fmt: skip
    lists = source.watch(iter([[record(10, {"RequestError": 2})], [record(5, {"RequestError": 1, "Other": 1})]]))
    next(lists)
    assert source.rows == 0, "a unit is committed when the consumer comes back for the next one"
    assert len(list(lists)) == 1
    reporter.sample({"driver": source}, 5.0)
    assert (recorder["tokens_committed"], recorder["input_rows_committed"]) == (15, 16)
    assert (recorder["failures", "RequestError"], recorder["failures", "Other"]) == (3, 1)
    assert (recorder["units", "committed"], recorder["units", "planned"]) == (2, 3)


def record(tokens: int, failures: dict[str, int]) -> CommitRecord:
    return CommitRecord(
        unit_id="u", file_key="f", first_row=0, num_rows=8, failed_rows=sum(failures.values()), samples=8,
        prompt_tokens=1, completion_tokens=tokens, decode_forwards=1, rows_forwarded=1, staged_bytes=1, data_sha256="",
        failures=failures,
    )  # fmt: skip


def test_an_actor_reports_its_start_its_predecessors_death_and_its_seconds(
    reporter: Reporter, recorder: Recorder
) -> None:
    actor = ActorSource(deaths=1, queue_depth=7, accelerator_seconds=50.0, cpu_seconds=200.0)
    reporter.sample({"actor": actor}, 5.0)
    reporter.sample({"actor": actor}, 5.0)
    assert (recorder["actor_starts"], recorder["actor_deaths"], recorder["queue_depth"]) == (1, 1, 7)
    assert (recorder["accelerator_seconds"], recorder["cpu_seconds"]) == (50.0, 200.0)
    reporter.observe("actor_start_seconds", 12.5)
    assert recorder["actor_start_seconds"] == [12.5]


def test_sampling_goes_on_after_an_error_and_ends_with_a_last_sample(recorder: Recorder) -> None:
    reads = []

    def read() -> Mapping[str, Any]:
        reads.append(time.monotonic())
        if len(reads) == 2:
            raise RuntimeError("not now")
        return {"engine": snapshot(tokens=len(reads))}

    reporter = Reporter(OWN, recorder.make)
    reporter.start(read, seconds=0.01)
    while len(reads) < 4:
        time.sleep(0.01)
    reporter.close()
    assert recorder["tokens_generated"] == len(reads)


def test_labels_hold_no_credentials() -> None:
    config = RunConfig(input="in", output="s3://key:hunter2secret@bucket/out", model="tiny")
    assert labels_of(config, "spot")["pool"] == "spot"
    assert "hunter2secret" not in str(labels_of(config, ""))


@pytest.mark.parametrize("given", ["", None, "0", "-1", "nan", "inf", "soon"])
def test_a_time_between_samples_that_is_none_does_not_end_a_process_nor_keep_it_busy(given: str | None) -> None:
    assert seconds_between(given) == 5.0


def test_a_time_between_samples_is_taken() -> None:
    assert seconds_between("0.5") == 0.5


@pytest.mark.parametrize(
    ("value", "label"),
    [
        ("out/caf\xe9", "out/caf\\xe9"),
        ("a\nb\tc", "a\\x0ab\\x09c"),
        ('o {a="b"} \\x', 'o {a="b"} \\x'),
        ("\u65e5\u672c", "\\u65e5\\u672c"),
        ("", ""),
    ],
)
def test_any_name_makes_a_label_that_ray_takes(value: str, label: str) -> None:
    assert label_of(value) == label
    assert label_of(value).isascii()
    assert len(label_of(value * 300)) <= 200
    assert labels_of(RunConfig(input="i", output=f"o{value}"), "p")["job"] == label_of(f"o{value}")


def test_an_instrument_that_refuses_a_value_ends_no_actor(caplog: pytest.LogCaptureFixture) -> None:
    def refuse(metric: Metric) -> Instrument:
        raise UnicodeError("no such label")

    reporter = Reporter({}, refuse)
    reporter.observe("actor_start_seconds", 1.0)
    assert "could not be reported" in caplog.text
