"""Makes the Grafana dashboard and the table of metrics in the documentation from :mod:`pipeline.cluster.metrics`.

    python -m testing.monitoring

Run it after a change of the table; a test holds the files equal to the results of this module.
"""

from __future__ import annotations

import json
from typing import Any

from pipeline.cluster.metrics import METRICS, Metric
from testing.repository import ROOT

__all__ = ["DASHBOARD", "DOCUMENT", "dashboard", "document", "expression", "files", "metric_of_source"]

DASHBOARD = ROOT / "infra" / "monitoring" / "grafana-dashboard.json"
DOCUMENT = ROOT / "docs" / "reference" / "metrics.md"

_BEGIN, _END = "<!-- begin: python -m testing.monitoring -->", "<!-- end -->"
_WIDTH, _HEIGHT, _COLUMNS = 8, 8, 3
_UNITS = {"share": "percentunit", "s": "s", "tokens": "short"}
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_COST = ("accelerator_seconds", "cpu_seconds")


def files() -> dict[Any, str]:
    """Every file that is made from the table: path -> text."""
    return {
        DASHBOARD: json.dumps(dashboard(), indent=1) + "\n",
        DOCUMENT: document(DOCUMENT.read_text(encoding="utf-8")),
    }


# ---- the dashboard


def _selector(metric: Metric, suffix: str = "") -> str:
    """The series of a metric that the dashboard's variables choose; the driver's have no pool."""
    pool = "" if metric.reported_by == "driver" else ', pool=~"$pool"'
    return f'{metric.scraped_name}{suffix}{{job=~"$job", model=~"$model"{pool}}}'


def _by(metric: Metric) -> str:
    own = ["job"] if metric.reported_by == "driver" else ["job", "pool"]
    return ", ".join([*own, metric.label] if metric.label else own)


def metric_of_source(source: str) -> Metric:
    """The counter that is read at ``source``.

    Raises:
        KeyError: there is none.
    """
    for metric in METRICS:
        if metric.kind == "counter" and metric.source == source:
            return metric
    raise KeyError(source)


def _growth(metric: Metric) -> str:
    return f"sum by ({_by(metric)}) (rate({_selector(metric)}[$__rate_interval]))"


def expression(metric: Metric) -> str:
    """The query of a metric's panel. Ratios and rates follow from counters, so they are right over several actors."""
    if metric.kind == "counter":
        return _growth(metric)
    if metric.kind == "rate":
        return _growth(metric_of_source(metric.source))
    if metric.kind == "ratio":
        return f"{_growth(metric_of_source(metric.source))} / {_growth(metric_of_source(metric.over))}"
    if metric.kind == "histogram":
        rate = f"rate({_selector(metric, '_bucket')}[$__rate_interval])"
        return f"histogram_quantile(0.9, sum by ({_by(metric)}, le) ({rate}))"
    return f"{metric.across} by ({_by(metric)}) ({_selector(metric)})"


def _title(metric: Metric) -> str:
    words = {"p_cache": "Prefix cacheability (p_cache)", "kv_pages_used": "KV pages used"}
    words |= {"kv_pages_share": "KV pages, share", "cpu_seconds": "CPU seconds"}
    title = words.get(metric.name, metric.name.replace("_", " ").capitalize())
    return f"{title} per second" if metric.kind == "counter" else title


def _panel(number: int, title: str, description: str, unit: str, query: str, legend: str) -> dict[str, Any]:
    row, column = divmod(number, _COLUMNS)
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": title,
        "description": description,
        "datasource": _SOURCE,
        "gridPos": {"x": column * _WIDTH, "y": row * _HEIGHT, "w": _WIDTH, "h": _HEIGHT},
        "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": [{"refId": "A", "datasource": _SOURCE, "expr": query, "legendFormat": legend}],
    }


def _legend(metric: Metric) -> str:
    return " ".join(f"{{{{{label.strip()}}}}}" for label in _by(metric).split(","))


def _cost_panels(number: int) -> list[dict[str, Any]]:
    """Seconds per million committed tokens, over the last hour."""
    (tokens,) = [metric for metric in METRICS if metric.name == "tokens_committed"]
    panels: list[dict[str, Any]] = []
    for name in _COST:
        (seconds,) = [metric for metric in METRICS if metric.name == name]
        query = (
            f"1e6 * sum by (job) (increase({_selector(seconds)}[1h])) / "
            f"sum by (job) (increase({_selector(tokens)}[1h]))"
        )
        title = f"{_title(seconds).removesuffix(' per second')} per million tokens"
        text = f"{seconds.help} Over the tokens that were committed in the last hour."
        panels.append(_panel(number + len(panels), title, text, "s", query, "{{job}}"))
    return panels


def dashboard() -> dict[str, Any]:
    """The dashboard, as Grafana imports it: a panel for each metric of the table, in its order, and the cost.

    A counter that is shown as a ``rate`` has no other panel.
    """
    panels = [
        _panel(number, _title(metric), f"{metric.help} Unit: {metric.unit}{'/s' * (metric.kind == 'counter')}.",
               _UNITS.get(metric.unit, "short"), expression(metric), _legend(metric))
        for number, metric in enumerate(metric for metric in METRICS if not _has_rate(metric))
    ]  # fmt: skip
    actors = next(metric for metric in METRICS if metric.name == "tokens_generated").scraped_name
    return {
        "title": "WeDLM Batch",
        "uid": "wedlm-batch",
        "tags": ["wedlm", "ray"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {
            "list": [
                {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Data source"},
                *(_variable(label, actors) for label in ("job", "model", "pool")),
            ]
        },
        "panels": [*panels, *_cost_panels(len(panels))],
    }


def _has_rate(metric: Metric) -> bool:
    return metric.kind == "counter" and any(m.kind == "rate" and m.source == metric.source for m in METRICS)


def _variable(label: str, series: str) -> dict[str, Any]:
    query = f"label_values({series}, {label})"
    return {
        "name": label,
        "type": "query",
        "datasource": _SOURCE,
        "definition": query,
        "query": {"query": query, "refId": label},
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }


# ---- the documentation


def document(text: str) -> str:
    """The page with its table made again."""
    before, rest = text.split(_BEGIN)
    after = rest.split(_END)[1]
    rows = [
        f"| `{m.scraped_name}` | {m.kind} | {m.unit} | {f'`{m.label}`' if m.label else ''} | {m.help} |"
        for m in METRICS
    ]  # fmt: skip
    table = ["| on a node's port | kind | unit | label | |", "| --- | --- | --- | --- | --- |", *rows]
    return f"{before}{_BEGIN}\n" + "\n".join(table) + f"\n{_END}{after}"
