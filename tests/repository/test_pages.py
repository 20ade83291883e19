"""The pages of the documentation run as they are written: every code block is run, or says why it is not."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path

import pytest

import wedlm_batch
from pipeline.codec import EngineConfig, SamplingParams
from pipeline.config import RunConfig
from pipeline.settings.pools import ActorRange
from testing.pages.blocks import Block, blocks_of, faults, text_of
from testing.pages.runner import run_page
from testing.repository import ROOT
from wedlm_batch.console import COMMANDS
from wedlm_core.option_names import ENGINE_NAMES

DOCS = ROOT / "docs"
README = ROOT / "README.md"
COMING_FROM = DOCS / "concepts" / "coming-from.md"
CONTRIBUTING = ROOT / "CONTRIBUTING.md"
PAGES = sorted(DOCS.rglob("*.md"))
SLOW: Mapping[str, str] = {
    "quickstart.md": "two jobs, a preview and an engine: 36 s; test_installed.py runs the README, which has it",
    "tutorials/distil.md": "two jobs, one after the other: about 15 s",
    "tutorials/label.md": "three jobs and a chain: about 30 s",
    "tutorials/converse.md": "a job: about 10 s",
    "tutorials/serve.md": "a server, started twice, and a batch: about 25 s",
    "tutorials/own-model.md": "trains a model on 2,000 rows: up to three minutes",
    "tutorials/synthesise.md": "two jobs, one after the other: about 15 s",
    "guides/structured-output.md": "a job: about 15 s",
    "guides/progress.md": "two jobs, one after the other: about 15 s",
    "guides/stages.md": "a chain of two jobs: about 12 s",
    "concepts/coming-from.md": "a job: about 7 s",
    "guides/tuning.md": "a job: about 7 s",
    "reference/commands.md": "two jobs and an engine: about 20 s",
    "tutorials/nightly-etl.md": "three jobs, one after the other: about 20 s",
    "guides/report.md": "a job, and its rows once more: about 15 s",
    "guides/etl.md": "two jobs, one after the other: about 15 s",
    "guides/evaluation.md": "evaluations of several strategies: about 15 s",
    "guides/quality.md": "a job, and four commands on its output: about 12 s",
}
"""Pages that take long -> the reason. The others together take less than a minute."""
OWN_TEST: Mapping[str, str] = {"reference/formats.md": "tests/repository/test_formats_page.py"}
"""Pages that need a server around them -> the test that runs their blocks."""


def name_of(page: Path) -> str:
    """The page as ``run on`` and the table above name it: its path below ``docs/``."""
    return page.relative_to(DOCS).as_posix() if DOCS in page.parents else page.name


def runs(page: Path) -> bool:
    """Whether something of a page is run."""
    return any(block.use == "run" for block in blocks_of(page))


RUN = [
    pytest.param(
        page, id=name_of(page), marks=[pytest.mark.slow(reason=SLOW[name_of(page)])] if name_of(page) in SLOW else []
    )
    for page in PAGES
    if runs(page) and name_of(page) not in OWN_TEST
]


@pytest.fixture(scope="module")
def run_on_pages() -> dict[str, set[str]]:
    """Page -> the code of the blocks that are run there (the README's by ``test_installed.py``)."""
    return {name_of(page): {block.code for block in blocks_of(page) if block.use == "run"} for page in [README, *PAGES]}


@pytest.mark.parametrize("page", [README, CONTRIBUTING, *PAGES], ids=name_of)
def test_every_block_is_run_or_says_why_it_is_not(page: Path, run_on_pages: dict[str, set[str]]) -> None:
    assert not faults(blocks_of(page), run_on_pages)


@pytest.mark.parametrize("page", RUN)
def test_a_page_runs_as_it_is_written(page: Path, tmp_path: Path) -> None:
    folder = tmp_path / "fresh"
    folder.mkdir()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    run_page(page, folder, environment)


def test_what_contributors_type_in_a_clone_is_not_taken_for_run() -> None:
    assert not runs(CONTRIBUTING)


def test_slow_pages_are_there_and_run() -> None:
    assert set(SLOW) | set(OWN_TEST) <= {name_of(page) for page in PAGES if runs(page)}
    assert all((ROOT / test).is_file() for test in OWN_TEST.values())


def test_the_pages_that_a_reader_starts_with_are_run() -> None:
    started = {name_of(page) for page in PAGES if runs(page)}
    assert {"quickstart.md", *(f"tutorials/{name}.md" for name in ("synthesise", "distil", "nightly-etl"))} <= started


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_page_begins_with_a_title_and_says_what_it_is_for(page: Path) -> None:
    lines = text_of(page).splitlines()
    assert re.match(r"# \S", lines[0]), "the first line is the title"
    first = "\n".join(lines[1:]).strip().split("\n\n")[0]
    assert re.match(r"[A-Z`]", first), f"{page.name} begins with prose, not with {first[:40]!r}"
    sentences = re.findall(r"[.?!](?:\s|$)", first)
    assert len(sentences) >= 1
    assert len(first.split()) >= 12, f"{page.name}: what is it for? {first!r}"


def test_no_page_names_another_one_for_a_block_that_it_runs_itself() -> None:
    def own(block: Block) -> bool:
        return block.elsewhere is not None and (DOCS / block.elsewhere).resolve() == block.page.resolve()

    assert not [block.place for page in PAGES for block in blocks_of(page) if own(block)]


def test_pages_link_the_results_and_repeat_no_figure_of_them() -> None:
    repeated = []
    for page in PAGES:
        text = re.sub(r"```.*?```", "", text_of(page), flags=re.DOTALL)
        parts = [
            part for whole in text.split("\n\n") for part in (whole.splitlines() if whole.startswith("|") else [whole])
        ]
        for part in (part for part in parts if "benchmarks/results/" in part):
            figures = re.findall(r"(?<!capability )(?<![\w.])\d+\.\d+(?![\w.])", re.sub(r"\]\(\S+\)", "", part))
            repeated += [f"{name_of(page)}: {figure} in {part[:80]!r}" for figure in figures]
    assert not repeated


def test_names_of_ours_that_stand_beside_those_of_other_tools_are_there() -> None:
    known = {field.name for kind in (RunConfig, EngineConfig, SamplingParams, ActorRange) for field in fields(kind)}
    known |= {*wedlm_batch.__all__, *COMMANDS, "stats"}
    rows = [line.split("|") for line in text_of(COMING_FROM).splitlines() if line.startswith("| `")]
    named = {name for row in rows for code in re.findall(r"`([^`]+)`", row[2])
             for name in re.findall(r"^(?:wb\.|wedlm-batch )?([A-Za-z_]+)", code)}  # fmt: skip
    assert len(rows) > 40
    assert not named - known


def test_what_the_page_says_of_arguments_of_vllm_is_what_the_error_says() -> None:
    rows = {row[1].strip(" `"): row[2] for line in text_of(COMING_FROM).splitlines()
            if len(row := line.split("|")) > 3}  # fmt: skip
    both = sorted(set(rows) & set(ENGINE_NAMES))
    assert len(both) >= 6
    for name in both:
        ours = re.findall(r"`([a-z_]+)", rows[name])
        assert all(own in ENGINE_NAMES[name] for own in ours), f"{name}: {ENGINE_NAMES[name]}"
