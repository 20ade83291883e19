"""The README is short, and names in it and the pages exist: links, commands, options, files, columns."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pipeline.schema import DEAD_FIELDS, EVIDENCE_TYPE, RESULT_FIELDS, STATS_TYPE, TIMINGS_TYPE
from testing.pages.blocks import console_commands, text_of
from testing.repository import ROOT
from wedlm_batch.console import COMMANDS

MOST_LINES = 80
README = ROOT / "README.md"
OUTER = ("CONTRIBUTING.md", "benchmarks/README.md", "infra/README.md", "wedlm_core/tiny/README.md")
PAGES = [README, *(ROOT / name for name in OUTER), *sorted((ROOT / "docs").rglob("*.md"))]


def test_the_figures_of_the_readme_are_those_of_the_benchmarks() -> None:
    section = text_of(README).split("## How fast")[1].split("\n## ")[0]
    figures = re.findall(r"\d+\.\d+", section)
    assert len(figures) >= 10
    assert set(figures) <= set(re.findall(r"\d+\.\d+", text_of(ROOT / "benchmarks" / "README.md")))


def anchors(page: Path) -> set[str]:
    """Anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"```.*?```", "", text_of(page), flags=re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def commands(page: Path) -> list[tuple[str, list[str]]]:
    """Modules that a page starts with ``python -m``, each with the options of its command line."""
    found = []
    for piece in re.sub(r"\s+", " ", text_of(page)).split("python -m ")[1:]:
        command = re.split(r"[`#|]| (?:python|make|pip) ", piece + " ")[0]
        if module := re.match(r"[a-z_]\w*(?:\.\w+)*", command):
            found.append((module[0], re.findall(r"--[a-z][a-z-]*", command)))
    return found


def test_the_readme_fits_what_a_new_reader_reads() -> None:
    lines = text_of(README).splitlines()
    assert len(lines) <= MOST_LINES
    first = "\n".join(lines[:19])
    assert all(
        command in first for command in ("make demo", "make test", "pip install", "generate", "status", "verify")
    )


OF_OTHERS = ("lm-eval",)
"""Sub-commands that take the options of another project's command."""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files_and_headings_that_are_there(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", text_of(page)):
        if target.startswith(("http://", "https://")):
            continue
        name, _, anchor = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        assert file.exists(), target
        assert not anchor or anchor in anchors(file), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_name_modules_and_options_that_are_there(page: Path) -> None:
    for module, options in commands(page):
        if module in ("pytest", "venv", "pip"):
            continue
        path = ROOT.joinpath(*module.split("."))
        files = [path / "__main__.py"] if path.is_dir() else [path.with_suffix(".py")]
        assert files[0].exists(), module
        if module.startswith("jobs."):
            source = text_of(files[0]) + text_of(ROOT / "jobs" / "config_options.py")
            absent = [option for option in options if f'"{option}"' not in source]
            assert not absent, f"{module} has no {absent}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_sub_commands_and_their_options_are_there(page: Path) -> None:
    for command, options in console_commands(page):
        assert command in COMMANDS or command.startswith("--"), command
        names = ("config_options", "cli", command)
        source = "".join(text_of(path) for path in (ROOT / "jobs").glob("*.py") if path.stem in names)
        if command in OF_OTHERS:
            continue
        absent = [option for option in options if f'"{option}"' not in source and option not in ("--help", "--version")]
        assert not absent, f"wedlm-batch {command} has no {absent}"


def test_every_column_and_statistic_is_explained_where_it_is() -> None:
    text = text_of(ROOT / "docs" / "reference" / "columns.md")
    assert not [field.name for field in (*RESULT_FIELDS, *DEAD_FIELDS) if f"`{field.name}`" not in text]
    for name, kind in (("evidence", EVIDENCE_TYPE), ("stats", STATS_TYPE), ("timings", TIMINGS_TYPE)):
        section = text.split(f"## `{name}`")[1].split("\n## ")[0]
        cells = re.findall(r"^\| (`[^|]*) \|", section, re.MULTILINE)
        assert {found for cell in cells for found in re.findall(r"`(\w+)`", cell)} == set(kind.names), name


def test_files_that_pages_name_are_there() -> None:
    tops = "|".join(
        ("benchmarks", "docs", "jobs", "pipeline", "testing", "tests", "wedlm_base", "wedlm_batch", "wedlm_core")
    )
    for page in PAGES:
        named = re.findall(rf"`((?:{tops})/[\w./-]*)`", text_of(page))
        absent = [name for name in named if not (ROOT / name).exists()]
        assert not absent, f"{page.name} names {absent}"


def test_the_make_targets_that_pages_name_are_there() -> None:
    targets = set(re.findall(r"^(\w+):", text_of(ROOT / "Makefile"), re.MULTILINE))
    named = {name for page in PAGES for name in re.findall(r"(?:^|`)make (\w+)", text_of(page), re.MULTILINE)}
    assert {"demo", "test"} <= named <= targets


def test_commands_are_found_with_their_options() -> None:
    assert ("status", []) in console_commands(README)
    assert ("verify", ["--input"]) in console_commands(README)
    assert ("testing.ahead_of_time", []) in commands(ROOT / "CONTRIBUTING.md")


def test_names_that_contributors_are_sent_to_are_in_the_code() -> None:
    prose = re.sub(r"```.*?```", "", text_of(ROOT / "CONTRIBUTING.md"), flags=re.DOTALL)
    named = {
        name for code in re.findall(r"`([^`]+)`", prose) for name in re.findall(r"\w*[a-zA-Z]_\w+|_?[A-Z]\w+", code)
    }
    paths = [path for top in ("pipeline", "wedlm_core", "jobs", "benchmarks", "testing", "tests")
             for path in (ROOT / top).rglob("*.py")]  # fmt: skip
    known = {word for path in paths for word in (path.stem, *re.findall(r"\w+", text_of(path)))}
    absent = named - known
    assert len(named) > 40
    assert absent <= {"NAME", "FILE", "PAGE", "REASON", "total_tokens"}, "examples of names are listed here"
