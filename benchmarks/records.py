"""Measurements as lines of ``results/data/<topic>.jsonl``, and the pages of results made of them.

A file holds runs. A run begins with a line of its head (``run``, ``title``, ``date``, ``command``, ``machine``). Each
later line of the run is a row of a table (``values``: column -> text of the cell, with the digits that were published)
or a remark (``note``, Markdown), both with the ``section`` that they stand in (empty: none).

``python -m benchmarks.records`` writes all pages, ``python -m benchmarks.records RUN`` prints one run, and
``python -m benchmarks.records NAME FILE.md`` stores a report of another machine (of ``benchmarks.gpu.minutes``).

``results/data/removed.json`` names the last commit that has a removed script. Pages state it next to the command.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

Line = dict[str, Any]

RESULTS = Path(__file__).parent / "results"
TOPICS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "engines": ("Other engines on a CPU", ("engines", "transformers", "real-size")),
    "decoding": ("Strategies and load on a CPU", ("decode", "contention")),
    "versions": ("One version against another", ("decode-versions",)),
    "drafting": ("Drafting: simulations of an H200", ("drafting", "planner")),
    "history": ("Drafts from history", ("history",)),
    "gpu": ("GPUs", ("gpu",)),
    "structured": ("Structured output", ("structured", "schemas")),
    "settings": ("Sampling settings", ("settings",)),
    "numbers": (
        "Numbers of fewer bits, rounding and batch invariance",
        ("exactness", "narrow", "quantised", "near-ties", "batch-invariance", "packed", "float32"),
    ),
    "quality": (
        "Accuracy: the shipped model, its strategies, best rows",
        ("tiny", "gsm8k", "paper", "streaming", "quality"),
    ),
    "pipeline": (
        "The pipeline: overhead, start, scale",
        ("pipeline", "scaling", "driver", "large-ledger", "loading", "s3", "run-settings", "job-order"),
    ),
    "faults": ("Kills, damage, lost nodes", ("chaos", "cluster")),
}
"""Topic -> title of its page, and how the names of its runs begin."""
REMOVED: Mapping[str, str] = json.loads((RESULTS / "data" / "removed.json").read_text(encoding="utf-8"))
"""Removed script -> the last commit that has it."""


def topic_of(name: str) -> str:
    """Topic of a run by its name without the date. Raises :class:`ValueError` for a name that no topic takes."""
    found = [(len(start), topic) for topic, (_, starts) in TOPICS.items() for start in starts if name.startswith(start)]
    if not found:
        raise ValueError(f"{name}: no topic takes this name. Add the begin of it to TOPICS in benchmarks/records.py.")
    return max(found)[1]


def read(topic: str) -> list[Line]:
    """All lines of a topic, in order; none before its first run."""
    file = RESULTS / "data" / f"{topic}.jsonl"
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()] if file.exists() else []


def replace(topic: str, lines: Sequence[Line]) -> None:
    """Store the lines of one run, in place of those of an earlier run of the same name and day."""
    run = lines[0]["run"]
    kept = [*(line for line in read(topic) if line["run"] != run), *lines]
    file = RESULTS / "data" / f"{topic}.jsonl"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in kept), encoding="utf-8")


def parse(run: str, body: str) -> Iterator[Line]:
    """Yield the lines of a Markdown body: its table rows, and the text around them as notes."""
    section = ""
    for block in _blocks(body):
        if block.startswith("|"):
            yield from ({"run": run, "section": section, "values": values} for values in _rows(block))
        elif heading := re.match(r"#+ (.+)$", block):
            section = heading[1]
        else:
            yield {"run": run, "section": section, "note": block}


def _blocks(body: str) -> Iterator[str]:
    """Tables, headings, fenced code and the text between them, in order."""
    kind, held, fenced = "", list[str](), False
    for line in body.splitlines():
        this = "table" if line.startswith("|") else "heading" if re.match(r"#+ ", line) else "text"
        if fenced or line.startswith("```"):
            fenced, this = fenced != line.startswith("```"), "text"
        if this != kind or (this == "heading"):
            yield from _joined(held)
            held = []
        kind = this
        held.append(line)
    yield from _joined(held)


def _joined(lines: Sequence[str]) -> Iterator[str]:
    text = "\n".join(lines).strip()
    if text:
        yield text


def _rows(block: str) -> Iterator[dict[str, str]]:
    header, _, *rows = ([cell.strip() for cell in line.strip().strip("|").split("|")] for line in block.splitlines())
    names: list[str] = []
    for number, name in enumerate(header):
        names.append(f"{header[number - 1]}: {name}" if name in names else name)
    for row in rows:
        yield dict(zip(names, row, strict=True))


def render(lines: Iterable[Line], level: int = 2) -> str:
    """Markdown of whole runs; a heading of ``level`` for each run, below it those of its sections."""
    parts: list[str] = []
    section = ""
    for (title, now, columns), group in groupby(lines, _together):
        if title:
            section = ""
            parts += _introduced(next(group), "#" * level)
            continue
        if now != section:
            section = now
            parts.append(f"{'#' * (level + 1)} {section}")
        if columns:
            parts.append(table(columns, [list(line["values"].values()) for line in group]))
        else:
            parts += [line["note"] for line in group]
    return "\n\n".join(parts) + "\n"


def _together(line: Line) -> tuple[str, str, tuple[str, ...]]:
    """Equal for lines that one table, or one stretch of text, is made of."""
    return line.get("title", ""), line.get("section", ""), tuple(line.get("values", ()))


def _introduced(head: Line, mark: str) -> list[str]:
    command = head["command"]
    return [
        f"{mark} {head['title']}, {head['date']}",
        f"Command: {command if '`' in command else f'`{command}`'}{_removal(command)}",
        f"Machine: {head['machine']}",
    ]


def scripts_of(command: str) -> list[str]:
    """Modules of benchmarks that a command runs."""
    return re.findall(r"\bbenchmarks(?:\.\w+)+", command)


def _removal(command: str) -> str:
    commits = dict.fromkeys(commit for name in scripts_of(command) if (commit := REMOVED.get(name)))
    return f" (removed since; the last commit with it is `{'`, `'.join(commits)}`)" if commits else ""


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table; floats are shown with three significant digits."""

    def cell(value: object) -> str:
        return f"{value:.3g}" if isinstance(value, float) else str(value)

    lines = ["| " + " | ".join(header) + " |", "|" + " --- |" * len(header)]
    return "\n".join([*lines, *("| " + " | ".join(map(cell, row)) + " |" for row in rows)])


def page(topic: str) -> str:
    """The page of a topic: of each name the runs of its newest day in full, and a list of the earlier runs."""
    lines = read(topic)
    newest: dict[str, str] = {}
    for head in _heads(lines):
        newest[_name(head)] = max(head["date"], newest.get(_name(head), ""))
    ordered = sorted(_heads(lines), key=lambda head: head["date"], reverse=True)
    shown = [head for head in ordered if head["date"] == newest[_name(head)]]
    earlier = [(f"`{head['run']}`", head["title"], head["machine"]) for head in ordered if head not in shown]
    parts = [
        f"# {TOPICS[topic][0]}\n\nMade of [data/{topic}.jsonl](data/{topic}.jsonl) by `python -m benchmarks.records`: "
        "the newest runs of each benchmark. [Benchmarks](../README.md) has the questions that they answer.\n",
        *(render(line for line in lines if line["run"] == head["run"]) for head in shown),
    ]
    if earlier:
        parts.append(
            "## Earlier runs\n\n`python -m benchmarks.records RUN` prints one.\n\n"
            f"{table(['run', 'title', 'machine'], earlier)}\n"
        )
    return "\n".join(parts)


def _heads(lines: Iterable[Line]) -> list[Line]:
    return [line for line in lines if "title" in line]


def _name(head: Line) -> str:
    """Name of a run without its date and processor: runs of one name measure the same thing."""
    return re.sub(r"-family-\d+-model-\d+$", "", head["run"][len("2026-01-01-") :])


def write_page(topic: str) -> Path:
    """Write the page of a topic and return its path."""
    path = RESULTS / f"{topic}.md"
    path.write_text(page(topic), encoding="utf-8")
    return path


def take(name: str, report: str) -> Path:
    """Store a report and return the path of its topic's page.

    Args:
        name: begins as one of :data:`TOPICS`.
        report: Markdown: a title, a list with the items Command, Date and Machine, then the body.
    """
    title, items, body = report.removeprefix("# ").split("\n\n", 2)
    told = dict(
        " ".join(item.split()).split(": ", 1) for item in items.removeprefix("- ").split("\n- ") if ": " in item
    )
    head = {"title": title, "date": told["Date"], "command": told["Command"].strip("`"), "machine": told["Machine"]}
    run = f"{head['date']}-{name}"
    replace(topic_of(name), [{"run": run, **head}, *parse(run, body)])
    return write_page(topic_of(name))


def main(argv: Sequence[str]) -> None:
    """Store a report, print a run, or write all pages."""
    if len(argv) == 2:
        print(take(argv[0], Path(argv[1]).read_text(encoding="utf-8")))
    for run in argv if len(argv) == 1 else ():
        lines = [line for topic in TOPICS for line in read(topic) if line["run"] == run]
        if not lines:
            raise SystemExit(f"{run}: there is no such run. The names are in benchmarks/results/data/*.jsonl.")
        print(render(lines, 1))
    for topic in () if argv else TOPICS:
        write_page(topic)


if __name__ == "__main__":
    main(sys.argv[1:])
