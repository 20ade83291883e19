"""A driver that scrapes the metrics ports of its cluster's nodes while it generates; prints its findings as JSON.

Run as ``python -m testing.pipeline.scraped_run OUTPUT`` with ``RAY_ADDRESS`` in the environment.
"""

from __future__ import annotations

import json
import sys
import time
import urllib.request
from dataclasses import dataclass, field

_ROWS = 300
_SHARED = "Count from 3 to 9. " * 20
_SECONDS_BETWEEN = 0.5
_EXPORTED_AFTER = 3.0
"""Longer than a report interval of one second, so that the driver's last values are out."""


@dataclass(frozen=True, kw_only=True)
class Scraped:
    """One series: its last value, and the largest one that was seen."""

    name: str
    labels: dict[str, str] = field(default_factory=dict)
    last: float = 0.0
    most: float = 0.0


def read_metrics(port: int) -> list[tuple[str, dict[str, str], float]]:
    """The samples that a node's metrics port gives: name, labels, value."""
    from prometheus_client.parser import text_string_to_metric_families

    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    families = text_string_to_metric_families(text)
    return [(sample.name, dict(sample.labels), sample.value) for family in families for sample in family.samples]


def main(output: str) -> None:
    """Generate, and print ``{"series": [...], "totals": [...]}`` as the last line."""
    import ray

    import pipeline
    from wedlm_core import EngineConfig, SamplingParams

    ray.init(log_to_driver=False)  # our own, so that the driver goes on to report after the run
    ports = [node["MetricsExportPort"] for node in ray.nodes() if node["Alive"]]
    seen: dict[str, Scraped] = {}
    last = time.monotonic()

    def scrape() -> None:
        for port in ports:
            for name, labels, value in read_metrics(port):
                if name.startswith("ray_wedlm_"):
                    key = json.dumps([name, labels], sort_keys=True)
                    most = max(value, seen[key].most) if key in seen else value
                    seen[key] = Scraped(name=name, labels=labels, last=value, most=most)

    def on_progress(_: object) -> None:
        nonlocal last
        if time.monotonic() - last > _SECONDS_BETWEEN:
            scrape()
            last = time.monotonic()

    rows = [{"prompt": f"{_SHARED}Write about the number {i}."} for i in range(_ROWS)]
    result = pipeline.run(
        [*rows, {"prompt": ""}], output=output, model="tiny", unit_rows=4, num_threads=1, price_per_hour=3600.0,
        sampling=SamplingParams(max_tokens=200, ignore_eos=True), on_progress=on_progress,
        engine=EngineConfig(max_num_seqs=8),  # so that most prompts come when their prefix is known
        report_traces=0,  # engines generate only the ledger's rows
    )  # fmt: skip
    end = time.monotonic() + _EXPORTED_AFTER
    while time.monotonic() < end:
        scrape()
        time.sleep(_SECONDS_BETWEEN)
    summary = result.summary
    print(json.dumps({
        "series": [vars(series) for series in seen.values()],
        "tokens": summary.total.completion_tokens, "rows": summary.total.rows, "units": summary.total.units,
        "cpu_seconds": summary.used.cpus, "gpu_seconds": summary.used.accelerators, "seconds": summary.seconds,
        "cost": summary.cost, "summary": summary.describe(),
    }))  # fmt: skip


if __name__ == "__main__":
    main(sys.argv[1])
