"""Jobs whose rows kill their processes, alone or together: their ends, and the cost."""

from __future__ import annotations

import functools
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import pipeline
from pipeline import layout
from pipeline.cluster.executor import RayExecutor
from pipeline.cluster.session import ensure_ray
from pipeline.commands.run import run_on
from pipeline.storage.open import open_storage
from testing.pipeline.faulty_engine import Fault, faulty_engine

_POISON = "This row kills its process."
_START_SECONDS = 5.0


def measure_endings(folder: Path, rows: int) -> list[dict[str, Any]]:
    """For each fault: how the job ended, quarantined and wrong rows, starts of engines, seconds.

    Args:
        folder: for inputs and outputs.
        rows: of each job; an even number of hundreds.
    """
    ensure_ray()
    some, tenth = set(range(rows // 2, rows // 2 + 16)), set(range(0, rows, 10))
    expected = _run(folder / "healthy", rows, set(), Fault())["texts"]
    found = []
    for name, bad, fault in (
        ("16 rows in a row that kill", some, Fault(poison=_POISON, start_seconds=_START_SECONDS)),
        ("every 10th row kills", tenth, Fault(poison=_POISON, start_seconds=_START_SECONDS)),
        ("the 9th row of a process kills", set[int](), Fault(strikes=9, start_seconds=_START_SECONDS)),
        ("every row kills with probability 2%", set[int](), Fault(chance=0.02, start_seconds=_START_SECONDS)),
        ("the 1st row of a process kills", set[int](), Fault(strikes=1, start_seconds=_START_SECONDS)),
    ):
        outcome = _run(folder / name.replace(" ", "-"), rows, bad, fault)
        texts = outcome.pop("texts")
        wrong = sum(texts[i] not in (None, expected[i]) for i in texts if i not in bad)
        found.append({"fault": name, "rows": rows, **outcome, "wrong": wrong})
    return found


def _run(folder: Path, rows: int, bad: set[int], fault: Fault) -> dict[str, Any]:
    (starts := folder / "starts").mkdir(parents=True)
    prompts = [_POISON if i in bad else f"Count from {i % 97} to {i % 97 + 20 + i % 23}." for i in range(rows)]
    pq.write_table(pa.table({"prompt": prompts, "number": list(range(rows))}), folder / "prompts.parquet")
    config = pipeline.RunConfig(
        input=str(folder / "prompts.parquet"), output=str(folder / "out"), model="tiny", num_threads=1, unit_rows=16,
        units_in_flight=8, report=False, sampling=pipeline.SamplingParams(max_tokens=64, temperature=0.7),
    )  # fmt: skip
    executor = RayExecutor(config, functools.partial(faulty_engine, folder=str(starts), fault=fault))
    begin, end = time.monotonic(), "done"
    try:
        run_on(executor, config, open_storage(config.output, layout.SCRATCH), lambda progress: None)
    except pipeline.PipelineError as error:
        end = type(error).__name__
    seconds = time.monotonic() - begin
    texts: dict[int, str | None] = {}
    problems = 0
    if end == "done":
        published = pipeline.read(config.output, format="arrow")
        texts = dict(zip(published["number"].to_pylist(), published["text"].to_pylist(), strict=True))
        problems = len(pipeline.verify(config.output, input=config.input).problems)
    return {
        "end": end,
        "quarantined": sum(text is None for text in texts.values()),
        "starts": len(list(starts.iterdir())),
        "seconds": seconds,
        "problems": problems,
        "texts": texts,
    }
