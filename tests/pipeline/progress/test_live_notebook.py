"""The view in a notebook, in a real kernel: HTML in one place, no widgets; and none of it elsewhere."""

from __future__ import annotations

import html.parser
from typing import Any

import pytest

from pipeline.progress.live import to_html
from pipeline.progress.snapshot import Snapshot, Stage
from pipeline.progress.views import resolve_mode
from pipeline.types import Totals
from testing.repository import ROOT

CELL = f"""
import sys, threading
sys.path.insert(0, {str(ROOT)!r})
from pipeline.progress.monitor import Monitor
from pipeline.progress.views import views
from pipeline.types import Totals
monitor = Monitor(views("auto"), output="out <b>", model="tiny")
with monitor.shown():
    monitor.plan(40, Totals(rows=30, failed_rows=1), 1)
    threading.Event().wait(0.6)
"""


def test_a_snapshot_is_well_formed_html_without_scripts() -> None:
    tags: list[str] = []

    class Parser(html.parser.HTMLParser):
        def handle_starttag(self, tag: str, attrs: Any) -> None:
            tags.append(tag)

        def handle_endtag(self, tag: str) -> None:
            tags.append(f"/{tag}")

    found = to_html(Snapshot(total_rows=10, done=Totals(rows=5), output="<script>x</script>", stage=Stage.GENERATING))
    Parser().feed(found)
    assert "script" not in tags
    assert sorted(tag for tag in tags if not tag.startswith("/")) == sorted(t[1:] for t in tags if t.startswith("/"))
    assert "5 of 10" in found
    assert "50%" in found


def test_outside_of_a_kernel_there_is_no_notebook() -> None:
    assert resolve_mode("auto") != "notebook"


def test_a_kernel_shows_one_place_that_is_updated() -> None:
    pytest.importorskip("ipykernel", reason="ipykernel is not installed")
    from jupyter_client.manager import start_new_kernel

    manager, client = start_new_kernel()
    found: list[tuple[str, dict[str, Any]]] = []
    try:
        reply = client.execute_interactive(
            CELL, timeout=60, output_hook=lambda message: found.append((message["msg_type"], message["content"]))
        )
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    assert reply["content"]["status"] == "ok", reply
    shown = [content for kind, content in found if kind == "display_data"]
    updates = [content for kind, content in found if kind == "update_display_data"]
    assert len(shown) == 1
    assert updates
    places = {content["transient"]["display_id"] for content in (*shown, *updates)}
    assert len(places) == 1, "one place in the output"
    assert "30 of 40" in updates[-1]["data"]["text/html"]
    assert "out &lt;b&gt;" in updates[-1]["data"]["text/html"]
    assert "stage=done" in updates[-1]["data"]["text/plain"]
    assert not [content for kind, content in found if kind == "stream"], "neither lines nor escape codes"
