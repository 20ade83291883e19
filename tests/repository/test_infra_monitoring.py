"""Scrape configuration, alert rules, dashboard and the page of metrics agree with the table of metrics."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml

from pipeline.cluster.metrics import LABELS, METRICS
from testing.infra import INFRA, load
from testing.monitoring import DASHBOARD, DOCUMENT, dashboard, files, metric_of_source
from testing.repository import ROOT

MONITORING = INFRA / "monitoring"
RULES = load(MONITORING / "alerts.yml")["groups"][0]["rules"]
PANELS = dashboard()["panels"]
LABELS_OF = {
    f"{metric.scraped_name}{suffix}": {*metric.labels, *({"le"} if suffix == "_bucket" else ())}
    for metric in METRICS
    for suffix in (("_bucket", "_count", "_sum") if metric.kind == "histogram" else ("",))
}
"""Every name that a port serves, and the labels that are ours."""
PROMTOOL = shutil.which(os.environ.get("PROMTOOL", "promtool"))
needs_promtool = pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed (Debian: prometheus)")


def expression(panel: dict[str, Any]) -> str:
    return panel["targets"][0]["expr"].replace("$__rate_interval", "5m")


def selectors(query: str) -> list[Any]:
    """Every selector of series in a query, which is parsed."""
    found = []

    def visit(node: Any) -> None:
        if isinstance(node, promql_parser.VectorSelector):
            found.append(node)
        for name in ("expr", "lhs", "rhs", "vector_selector"):
            if (inner := getattr(node, name, None)) is not None:
                visit(inner)
        for argument in getattr(node, "args", None) or ():
            visit(argument)

    visit(promql_parser.parse(query))
    return found


QUERIES = [pytest.param(rule["expr"], id=rule["alert"]) for rule in RULES]
QUERIES += [pytest.param(expression(panel), id=panel["title"]) for panel in PANELS]


def test_files_on_disk_are_those_that_follow_from_the_table() -> None:
    for path, text in files().items():
        assert path.read_text(encoding="utf-8") == text, "run python -m testing.monitoring"


@pytest.mark.parametrize("query", QUERIES)
def test_queries_ask_for_metrics_and_labels_of_the_table(query: str) -> None:
    found = selectors(query)
    assert found
    for selector in found:
        assert selector.name in LABELS_OF
        asked = {matcher.name for matcher in selector.matchers.matchers}
        assert asked <= LABELS_OF[selector.name], selector.name
    grouped = {label.strip() for by in re.findall(r"(?:by|on) \(([^)]*)\)", query) for label in by.split(",")}
    assert grouped <= set().union(*(LABELS_OF[selector.name] for selector in found))


def test_every_metric_has_a_panel() -> None:
    cost, shown_as_rate = 2, 1
    assert len(PANELS) == len(METRICS) - shown_as_rate + cost
    asked = {selector.name for panel in PANELS for selector in selectors(expression(panel))}
    counters = {metric.scraped_name for metric in METRICS if metric.kind in ("counter", "gauge")}
    assert counters <= asked
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in PANELS]
    assert len(set(places)) == len(places)
    assert len({panel["title"] for panel in PANELS}) == len(PANELS)


def test_the_table_is_sound() -> None:
    names = [metric.name for metric in METRICS]
    assert len(set(names)) == len(names)
    for metric in METRICS:
        assert re.fullmatch(r"[a-z][a-z_]*[a-z]", metric.name)
        assert metric.help.endswith(".")
        assert (metric.kind == "histogram") == bool(metric.buckets) == (not metric.source)
        if metric.kind in ("ratio", "rate"):
            assert metric_of_source(metric.source).reported_by == metric.reported_by
        assert (metric.kind == "ratio") == bool(metric.over)
        if metric.over:
            metric_of_source(metric.over)
        assert "row" not in metric.label
        assert "unit" not in metric.label


def test_rules_name_labels_that_their_alerts_have() -> None:
    assert len({rule["alert"] for rule in RULES}) == len(RULES)
    for rule in RULES:
        assert rule["labels"]["severity"] in ("warning", "critical")
        text = str(rule["annotations"])
        assert set(re.findall(r"\$labels\.(\w+)", text)) <= set(LABELS)


def test_every_scrape_keeps_our_label_job() -> None:
    config = load(MONITORING / "prometheus.yml")
    assert all((MONITORING / name).is_file() for name in config["rule_files"])
    for job in config["scrape_configs"]:
        assert job["honor_labels"] is True, "or `job` becomes `exported_job`"
    (pods,) = [job for job in config["scrape_configs"] if "kubernetes_sd_configs" in job]
    kept = {tuple(rule["source_labels"]): rule["regex"] for rule in pods["relabel_configs"] if "regex" in rule}
    assert kept[("__meta_kubernetes_pod_container_port_name",)] == "metrics", "as test_infra.py has it of the pods"
    (listed,) = [job for job in config["scrape_configs"] if "file_sd_configs" in job]
    import ray._private.ray_constants as constants

    assert Path(listed["file_sd_configs"][0]["files"][0]).name == constants.PROMETHEUS_SERVICE_DISCOVERY_FILE


@needs_promtool
def test_promtool_accepts_rules_and_configuration(tmp_path: Path) -> None:
    config = load(MONITORING / "prometheus.yml")
    # Some builds (Debian's) leave Kubernetes out.
    config["scrape_configs"] = [job for job in config["scrape_configs"] if "kubernetes_sd_configs" not in job]
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config))
    shutil.copy(MONITORING / "alerts.yml", tmp_path)
    promtool("check", "config", str(tmp_path / "prometheus.yml"))
    promtool("check", "rules", str(MONITORING / "alerts.yml"))


@needs_promtool
def test_alerts_fire_when_they_should() -> None:
    promtool("test", "rules", str(MONITORING / "alerts_test.yml"))


def test_every_alert_is_tried() -> None:
    tried = (MONITORING / "alerts_test.yml").read_text(encoding="utf-8")
    assert not [rule["alert"] for rule in RULES if rule["alert"] not in tried]


def promtool(*arguments: str) -> None:
    assert PROMTOOL is not None
    done = subprocess.run([PROMTOOL, *arguments], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_dashboard_is_json_that_grafana_imports() -> None:
    found = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    variables = {variable["name"] for variable in found["templating"]["list"]}
    text = DASHBOARD.read_text(encoding="utf-8")
    used = set(re.findall(r"\$\{?([a-z]\w*)", text))
    assert used <= variables
    assert DOCUMENT.is_file()
