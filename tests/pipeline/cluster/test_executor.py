"""End to end: real files, a real Ray cluster on loopback, real engines; kills with signal 9."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import ray

import pipeline
from pipeline import layout
from pipeline.cluster import session
from pipeline.cluster.session import start_probe
from pipeline.codec import EngineConfig, make_requests
from pipeline.commands.report import gather
from pipeline.errors import ResourceError
from pipeline.schema import DATA_COLUMNS
from pipeline.sinks.staged import data_checksum
from pipeline.storage.open import open_storage
from testing.repository import ROOT
from wedlm_core import LLM, SamplingParams

SAMPLING = {"max_tokens": 12, "n": 2, "temperature": 0.8, "window_size": 4}
SETTINGS = {"unit_rows": 4, "seed": 7}
BAD_ROWS = {11: "", 17: None}
DATA = ["prompt", "extra", "tags", *DATA_COLUMNS]


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rows = [
        {"prompt": BAD_ROWS.get(i, f"Count from {i} to {i + 5}."), "extra": i * 1.5, "tags": ["a"] * (i % 3)}
        for i in range(30)
    ]
    path = tmp_path_factory.mktemp("input") / "prompts.parquet"
    pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=13)
    return path


def run(prompts: Path, model: Path, output: Path, **fields: Any) -> pipeline.RunResult:
    return pipeline.run(
        str(prompts), model=str(model), output=output, sampling=SamplingParams(**SAMPLING), **{**SETTINGS, **fields}
    )


def checksum(output: Path) -> str:
    return data_checksum(pipeline.read(output, format="arrow"), DATA)


@pytest.fixture(scope="module")
def one_actor(cluster: None, prompts: Path, qwen3_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("one")
    run(prompts, qwen3_folder, output)
    return output


def test_rows_equal_those_of_the_bare_engine(one_actor: Path, prompts: Path, qwen3_folder: Path) -> None:
    table = pipeline.read(one_actor, format="arrow")
    llm = LLM(str(qwen3_folder))
    params = SamplingParams(**SAMPLING)
    expected = []
    for i, prompt in enumerate(pq.read_table(prompts)["prompt"].to_pylist()):
        row_id = f"prompts.parquet:{i}"
        if i in BAD_ROWS:
            expected.append((row_id, 0, None, None, "error"))
            continue
        requests = make_requests(str(i), row_id, llm.tokenizer.encode_prompt(prompt), params, SETTINGS["seed"])
        done = {}
        for request in requests:
            llm.engine.add(request)
        while llm.engine.has_work():
            done.update((g.request_id, g) for g in llm.engine.step())
        for request in requests:
            g = done[request.request_id]
            expected.append((row_id, g.sample_index, g.text, list(g.token_ids), str(g.finish_reason)))
    got = table.select(["row_id", "sample_index", "text", "token_ids", "finish_reason"]).to_pylist()
    assert [tuple(row.values()) for row in got] == expected
    ok = [row for row in table.to_pylist() if row["error"] is None]
    assert all(row["completion_tokens"] == len(row["token_ids"]) for row in ok)
    assert all(sum(i * c for i, c in enumerate(r["stats"]["commit_histogram"])) > 0 for r in ok)
    assert len({tuple(row["token_ids"]) for row in ok}) > len(ok) // 2, "seeds differ between rows and samples"


def test_plain_readers_of_the_folder_see_the_published_rows_and_nothing_else(one_actor: Path) -> None:
    table = pipeline.read(one_actor, format="arrow")
    assert pq.read_table(one_actor).equals(table)
    dead = pipeline.read(one_actor, table="dead_letters", format="arrow").to_pylist()
    assert [(row["row_id"], row["extra"]) for row in dead] == [(f"prompts.parquet:{i}", i * 1.5) for i in BAD_ROWS]


def test_the_player_shows_rows_step_by_step_with_the_tokens_of_the_output(one_actor: Path) -> None:
    facts = gather(open_storage(one_actor, layout.SCRATCH))
    assert [trace.same for trace in facts.traces] == [True] * 6
    assert facts.trace_note is None
    (session,) = facts.sessions
    assert session.rows == 30
    assert session.used.cpus > 0
    page = (one_actor / layout.REPORT_PAGE).read_text(encoding="utf-8")
    assert 'id="player"' in page
    assert all(trace.row_id in page for trace in facts.traces)


def test_the_callers_session_is_used_and_left_running(one_actor: Path) -> None:
    assert ray.is_initialized()
    assert ray.cluster_resources()["CPU"] == 2


def test_a_killed_driver_then_two_actors_one_of_them_killed_give_the_same_data(
    one_actor: Path, prompts: Path, qwen3_folder: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    _kill_driver_after_its_first_commit(prompts, qwen3_folder, out)
    committed = pipeline.status(out)["units_committed"]
    assert 0 < committed < 8
    assert not list(out.glob("data-*")), "nothing is visible before everything is done"

    killed: list[int] = []

    def kill_an_actor(progress: pipeline.Progress) -> None:
        if progress.session.units and not killed:
            killed.append(_generate_actors()[0])
            os.kill(killed[0], signal.SIGKILL)

    # One unit at once per actor, so that some are still to be done when the first is.
    result = run(prompts, qwen3_folder, out, actors=2, units_in_flight=1, on_progress=kill_an_actor)
    assert killed
    assert result.summary.total.rows == 30
    assert result.summary.session.units == 8 - committed
    assert checksum(out) == checksum(one_actor)
    assert evidence(out) == evidence(one_actor)
    again = run(prompts, qwen3_folder, out)
    assert again.summary.session.units == 0
    assert checksum(out) == checksum(one_actor)
    ours, theirs = (gather(open_storage(output, layout.SCRATCH)) for output in (out, one_actor))
    assert ours.traces
    assert theirs.traces
    assert all(trace.same for trace in (*ours.traces, *theirs.traces)), "rows decoded once more, with the same tokens"
    assert ours.aggregate.finish_reasons == theirs.aggregate.finish_reasons


def evidence(out: Path) -> list[dict[str, Any] | None]:
    """The statistics of every row, but for the drafts, which follow the load."""
    every = pipeline.read(out, format="arrow")["evidence"].to_pylist()
    return [None if one is None else {**one, "draft_agreement": None} for one in every]


def _kill_driver_after_its_first_commit(prompts: Path, model: Path, out: Path) -> None:
    """The command line as a process of its own, which joins this test's cluster and dies by signal 9."""
    command = [sys.executable, "-m", "jobs.generate", "--input", str(prompts), "--output", str(out),
               "--model", str(model), "--set", "units_in_flight=1"]  # fmt: skip
    for name, value in {**SETTINGS, **{f"sampling.{k}": v for k, v in SAMPLING.items()}}.items():
        command += ["--set", f"{name}={value}"]
    environment = {**os.environ, "RAY_ADDRESS": ray.get_runtime_context().gcs_address, "RAY_AUTH_MODE": "token",
                   "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}  # fmt: skip
    driver = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 200
        while not list(out.glob(f"{layout.LEDGER}/*")) and time.monotonic() < deadline:
            assert driver.poll() is None, "the run ended before it could be killed"
            time.sleep(0.002)
    finally:
        driver.kill()
        driver.wait()


def _generate_actors() -> list[int]:
    """Process ids of the generate actors of this test's own Ray session."""
    import psutil

    raylets = [p for p in psutil.Process().children(recursive=True) if "raylet" in p.name()]
    workers = [w for raylet in raylets for w in raylet.children(recursive=True)]
    return [w.pid for w in workers if "GenerateActor" in " ".join(w.cmdline())]


def test_workers_that_find_other_modules_of_our_names_end_the_run_with_the_place(
    cluster: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    start_probe()()
    monkeypatch.setattr(session, "marks_of", lambda name: {"pipeline": "a_file_of_ours_that_the_others_lack.py"})
    with pytest.raises(ResourceError, match=r"find .*pipeline/__init__\.py where our package 'pipeline' is needed"):
        start_probe()()


def test_an_actor_that_cannot_load_its_model_ends_the_run_with_the_reason(
    cluster: None, prompts: Path, qwen3_folder: Path, tmp_path: Path
) -> None:
    with pytest.raises(pipeline.EngineDiedError, match=r"(?s)could not start.*attention='sdpa'"):
        run(prompts, qwen3_folder, tmp_path / "out", engine=EngineConfig(attention="sdpa", batch_invariant=True))


def test_preview_gives_the_first_rows_of_the_run_and_writes_nothing(
    one_actor: Path, prompts: Path, qwen3_folder: Path, tmp_path: Path
) -> None:
    config = pipeline.RunConfig(
        input=str(prompts), output=str(tmp_path / "out"), model=str(qwen3_folder),
        sampling=SamplingParams(**SAMPLING), **SETTINGS,
    )  # fmt: skip
    shown = pipeline.preview(config, rows=3)
    whole = pipeline.read(one_actor, format="arrow")
    assert data_checksum(shown, DATA) == data_checksum(whole.slice(0, 6), DATA)
    assert not (tmp_path / "out").exists()
