"""``ray job submit`` of the generate job, to a real cluster on loopback: success, failure, stop, continuation.

The head, where drivers run, has neither CPUs nor GPUs; the actors run on a node with made-up GPUs.
"""

from __future__ import annotations

import json
import re
import shlex
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import pipeline
from testing.pipeline.job_cluster import JobCluster, serve_jobs

pytestmark = pytest.mark.slow  # a cluster and four jobs: 50 s on two idle cores


@pytest.fixture(scope="module")
def cluster() -> Iterator[JobCluster]:
    with serve_jobs(gpus=1) as served:
        yield served


@pytest.fixture
def job(qwen3_folder: Path, tmp_path: Path) -> dict[str, Any]:
    """Settings of a job, for :func:`written`."""
    rows = [{"prompt": f"Count from {i} to 99.", "k": i} for i in range(60)]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {
        "input": str(tmp_path / "in.jsonl"), "output": str(tmp_path / "out"), "model": str(qwen3_folder),
        "device": "cpu", "gpus_per_actor": 1, "unit_rows": 2, "units_in_flight": 2,
        "sampling": {"max_tokens": 6, "ignore_eos": True},
    }  # fmt: skip


def written(job: dict[str, Any], folder: Path) -> str:
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump(job))
    return str(path)


def test_a_job_succeeds_whose_driver_has_no_accelerator_and_needs_no_torch(
    cluster: JobCluster, job: dict[str, Any], tmp_path: Path
) -> None:
    done = cluster.job(
        "submit", "--working-dir", str(cluster.work), "--", "python", "-X", "importtime", "-m", "jobs.generate",
        "--config", written(job, tmp_path),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:]
    assert "Rows: 60, 60 ok, 0 failed" in done.stdout
    imported = {line.rpartition("|")[2].strip() for line in done.stdout.splitlines() if line.startswith("import time:")}
    assert {"pipeline.cluster.feeding", "ray"} <= imported
    assert not [name for name in imported if name.partition(".")[0] in ("torch", "triton", "numba", "transformers")]
    assert [row["k"] for row in pipeline.read(tmp_path / "out", format="arrow").to_pylist()] == list(range(60))


def test_a_job_that_fails_is_failed_and_its_log_ends_with_the_reason(
    cluster: JobCluster, job: dict[str, Any], tmp_path: Path
) -> None:
    config = written({**job, "gpus_per_actor": 2}, tmp_path)
    done = cluster.job(
        "submit", "--submission-id", "fails", "--working-dir", str(cluster.work), "--", "python", "-m",
        "jobs.generate", "--config", config,
    )  # fmt: skip
    assert done.returncode == 1, "of the client, whatever the job's is"
    last = cluster.log_of("fails").strip().splitlines()[-1]
    assert last.startswith("error: actors=1 with ")
    assert "2 GPU each" in last
    assert "Lower actors, gpus_per_actor or cpus_per_actor" in last
    status = cluster.job("status", "fails").stdout
    assert "Job 'fails' failed" in status
    assert "exit code 2" in status
    assert last in status


def test_a_stopped_job_commits_what_is_in_flight_and_exits_resumable_and_a_second_one_does_the_rest(
    cluster: JobCluster, job: dict[str, Any], tmp_path: Path
) -> None:
    # Units that follow each other, of many forwards: the client takes seconds to start, and then asks for the stop.
    job |= {"unit_rows": 1, "units_in_flight": 1}
    job["sampling"] |= {"max_tokens": 400, "strategy": "autoregressive"}
    command = f"python -m jobs.generate --config {shlex.quote(written(job, tmp_path))}"
    shell = ["sh", "-c", f'trap : TERM; {command}; echo "status $?"']  # it gets the signal, too
    environment = {"env_vars": {"RAY_JOB_STOP_WAIT_TIME_S": "20"}}
    begun = cluster.job(
        "submit", "--no-wait", "--submission-id", "stops", "--working-dir", str(cluster.work),
        "--runtime-env-json", json.dumps(environment), "--", *shell,
    )  # fmt: skip
    assert begun.returncode == 0, begun.stdout
    _wait_for(lambda: _committed(tmp_path) > 0, lambda: cluster.log_of("stops"))
    at_stop = _committed(tmp_path)
    stopped = cluster.job("stop", "stops")
    assert stopped.returncode == 0, stopped.stdout
    log = cluster.log_of("stops")
    assert "Job 'stops' was stopped" in cluster.job("status", "stops").stdout, log
    assert "asked to stop: no new units; units done within 15 s are committed" in log
    assert log.strip().splitlines()[-2:] == [
        "terminated: the same command continues from the committed rows", "status 143"
    ]  # fmt: skip
    found = pipeline.status(tmp_path / "out")
    assert at_stop < found["units_committed"] < 60
    assert not found["being_written"]

    again = cluster.job("submit", "--working-dir", str(cluster.work), "--", *shlex.split(command))
    assert again.returncode == 0, again.stdout[-3000:]
    assert f"This run: {60 - found['rows_committed']} rows" in again.stdout
    assert [row["k"] for row in pipeline.read(tmp_path / "out", format="arrow").to_pylist()] == list(range(60))
    assert pipeline.verify(tmp_path / "out", input=job["input"]).ok


def _committed(folder: Path) -> int:
    try:
        return int(pipeline.status(folder / "out")["units_committed"])
    except pipeline.OutputError:
        return 0


def _wait_for(condition: Callable[[], bool], log: Callable[[], str]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, log()
        time.sleep(0.1)


def test_the_log_of_a_job_has_lines_of_progress_and_nothing_for_terminals(
    cluster: JobCluster, job: dict[str, Any], tmp_path: Path
) -> None:
    done = cluster.job(
        "submit", "--submission-id", "shown", "--working-dir", str(cluster.work), "--", "python", "-m",
        "jobs.generate", "--progress-seconds", "1", "--config", written(job, tmp_path),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:]
    log = cluster.log_of("shown").partition("Running entrypoint for job shown")[2].partition("\n")[2]
    assert "\x1b" not in log, "the client's own lines come before"
    assert "\r" not in log
    stages = [line.split()[1] for line in log.splitlines() if line.startswith("progress ")]
    assert stages[0] == "stage=planning"
    assert stages[-1] == "stage=done"
    assert "stage=generating" in stages
    known = re.compile(r"progress stage=|\[ *[\d.]+ s\] |[A-Z][\w ]+: |To [\w ]+: ")
    foreign = [line for line in log.splitlines() if line and not known.match(line)]
    assert not foreign, "no bars, no warnings, no lines of workers"
