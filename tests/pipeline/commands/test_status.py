"""A run's figures have one definition: rows, view, log, summary, status, report and player give the same numbers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline import layout
from pipeline.codec import DRAFT_COUNTS, EngineConfig, SamplingParams
from pipeline.commands.read import read
from pipeline.commands.report import gather, report
from pipeline.commands.run import run_on
from pipeline.commands.status import status
from pipeline.config import RunConfig
from pipeline.progress.figures import figures_of, format_line
from pipeline.progress.monitor import Monitor
from pipeline.reporting.chart import count, figure, percent
from pipeline.reporting.facts import drafts_by_source
from pipeline.storage.open import open_storage
from testing.pipeline.fakes import InlineExecutor
from wedlm_core.llm import LLM

PROMPTS = [f"Count from {i} to {i + 5}." for i in range(12)]


@pytest.mark.parametrize("strategy", ["verified", "autoregressive"])
@pytest.mark.parametrize("slots", [1, 8])
def test_the_figures_of_a_run_are_the_same_wherever_they_are_shown(tmp_path: Path, strategy: str, slots: int) -> None:
    engine = LLM("tiny", config=EngineConfig(max_num_seqs=slots, history_bytes=1 << 20)).engine
    pq.write_table(pa.table({"prompt": [*PROMPTS, *PROMPTS, ""]}), tmp_path / "in.parquet")
    output = str(tmp_path / "out")
    window: Literal["auto"] | int = 4 if strategy == "verified" else "auto"  # drafts whatever the controller measures
    sampling = SamplingParams(max_tokens=40, strategy=strategy, window_size=window)
    config = RunConfig(input=str(tmp_path / "in.parquet"), output=output, model="tiny", sampling=sampling)
    monitor = Monitor()
    summary = run_on(InlineExecutor(engine=lambda: engine), config, open_storage(output, layout.SCRATCH), None, monitor)

    rows: list[dict[str, Any]] = [row for row in read(output) if row["finish_reason"] != "error"]
    assert len(rows) == 2 * len(PROMPTS)
    names = ("decode_forwards", "rows_forwarded", *DRAFT_COUNTS)
    sums = {name: sum(row["stats"][name] for row in rows) for name in names}
    tokens = sum(row["completion_tokens"] for row in rows)
    per_forward, p_cache = tokens / sums["decode_forwards"], tokens / sums["rows_forwarded"]
    if strategy == "autoregressive":
        assert (per_forward, p_cache) == (1.0, 1.0)
    assert 0 < p_cache <= 1

    told = status(output)
    assert (told["tokens_per_forward"], told["prefix_cacheability"]) == (per_forward, p_cache)
    assert {**told, **told["drafts"]}.items() >= sums.items()
    snapshot = monitor.snapshot()
    assert f"{per_forward:.2f}" == figures_of(snapshot)["tokens/forward"]
    assert f" tokens_per_forward={per_forward:.2f} " in format_line(snapshot)
    described = summary.describe()
    assert f"{per_forward:.2f} per forward ({sums['decode_forwards']} forwards)" in described
    assert f"(p_cache) {p_cache:.2f} ({sums['rows_forwarded']} token rows)" in described

    page = Path(report(output, model="tiny", to=tmp_path / "report.html")).read_text("utf-8")
    text = re.sub(r"<[^>]*>", "|", page)
    assert f"|{figure(per_forward)}||over {count(sums['decode_forwards'])} forwards;" in text
    assert f"|{figure(p_cache)}||output tokens over {count(sums['rows_forwarded'])} computed rows|" in text
    drafts = drafts_by_source(sums, tokens)
    assert bool(drafts) == (strategy != "autoregressive")
    for own in drafts:
        shown = (own.source, count(own.offered), count(own.accepted), percent(own.acceptance), percent(own.share))
        assert "||".join(shown) in text
        assert f"{own.source} {shown[2]} of {shown[1]} accepted ({shown[3]}), {shown[4]} of the output" in described
    assert gather(open_storage(output, layout.SCRATCH)).traces
    assert "not the decoding of the run" in page
