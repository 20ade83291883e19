"""The page in a real browser: it plays, asks nobody for anything, and opens at once."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline import layout
from pipeline.codec import EngineConfig, SamplingParams
from pipeline.commands.read import read
from pipeline.commands.report import gather, report
from pipeline.commands.run import run_on
from pipeline.config import RunConfig
from pipeline.reporting.aggregate import Aggregate
from pipeline.reporting.page import render
from pipeline.storage.open import open_storage
from pipeline.types import Totals
from testing.browser import CHROMIUM, Browser, chromium
from testing.pipeline.fakes import InlineExecutor
from testing.pipeline.output_rows import output_table
from wedlm_core.llm import LLM

pytestmark = [
    pytest.mark.slow,  # needs Debian's chromium and its driver, which CI lacks; half a minute
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed"),
]

ATTACK = "</script><img src=x onerror=\"document.title='attacked'\"> \U0001f98a שלום עולם 你好"
PROMPTS = ["Count from 3 to 19.", "Solve 3x + 4 = 25.", "Write a short poem about snow.", ATTACK, *[""] * 3]
STRATEGIES = ("verified", "reference", "streaming", "blockwise", "autoregressive")


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An output of the shipped model, by all strategies, with failed rows and attacks in it."""
    folder = tmp_path_factory.mktemp("job")
    rows = [{"prompt": prompt, "strategy_of": name, ATTACK: ATTACK} for prompt in PROMPTS for name in STRATEGIES]
    pq.write_table(pa.Table.from_pylist(rows), folder / "in.parquet")
    config = RunConfig(
        input=str(folder / "in.parquet"), output=str(folder / "out"), model="tiny", unit_rows=8,
        sampling=SamplingParams(max_tokens=60, window_size=8), sampling_columns={"strategy": "strategy_of"},
    )  # fmt: skip
    engine = LLM("tiny", config=EngineConfig(max_num_seqs=16)).engine
    run_on(InlineExecutor(engine=lambda: engine), config, open_storage(config.output, layout.SCRATCH))
    return config.output


@pytest.fixture(scope="module")
def page(output: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(report(output, to=tmp_path_factory.mktemp("page") / "report.html", model="tiny"))


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as opened:
        yield opened


def part(name: str) -> str:
    return f"document.querySelector('#player [data-part=\"{name}\"]')"


def move(browser: Browser, frame: int) -> None:
    """Move the slider."""
    browser.run(f"const r = {part('range')}; r.value = '{frame}'; r.dispatchEvent(new Event('input'));")


def quiet(browser: Browser, page: Path) -> None:
    """Nothing was asked for but the page, and the console is empty."""
    assert [url for url in browser.requests() if not url.startswith("data:")] == [page.as_uri()]
    assert browser.complaints() == []


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 820, 390])
def test_it_is_shown_whole_on_every_screen_without_a_request_or_an_error(
    browser: Browser, page: Path, tmp_path: Path, width: int, theme: str
) -> None:
    browser.requests(), browser.complaints()
    browser.open(page, width, theme)
    assert browser.run("return document.documentElement.scrollWidth <= innerWidth"), "nothing sticks out"
    assert browser.run("return document.querySelectorAll('svg.plot').length") == 4
    assert browser.run("return document.title").startswith("Report of")
    assert browser.run("return document.images.length") == 0
    shown = browser.run(
        "return [...document.querySelectorAll('svg.plot')].filter(s => s.getBoundingClientRect().width > 200).length"
    )
    assert shown == 4
    browser.picture(tmp_path / "page.png")
    browser.printed(tmp_path / "page.pdf")
    assert (tmp_path / "page.png").stat().st_size > 50_000
    assert (tmp_path / "page.pdf").read_bytes()[:5] == b"%PDF-"
    quiet(browser, page)


def test_the_player_plays_each_row_to_the_text_of_the_output(browser: Browser, page: Path, output: str) -> None:
    texts = {row["row_id"]: row["text"] for row in read(output)}
    traced = gather(open_storage(output, layout.SCRATCH)).traces
    assert len(traced) == 6
    browser.requests(), browser.complaints()
    browser.open(page)
    for number, trace in enumerate(traced):
        browser.run(f"const s = {part('rows')}; s.value = '{number}'; s.dispatchEvent(new Event('change'));")
        move(browser, int(browser.run(f"return {part('range')}.max")) - 2)
        browser.run(f"{part('toggle')}.click()")
        deadline = time.monotonic() + 20
        while browser.run(f"return {part('toggle')}.textContent") == "Pause" and time.monotonic() < deadline:
            time.sleep(0.02)
        assert browser.run(f"return {part('own')}.textContent") == texts[trace.row_id] == "".join(trace.pieces)
        assert browser.run(f"return {part('plain')}.textContent") == "".join(trace.plain_pieces)
        assert browser.run(f"return {part('says')}.textContent").startswith("Done.")
        assert trace.same is True
    quiet(browser, page)


def test_steps_headings_and_the_search_are_wired(browser: Browser, page: Path) -> None:
    browser.open(page)
    move(browser, 0)
    for name in ("next", "next", "next", "back"):
        browser.run(f"{part(name)}.click()")
    assert browser.run(f"return Number({part('range')}.value)") == 2
    column = "return [...document.querySelectorAll('#rows tbody tr:not([hidden])')].map(r => r.cells[%d].textContent)"
    browser.run("document.querySelectorAll('#rows th button')[1].click()")
    tokens = [int(own) for own in browser.run(column % 1)]
    assert tokens == sorted(tokens)
    (first, *_), search = browser.run(column % 2), "document.querySelector('#rows input')"
    browser.run(f"{search}.value = arguments[0]; {search}.dispatchEvent(new Event('input'))", first)
    assert first in browser.run(column % 2)
    assert len(browser.run(column % 2)) < len(tokens)


def test_a_page_over_a_million_rows_opens_in_less_than_a_second(browser: Browser, output: str, tmp_path: Path) -> None:
    facts = gather(open_storage(output, layout.SCRATCH))
    some = Aggregate.of(output_table(8192, samples=1))
    total = some
    while total.rows < 10**6:
        total = total.merged_with(total)
    totals = Totals(rows=total.rows, samples=total.generations, failed_rows=total.failed)
    many = replace(facts, aggregate=total, planned_rows=total.rows, totals=totals)
    path = tmp_path / "many.html"
    begin = time.monotonic()
    path.write_text(render(many), encoding="utf-8")
    assert time.monotonic() - begin < 1, "seconds to make it"
    assert path.stat().st_size < 600_000
    browser.open(path)
    loaded = browser.run("const t = performance.getEntriesByType('navigation')[0]; return t.loadEventEnd - t.startTime")
    assert loaded < 1000, "milliseconds"
