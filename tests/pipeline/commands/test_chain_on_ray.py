"""Chains on a real Ray cluster with real engines: stages overlap on the same actors."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pipeline
from testing.engine.models import random_decoder, write_tokenizer
from wedlm_core.model.weights import save_model

SAMPLING = {"max_tokens": 8, "n": 2, "temperature": 0.8, "window_size": 4}
STAGES = [
    {"name": "write", "sampling_columns": {"max_tokens": "tokens"}},
    {"name": "judge", "prompt_template": "Rate {{ text }} of {{ number }}", "sampling": {"max_tokens": 4, "n": 1},
     "parse": {"letter": {"pattern": "[a-z]"}}},
    {"name": "sum", "prompt_column": "judge_text", "sampling": {"max_tokens": 3, "n": 1}, "columns": ["number"]},
]  # fmt: skip
NAMES = ("write", "judge", "sum")
UNITS = 10
LONG = 1500
"""Tokens of the rows of the last unit: the other stages have the time that they take, however slow the driver is."""


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rows = [{"prompt": "" if i == 7 else f"Count from {i} to {i + 5}.", "number": i,
             "tokens": 8 if i < 4 * (UNITS - 1) else LONG} for i in range(4 * UNITS)]  # fmt: skip
    path = tmp_path_factory.mktemp("input") / "prompts.parquet"
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model with room for the longest rows."""
    folder = tmp_path_factory.mktemp("model") / "long"
    save_model(random_decoder(qwen3=True, seed=1, max_positions=2048), folder)
    write_tokenizer(folder)
    return folder


@pytest.mark.usefixtures("cluster")
def test_stages_overlap_on_the_same_actors_and_add_up(prompts: Path, model: Path, tmp_path: Path) -> None:
    output, commits = tmp_path / "out", list[str]()
    result = pipeline.chain(
        STAGES, on_progress=lambda name, progress: commits.append(name) if progress.session.units else None,
        input=str(prompts), output=str(output), model=str(model), seed=7, unit_rows=4, num_threads=1, sampling=SAMPLING,
        units_in_flight=2,
    )  # fmt: skip
    assert [commits.count(name) for name in NAMES] == [UNITS] * 3
    last = {name: max(i for i, own in enumerate(commits) if own == name) for name in NAMES}
    assert commits.index("judge") < last["write"], "judged before the last unit was written"
    assert commits.index("sum") < last["judge"]
    totals = {name: own.total for name, own in result.summary.stages.items()}
    assert (totals["write"].rows, totals["write"].failed_rows, totals["write"].samples) == (40, 1, 78)
    assert [totals[name].rows for name in ("judge", "sum")] == [78, 78]
    assert pipeline.verify(output / "write", input=str(prompts)).ok
    for name in NAMES:
        found = pipeline.verify(output / name)
        assert found.ok, found.problems
    rows = list(result.last)
    assert [row["sum_row_id"].split("#") for row in rows[:2]] == [
        ["prompts.parquet:0", "0"],
        ["prompts.parquet:0", "1"],
    ]
    assert "prompt" not in rows[0], "a stage may leave columns out"
