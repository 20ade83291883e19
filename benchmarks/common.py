"""Shared by all benchmarks: a description of the machine, dated result files, Markdown tables."""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

__all__ = ["RESULTS", "machine", "positive", "table", "write_result"]

RESULTS = Path(__file__).parent / "results"


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


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table; floats are shown with three significant digits."""

    def cell(value: object) -> str:
        return f"{value:.3g}" if isinstance(value, float) else str(value)

    lines = ["| " + " | ".join(header) + " |", "|" + " --- |" * len(header)]
    return "\n".join([*lines, *("| " + " | ".join(map(cell, row)) + " |" for row in rows)])


def write_result(name: str, title: str, command: str, body: str, *, threads: int | None = None) -> Path:
    """Write ``results/<date>-<name>.md`` with title, command, date and machine; print and return its path.

    What another processor measured on that day stays: the name then ends with family and model of this one.
    """
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    path = RESULTS / f"{today}-{name}.md"
    if path.exists() and f"- Machine: {_processor()}, " not in path.read_text(encoding="utf-8"):
        path = RESULTS / f"{today}-{name}-{_short(_processor())}.md"
    path.parent.mkdir(parents=True, exist_ok=True)
    head = f"# {title}\n\n- Command: `{command}`\n- Date: {today}\n- Machine: {machine(threads)}\n\n"
    path.write_text(head + body.rstrip() + "\n", encoding="utf-8")
    print(f"{path.name}\n\n{body}")
    return path
