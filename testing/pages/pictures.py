"""Pictures of the pages, taken of runs of the shipped model.

    python -m testing.pages.pictures

runs a job and a chain, and writes ``progress.svg``, ``chain.svg`` and ``report.png`` (with Debian's chromium).
"""

from __future__ import annotations

import contextlib
import io
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from rich.console import Console

import pipeline
from jobs.demo import PROMPTS
from pipeline import layout
from pipeline.codec import EngineConfig, SamplingParams
from pipeline.commands.report import gather
from pipeline.progress.live import frame
from pipeline.progress.snapshot import Snapshot, Stage
from pipeline.reporting.page import render
from pipeline.storage.open import open_storage
from testing.browser import chromium
from testing.repository import ROOT

IMAGES = ROOT / "docs" / "images"
_WIDTH = 100
_BAD = [{"prompt": ""}] * 3 + [{"prompt": "x " * 3000}] * 2
_NUMBER = {"pattern": "Answer: ([0-9]+)", "type": "int64"}
_STAGES: list[Mapping[str, Any]] = [
    {"name": "write", "prompt_template": "What is {{ a }} + {{ b }}?", "parse": {"answer": _NUMBER},
     "sampling": {"n": 3, "temperature": 1.5}},
    {"name": "check", "prompt_template": "What is {{ answer }} - {{ b }}?", "parse": {"back": _NUMBER}},
    {"name": "good", "filter": {"keep": "check_back = a"}},
]  # fmt: skip
"""The chain of docs/guides/stages.md."""


class Camera:
    """Observer of a run that keeps the live view when half of the rows are done."""

    def __init__(self, command: str) -> None:
        self._command = command
        self.svg: str | None = None

    def update(self, snapshot: Snapshot) -> None:
        """Take the picture if it is time."""
        if self.svg is None and snapshot.stage is Stage.GENERATING and snapshot.share >= 0.5:
            console = Console(record=True, width=_WIDTH, file=io.StringIO(), force_terminal=True)
            console.print(frame(snapshot, console))
            self.svg = console.export_svg(title=self._command)

    def close(self, snapshot: Snapshot) -> None:
        """Nothing more to see."""

    def write(self, path: Path) -> None:
        """Write the picture."""
        assert self.svg is not None, "the run ended before a snapshot of its second half"
        path.write_text("\n".join(line.rstrip() for line in self.svg.splitlines()) + "\n", encoding="utf-8")


def _run() -> None:
    prompts = pq.read_table(PROMPTS).select(["prompt"]).to_pylist()
    camera = Camera("wedlm-batch generate")
    pipeline.run(
        [*_BAD, *prompts * 6], output="out/demo", model="tiny", chat=True, sampling=SamplingParams(max_tokens=192),
        engine=EngineConfig(max_num_seqs=8), price_per_hour=0.05, progress=camera,
    )  # fmt: skip
    camera.write(IMAGES / "progress.svg")


def _run_chain() -> None:
    camera = Camera("wedlm-batch chain --config chain.yaml")
    sums = [{"a": 10 + number % 60, "b": 11 + number % 37} for number in range(900)]
    pipeline.chain(
        _STAGES, input=sums, output="out/sums", model="tiny", sampling={"max_tokens": 48}, price_per_hour=0.05,
        progress=camera,
    )  # fmt: skip
    camera.write(IMAGES / "chain.svg")


def _photograph_report() -> None:
    page = Path("report.html").resolve()
    facts = gather(open_storage("out/demo", layout.SCRATCH))
    page.write_text(render(replace(facts, output="out/demo")), encoding="utf-8")
    with chromium() as browser:
        browser.open(page)
        (IMAGES / "report.png").write_bytes(browser.driver.get_screenshot_as_png())


def main() -> None:
    """Take them all, in a folder for temporary files."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        _run()
        _photograph_report()
        _run_chain()


if __name__ == "__main__":
    main()
