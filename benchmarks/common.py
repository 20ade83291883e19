"""Shared by all benchmarks: a description of the machine, and how results are stored."""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks import records
from benchmarks.records import table

__all__ = ["SAMPLING", "machine", "positive", "table", "write_result"]

SAMPLING: Mapping[str, Mapping[str, Any]] = {
    "own": {},
    "greedy": {"temperature": 0.0},
    "qwen3": {"temperature": 0.6, "top_k": 20, "top_p": 0.95},
    "qwen3-not-thinking": {"temperature": 0.7, "top_k": 20, "top_p": 0.8, "presence_penalty": 1.5},
    "temperature": {"temperature": 0.8},
}
"""Sampling settings of a run by name; ``own`` leaves those of each workload."""


def positive(text: str) -> int:
    """A number of rounds, sequences and the like, for argparse. Raises :class:`argparse.ArgumentTypeError` below 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text}: a whole number, at least 1")
    return int(text)


def machine(threads: int | None = None) -> str:
    """One line: CPU model, cores, GPU, torch threads, versions of Python and torch."""
    import torch

    gpu = f", {torch.cuda.get_device_name()}" if torch.cuda.is_available() else ""
    return (
        f"{_processor()}, {os.cpu_count()} cores{gpu}, {threads or torch.get_num_threads()} torch thread(s), "
        f"Python {platform.python_version()}, torch {torch.__version__}"
    )


def _processor() -> str:
    """The CPU's name, with family and model where Linux tells them: machines of clouds hide more than the maker."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        text = ""
    name, family, model = (
        found.group(1).strip() if (found := re.search(rf"^{key}\s*:\s*(.+)$", text, re.MULTILINE)) else ""
        for key in ("model name", "cpu family", "model")
    )
    if not name:
        return platform.processor() or platform.machine()
    return f"{name} (family {family}, model {model})" if family and model else name


def _short(processor: str) -> str:
    """A processor's family and model, or its name, as a part of a file's name."""
    found = re.search(r"family (\d+), model (\d+)", processor)
    return f"family-{found[1]}-model-{found[2]}" if found else re.sub(r"\W+", "-", processor.lower()).strip("-")


def write_result(name: str, title: str, command: str, body: str, *, threads: int | None = None) -> Path:
    """Store a result as lines of its topic, write the topic's page, print the body, and return the page's path.

    A second result of the same name, day and processor takes the place of the first. The name of a result of another
    processor on that day ends with family and model of the processor.

    Args:
        name: begins as one of :data:`benchmarks.records.TOPICS`.
        title: heading.
        command: the command that measured it.
        body: Markdown; each row of its tables becomes a line, the text around them notes.
        threads: of torch, if others than torch is set to now.

    Raises:
        ValueError: no topic takes the name.
    """
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    topic = records.topic_of(name)
    run = f"{today}-{name}"
    same = [line for line in records.read(topic) if line["run"] == run and "title" in line]
    if same and not same[0]["machine"].startswith(f"{_processor()}, "):
        run = f"{run}-{_short(_processor())}"
    head = {"run": run, "title": title, "date": today, "command": command, "machine": machine(threads)}
    records.replace(topic, [head, *records.parse(run, body)])
    print(f"{run}\n\n{body}")
    return records.write_page(topic)
