"""The head of a cluster is killed: its driver ends in bounded time with a clear word, and a new head continues."""

from __future__ import annotations

import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pipeline
from testing.pipeline.chaos import JobDriver
from testing.pipeline.ray_nodes import serve_cluster

ROWS = 240
LIMIT_SECONDS = 60.0
"""Ray itself would end the process then, without a word of ours."""


def units(output: Path) -> int:
    """Units that are committed so far."""
    try:
        return int(pipeline.status(str(output))["units_committed"])
    except pipeline.PipelineError:  # no run was begun
        return 0


@pytest.mark.slow  # about a minute and a half: two clusters, and the half minute that a silent head is waited for
@pytest.mark.timeout(600)
def test_the_drivers_end_is_bounded_and_a_new_head_continues(qwen3_folder: Path, tmp_path: Path) -> None:
    source, output = tmp_path / "prompts.parquet", tmp_path / "out"
    pq.write_table(pa.table({"prompt": [f"Count from {i} to {i + 5}." for i in range(ROWS)]}), source)
    config = {"input": str(source), "output": str(output), "model": str(qwen3_folder), "unit_rows": 8,
              "sampling": {"max_tokens": 24, "ignore_eos": True}, "units_in_flight": 2, "num_threads": 1,
              "device": "cpu", "gpus_per_actor": 1, "cpus_per_actor": 0.5}  # fmt: skip
    with serve_cluster() as cluster:
        cluster.add_node(1, gpus=1)
        job = JobDriver(cluster, tmp_path / "driver", config, pace=0.3)
        driver = job.start()
        try:
            while units(output) < 3:
                assert driver.poll() is None, job.said()[-3000:]
                time.sleep(0.2)
            cluster.kill_head()
            begin = time.monotonic()
            status = driver.wait(2 * LIMIT_SECONDS)
            seconds = time.monotonic() - begin
            done = units(output)
            assert status == 1, "the same command continues after this status"
            assert seconds < LIMIT_SECONDS
            last = job.said().rstrip().splitlines()[-1]
            assert last.startswith(f"error: the head of the Ray cluster at {cluster.address} has not answered for 30 s")
            assert "run the same command again" in last
            assert "Traceback" not in job.said()
            cluster.start_head()
            cluster.add_node(1, gpus=1)
            driver = job.start()
            assert driver.wait(240) == 0, job.said()[-3000:]
        finally:
            driver.kill()
            driver.wait()
    assert 3 <= done < ROWS // 8
    assert len(pipeline.read(str(output), format="arrow")) == ROWS
    assert pipeline.verify(str(output), input=str(source)).ok
