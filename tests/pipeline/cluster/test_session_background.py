"""Starting in the background: only where there is work, and failures are raised where the result is needed."""

from __future__ import annotations

import signal
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pipeline
from pipeline import layout
from pipeline.cluster import actor_pool, executor, prefetch, session
from pipeline.cluster.actor_pool import ActorSeconds
from pipeline.cluster.executor import RayExecutor
from pipeline.cluster.pool_state import PoolState
from pipeline.cluster.session import Background
from pipeline.commands.run import run_on
from pipeline.config import RunConfig
from pipeline.plan.job import resolve_job
from pipeline.sources import source_of
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


def test_what_fails_in_the_background_is_raised_where_it_is_needed_and_nowhere_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(session, "ensure_ray", refuse)
    background = Background()
    background.start_actors(lambda: pytest.fail("there is no session"))
    with pytest.raises(ConnectionError):
        background.actors()
    background.close()
    unused = Background()
    unused.start_actors(lambda: pytest.fail("there is no session"))
    unused.close()


def test_a_signal_that_ends_the_wait_for_actors_leaves_them_to_the_end_of_the_session(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """If Ray ended while they start, the starting thread would begin a session of its own, and never end."""

    class Stands:
        def close(self) -> None:
            ended.append("actors")

    def interrupt(*_: object) -> None:
        raise SystemExit(143)

    ended: list[str] = []
    stands = threading.Event()
    monkeypatch.setattr(Background, "_start", lambda self: False)
    background = Background()
    background.start_actors(lambda: Stands() if stands.wait(10) else pytest.fail("nobody waits"))  # type: ignore[arg-type,return-value]
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(SystemExit):
            background.actors()
    finally:
        signal.signal(signal.SIGALRM, before)
    threading.Timer(0.1, stands.set).start()
    background.close()
    assert ended == ["actors"]


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


@pytest.mark.parametrize(("rows", "limit", "units"), [(0, None, None), (3, None, 1), (20, None, 4), (20, 5, 2)])
def test_no_more_actors_are_started_ahead_than_there_may_be_units(
    rows: int, limit: int | None, units: int | None, qwen3_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int | None] = []
    monkeypatch.setattr(executor, "start_pool", lambda job, load, units, private, beside: asked.append(units))
    monkeypatch.setattr(Background, "_start", lambda self: False)
    config = config_of(tmp_path, qwen3_folder, rows=rows, actors=4, unit_rows=4, limit=limit)
    storage = open_storage(config.output, layout.SCRATCH)
    ahead = RayExecutor(config)
    with ahead.session():
        ahead.prepare(resolve_job(config, source_of(config, storage), storage))
        ahead._background.actors()
    assert asked == ([] if units is None else [units])


@pytest.mark.usefixtures("cluster")
def test_few_tasks_run_without_a_graph_of_ray_data(
    qwen3_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And their actors are started before the units are planned."""
    planned: list[bool] = []

    class Watched(RayExecutor):
        def run_units(self, job: Any, work: Any) -> Any:
            planned.append(self._background._actors is not None)
            return super().run_units(job, work)

    config = config_of(tmp_path, qwen3_folder, unit_rows=4, num_threads=1)
    monkeypatch.setattr(prefetch, "_blocks", lambda *_: pytest.fail("no graph is needed"))
    summary = go(Watched(config, harmless_engine), config)  # type: ignore[arg-type]
    assert (summary.total.rows, summary.total.failed_rows, planned) == (20, 0, [True])
    assert pipeline.read(config.output, format="arrow")["prompt_token_ids"].to_pylist() == [
        [100, 200 + i] for i in range(20)
    ]


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
