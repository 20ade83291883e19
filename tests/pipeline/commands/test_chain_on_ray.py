"""Chains on a real Ray cluster with real engines: stages that overlap on the same actors, and kills with signal 9."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import ray
import yaml

import pipeline
from pipeline import layout
from pipeline.schema import DATA_COLUMNS
from pipeline.sinks.staged import data_checksum
from testing.engine.models import random_decoder, write_tokenizer
from testing.repository import ROOT
from wedlm_core.model.weights import save_model

SAMPLING = {"max_tokens": 8, "n": 2, "temperature": 0.8, "window_size": 4}
STAGES = [
    {"name": "write", "sampling_columns": {"max_tokens": "tokens"}},
    {"name": "judge", "prompt_template": "Rate {{ text }} of {{ number }}", "sampling": {"max_tokens": 4, "n": 1},
     "parse": {"letter": {"pattern": "[a-z]"}}},
    {"name": "sum", "prompt_column": "judge_text", "sampling": {"max_tokens": 3, "n": 1}, "columns": ["number"]},
]  # fmt: skip
PREFIXES = {"write": "", "judge": "judge_", "sum": "sum_"}
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


def settings(prompts: Path, model: Path, output: Path, **fields: Any) -> dict[str, Any]:
    return {"input": str(prompts), "output": str(output), "model": str(model), "seed": 7, "unit_rows": 4,
            "num_threads": 1, "sampling": SAMPLING, **fields}  # fmt: skip


def checksums(output: Path) -> list[str]:
    """Of the data columns of each stage."""
    found = []
    for name, prefix in PREFIXES.items():
        table = pipeline.read(output / name, format="arrow")
        inputs = [c for c in table.column_names if c in ("prompt", "number", "row_id", "text", "judge_letter")]
        found.append(data_checksum(table, [*inputs, *(prefix + column for column in DATA_COLUMNS)]))
    return found


@pytest.fixture(scope="module")
def one_actor(
    cluster: None, prompts: Path, model: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, list[str], pipeline.ChainResult]:
    """The output of a chain on one actor, the stage of every commit in its order, and the result."""
    output, commits = tmp_path_factory.mktemp("one"), []
    result = pipeline.chain(
        STAGES, on_progress=lambda name, progress: commits.append(name) if progress.session.units else None,
        **settings(prompts, model, output, units_in_flight=2),
    )  # fmt: skip
    return output, commits, result


def test_stages_overlap_on_the_same_actors_and_add_up(
    one_actor: tuple[Path, list[str], pipeline.ChainResult], prompts: Path
) -> None:
    output, commits, result = one_actor
    assert [commits.count(name) for name in PREFIXES] == [UNITS] * 3
    last = {name: max(i for i, own in enumerate(commits) if own == name) for name in PREFIXES}
    assert commits.index("judge") < last["write"], "judged before the last unit was written"
    assert commits.index("sum") < last["judge"]
    totals = {name: own.total for name, own in result.summary.stages.items()}
    assert (totals["write"].rows, totals["write"].failed_rows, totals["write"].samples) == (40, 1, 78)
    assert [totals[name].rows for name in ("judge", "sum")] == [78, 78]
    assert pipeline.verify(output / "write", input=str(prompts)).ok
    for name in PREFIXES:
        found = pipeline.verify(output / name)
        assert found.ok, found.problems
    rows = list(result.last)
    assert [row["sum_row_id"].split("#") for row in rows[:2]] == [
        ["prompts.parquet:0", "0"],
        ["prompts.parquet:0", "1"],
    ]
    assert "prompt" not in rows[0], "a stage may leave columns out"


@pytest.mark.slow
def test_a_killed_driver_then_two_actors_one_of_them_killed_give_the_same_data(
    one_actor: tuple[Path, list[str], pipeline.ChainResult], prompts: Path, model: Path, tmp_path: Path
) -> None:
    """Takes 25 s: three drivers and their actors."""
    output = tmp_path / "out"
    _end_driver(settings(prompts, model, output, units_in_flight=1), tmp_path, signal.SIGKILL, commits=2)
    committed = [pipeline.status(output / name)["units_committed"] for name in PREFIXES]
    assert 0 < committed[0] < UNITS
    assert not list(output.glob("*/data-*")), "nothing is visible before everything is done"
    killed: list[int] = []

    def kill_an_actor(name: str, progress: pipeline.Progress) -> None:
        if progress.session.units and not killed:
            killed.append(_generate_actors()[0])
            os.kill(killed[0], signal.SIGKILL)

    result = pipeline.chain(
        STAGES, on_progress=kill_an_actor,
        **settings(prompts, model, output, units_in_flight=1, actors=2, cpus_per_actor=0.5),
    )  # fmt: skip
    assert killed
    done = [own.session.units for own in result.summary.stages.values()]
    assert [a + b for a, b in zip(done, committed, strict=True)] == [UNITS] * 3
    assert checksums(output) == checksums(one_actor[0])


@pytest.mark.slow
def test_a_driver_that_is_asked_to_stop_commits_what_every_stage_has_in_flight_and_the_rest_follows(
    one_actor: tuple[Path, list[str], pipeline.ChainResult], prompts: Path, model: Path, tmp_path: Path
) -> None:
    """Takes 20 s: two drivers and their actors."""
    output = tmp_path / "out"
    chain = settings(prompts, model, output, units_in_flight=2, stop_seconds=20)
    assert _end_driver(chain, tmp_path, signal.SIGTERM, commits=3) == 128 + signal.SIGTERM
    committed = [pipeline.status(output / name)["units_committed"] for name in PREFIXES]
    assert 3 <= sum(committed) < 3 * UNITS
    assert not any(pipeline.status(output / name)["being_written"] for name in PREFIXES), "the leases are given back"
    result = pipeline.chain(STAGES, **settings(prompts, model, output))
    done = [own.session.units for own in result.summary.stages.values()]
    assert [a + b for a, b in zip(done, committed, strict=True)] == [UNITS] * 3
    assert checksums(output) == checksums(one_actor[0])


@pytest.mark.slow
def test_a_stage_with_a_model_of_its_own_has_actors_of_its_own_and_damage_on_the_way_is_done_again(
    one_actor: tuple[Path, list[str], pipeline.ChainResult], prompts: Path, model: Path, qwen25_folder: Path,
    tmp_path: Path,
) -> None:  # fmt: skip
    """Takes 30 s: three times two actors."""
    first, judge, last = STAGES
    stages = [first, judge, {**last, "model": str(qwen25_folder)}]
    damaged: list[Path] = []
    commits: list[str] = []

    def damage(name: str, progress: pipeline.Progress) -> None:
        if progress.session.units > commits.count(name):  # a new pass is told of, too
            commits.append(name)
            if not damaged and name == "write":  # before the next stage reads it
                damaged.append(sorted((tmp_path / "out" / name / layout.STAGED).glob("*.rows.arrow"))[0])
                damaged[0].write_bytes(b"nothing")

    result = pipeline.chain(stages, on_progress=damage, **settings(prompts, model, tmp_path / "out", units_in_flight=2))
    assert damaged
    assert commits.count("write") == UNITS + 1
    assert commits.count("judge") == commits.count("sum") == UNITS
    assert checksums(tmp_path / "out")[:2] == checksums(one_actor[0])[:2]
    assert result.summary.stages["sum"].total.rows == 78
    for name in PREFIXES:
        assert pipeline.verify(tmp_path / "out" / name).ok
    rows = pipeline.read(tmp_path / "out" / "sum", format="arrow")
    assert set(rows["sum_model"].to_pylist()) == {str(qwen25_folder)}


def _end_driver(chain: dict[str, Any], folder: Path, number: int, commits: int) -> int:
    """The command line as a process of its own, which joins this test's cluster; ends it after its first commits."""
    config = folder / "chain.yaml"
    config.write_text(yaml.safe_dump({**chain, "stages": STAGES}))
    environment = {**os.environ, "RAY_ADDRESS": ray.get_runtime_context().gcs_address, "RAY_AUTH_MODE": "token",
                   "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}  # fmt: skip
    driver = subprocess.Popen(
        [sys.executable, "-m", "jobs.chain", "--config", str(config)], cwd=ROOT, env=environment,
        stdout=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        deadline = time.monotonic() + 200
        while _commits(Path(chain["output"])) < commits and time.monotonic() < deadline:
            assert driver.poll() is None, "the run ended before it could be ended"
            time.sleep(0.002)
        driver.send_signal(number)
        return driver.wait(60)
    finally:
        driver.kill()
        driver.wait()


def _commits(output: Path) -> int:
    return len(list(output.glob(f"*/{layout.LEDGER}/*")))


def _generate_actors() -> Sequence[int]:
    """Process ids of the generate actors of this test's own Ray session."""
    import psutil

    raylets = [p for p in psutil.Process().children(recursive=True) if "raylet" in p.name()]
    workers = [w for raylet in raylets for w in raylet.children(recursive=True)]
    return [w.pid for w in workers if "GenerateActor" in " ".join(w.cmdline())]
