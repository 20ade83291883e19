"""The session: only where there is work, and failures are raised where it is needed."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pipeline
from pipeline import layout
from pipeline.cluster import actor_pool, session
from pipeline.cluster.actor_pool import ActorSeconds
from pipeline.cluster.executor import RayExecutor
from pipeline.cluster.pool_state import PoolState
from pipeline.cluster.session import Background
from pipeline.commands.run import run_on
from pipeline.config import RunConfig
from pipeline.storage.open import open_storage
from testing.pipeline.deadly_engines import harmless_engine
from testing.pipeline.fakes import InlineExecutor


def config_of(folder: Path, model: Path, rows: int = 20, **fields: Any) -> RunConfig:
    pq.write_table(
        pa.table({"prompt_token_ids": pa.array([[100, 200 + i] for i in range(rows)], pa.list_(pa.int64()))}),
        folder / "in.parquet",
    )
    given = {"input": str(folder / "in.parquet"), "output": str(folder / "out"), "model": str(model),
             "sampling": {"max_tokens": 4}, **fields}  # fmt: skip
    return RunConfig.from_mapping(given)


def go(executor: Any, config: RunConfig) -> Any:
    return run_on(executor, config, open_storage(config.output, layout.SCRATCH), lambda progress: None)


def refuse(*_: object, **__: object) -> bool:
    raise ConnectionError("no session may be started")


def test_only_a_run_with_work_starts_a_session(
    qwen3_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "ensure_ray", refuse)
    monkeypatch.setattr("ray.init", refuse)
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    config = config_of(tmp_path, qwen3_folder)
    assert pipeline.validate(config).ok
    refused = pipeline.validate(config_of(tmp_path, qwen3_folder, gpus_per_actor=64))
    assert any("64 GPU each" in problem for problem in refused.problems), "this machine is asked instead"
    with pytest.raises(ConnectionError):
        go(RayExecutor(config), config)
    go(InlineExecutor(), config)
    summary = go(RayExecutor(config), config)
    assert (summary.total.rows, summary.session.rows) == (20, 0), "nothing was left to do"
    assert pipeline.status(config.output)["rows_published"] == 20
    assert pipeline.read(config.output, format="arrow").num_rows == 20


def test_a_session_that_does_not_start_is_an_error_where_it_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "ensure_ray", refuse)
    background = Background()
    with pytest.raises(ConnectionError):
        background.wait()
    background.close()


def test_actors_are_ended_once_and_whoever_asks_waits_until_that_is_done() -> None:
    """The session ends them before Ray; the thread of a run that notices later must not call Ray any more."""

    class Bisection:
        def close(self) -> None:
            ended.append(threading.current_thread().name)
            slowly.wait(0.1)

    ended: list[str] = []
    slowly = threading.Event()
    pool = object.__new__(actor_pool.ActorPool)  # without actors: they need Ray
    pool.actors, pool.closed, pool._closing = {}, False, threading.Lock()
    pool.state, pool.seconds, pool.bisection = PoolState(pool), ActorSeconds(), Bisection()  # type: ignore[assignment]
    other = threading.Thread(target=pool.close, name="run")
    other.start()
    while not ended:
        slowly.wait(0.001)
    begun = time.monotonic()
    pool.close()
    assert time.monotonic() - begun > 0.01, "the second one waits"
    assert ended == ["run"]
    other.join()


@pytest.mark.usefixtures("cluster")
def test_nothing_of_a_run_stays_in_a_session_of_the_callers(
    qwen3_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ray

    started: list[Any] = []
    start = actor_pool.start_bisection
    monkeypatch.setattr(actor_pool, "start_bisection", lambda config: started.append(start(config)) or started[-1])
    config = config_of(tmp_path, qwen3_folder, rows=3)
    assert go(RayExecutor(config, load=harmless_engine), config).total.rows == 3
    assert ray.is_initialized()
    (bisection,) = started
    with pytest.raises(ray.exceptions.RayActorError):
        bisection.is_suspect("a unit")
