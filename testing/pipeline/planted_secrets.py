"""Driver of a test: runs that succeed and fail in every way, with secrets given in every way; then all that may leak.

``python -m testing.pipeline.planted_secrets ENDPOINT MODEL``. The environment has PLANTED_KEY and PLANTED_FILE (a path)
to reach the store; PLANTED_LITERAL is given literally. Each run's outcome is a line of its own.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import time
import traceback
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import psutil
import ray  # before ours, as a notebook would have done: it has read its environment by then
import s3fs
from ray._private import ray_constants

import pipeline
from pipeline import layout
from pipeline.cluster.executor import RayExecutor
from pipeline.cluster.private_ray import private_folder
from pipeline.cluster.session import ray_session
from pipeline.codec import Generation
from pipeline.commands.run import run_on
from pipeline.config import RunConfig
from pipeline.plan.job import Job
from pipeline.storage.open import open_storage
from testing.pipeline.fakes import FakeEngine

ROWS = [{"prompt": f"Count from {i}." if i != 3 else None, "k": i} for i in range(12)]


class _LeakyEngine(FakeEngine):
    """Fails as a client that quotes its credentials."""

    def step(self) -> list[Generation]:
        raise RuntimeError(f"the signature of {os.environ['PLANTED_KEY']} was refused")


def leaky_engine(job: Job, num_threads: int | None) -> FakeEngine:
    """An engine whose first step is a fatal error with a secret in its text."""
    return _LeakyEngine(slots=8)


def leaky_start(job: Job, num_threads: int | None) -> FakeEngine:
    """No engine: loading fails with the content of a secret file in the error."""
    try:
        with open(os.environ["PLANTED_FILE"], encoding="utf-8") as file:
            raise ValueError(f"unexpected content {file.read()!r}")
    except ValueError as error:
        raise OSError("the model cannot be read") from error


class _SlowEngine(FakeEngine):
    """Takes its time, so that its process can be killed in the middle of a run."""

    def step(self) -> list[Generation]:
        time.sleep(0.05)
        return super().step()


def slow_engine(job: Job, num_threads: int | None) -> FakeEngine:
    """An engine without a model."""
    return _SlowEngine(slots=8, bans=False)


def outcome(name: str, call: Callable[[], Any]) -> None:
    """Run, and print how it ended, with the whole traceback as a user would see it."""
    try:
        result = call()
        print(f"{name}: done, {result}" + (", one killed" if name == "killed actor" and _killed else ""), flush=True)
    except Exception as error:
        print(f"{name}: {type(error).__name__}", flush=True)
        traceback.print_exc()
        print(repr(error), error.args, file=sys.stderr)


def kill_an_actor(progress: pipeline.Progress) -> None:
    """SIGKILL to a generate actor of this session, once."""
    global _killed
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            mine = process.environ().get("PLANTED_KEY") == os.environ["PLANTED_KEY"]
            if mine and not _killed and "GenerateActor" in process.cmdline()[0]:
                process.send_signal(signal.SIGKILL)
                _killed = True


_killed = False


def authenticate(endpoint: str, free_requests: int) -> None:
    """From so many requests on, the server checks credentials, and refuses ours."""
    request = urllib.request.Request(f"{endpoint}/moto-api/reset-auth", str(free_requests).encode(), method="POST")
    request.add_header("Content-Type", "application/octet-stream")
    urllib.request.urlopen(request).read()


def main(endpoint: str, model: str) -> None:
    """All runs, in one session."""
    references = {"key": {"env": "PLANTED_KEY"}, "secret": {"file": os.environ["PLANTED_FILE"]}}
    options: dict[str, Any] = {**references, "endpoint_url": endpoint, "use_ssl": False}
    literal = {**options, "key": os.environ["PLANTED_LITERAL"], "secret": os.environ["PLANTED_LITERAL"]}
    fs = s3fs.S3FileSystem(key="test", secret="test", endpoint_url=endpoint)
    fs.mkdir("plant")
    with fs.open("plant/in.jsonl", "w") as file:
        file.writelines(json.dumps(row) + "\n" for row in ROWS)
    common: dict[str, Any] = {
        "input": "s3://plant/in.jsonl", "model": model, "unit_rows": 2, "sampling": {"max_tokens": 8, "window_size": 4},
    }  # fmt: skip

    def go(output: str, load: Any, tell: Any = lambda progress: None, **fields: Any) -> Any:
        config = RunConfig.from_mapping({**common, "output": output, "storage_options": options, **fields})
        storage = open_storage(config.output, layout.SCRATCH, config.output_options)
        return run_on(RayExecutor(config, load), config, storage, tell).total

    with ray_session():
        outcome("killed actor", lambda: go(
            "s3://plant/out", slow_engine, kill_an_actor, storage_options={}, input_storage_options=literal,
            output_storage_options=options, units_in_flight=1))  # fmt: skip
        outcome("read", lambda: [
            row["k"] for row in pipeline.read("s3://plant/out", storage_options=options).dataset.take_all()
        ])  # fmt: skip
        outcome("other settings", lambda: pipeline.run(
            output="s3://plant/out", storage_options=options, **{**common, "seed": 5}))  # fmt: skip
        outcome("wrong bucket", lambda: pipeline.run(output="s3://nosuch/out", storage_options=options, **common))
        outcome("wrong input", lambda: pipeline.run(
            output="s3://plant/x", storage_options=options, **{**common, "input": "s3://nosuch/in.jsonl"}))  # fmt: skip
        outcome("leaky engine", lambda: go("s3://plant/leaky", leaky_engine, max_engine_deaths=0))
        outcome("leaky start", lambda: go("s3://plant/start", leaky_start, max_engine_deaths=0))
        authenticate(endpoint, 0)
        outcome("wrong credentials", lambda: pipeline.run(output="s3://plant/y", storage_options=options, **common))
        outcome("wrong literal", lambda: pipeline.run(output="s3://plant/z", storage_options=literal, **common))
        authenticate(endpoint, 10**9)
        outcome("revoked credentials", lambda: go(
            "s3://plant/r", slow_engine, lambda progress: authenticate(endpoint, 0), units_in_flight=1))  # fmt: skip
        authenticate(endpoint, 10**9)
    print("after", os.environ.get("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"), ray_constants.ENABLE_RAY_CLUSTER, flush=True)
    assert not ray.is_initialized()
    # Ray's files go with this process. Files left in the working folder are looked through.
    shutil.copytree(private_folder(), "ray", ignore=shutil.ignore_patterns("sockets"), symlinks=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
