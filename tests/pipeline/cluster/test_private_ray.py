"""A real run listens on loopback only: the sockets of all of its processes, listed while it generates."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from testing.pipeline.ray_nodes import serve_cluster
from testing.pipeline.sockets import Listener, listeners, processes_with
from testing.repository import ROOT

MARK = "WEDLM_TEST_RUN"

# Ray is imported first, as a notebook would have done: it has read its environment by then.
DRIVER = """
import os, sys
import ray
import pipeline
def say(progress):
    print("generating", flush=True)
rows = [{"prompt": f"Count from {i}."} for i in range(160)]
pipeline.run(rows, model=sys.argv[1], output=sys.argv[2], unit_rows=4, sampling={"max_tokens": 24, "ignore_eos": True},
             on_progress=say)
from ray._private import ray_constants
print("after", os.environ.get("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"), ray_constants.ENABLE_RAY_CLUSTER, flush=True)
"""


def test_every_socket_of_every_process_of_a_generating_run_is_bound_to_loopback(
    qwen3_folder: Path, tmp_path: Path
) -> None:
    mark = secrets.token_hex(8)
    environment = {k: v for k, v in os.environ.items() if k != "RAY_ADDRESS"} | {MARK: mark, "PYTHONPATH": str(ROOT)}
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(qwen3_folder), str(tmp_path / "out")],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert driver.stdout is not None
        assert driver.stdout.readline() == "generating\n"
        seen: set[Listener] = set()
        names: set[str] = set()
        while driver.poll() is None:
            processes = processes_with(MARK, mark)
            seen |= set(listeners(processes))
            names |= {name(p) for p in processes}
            time.sleep(0.3)
        rest, errors = driver.communicate()
    finally:
        for process in processes_with(MARK, mark):
            process.kill()
    assert driver.returncode == 0, errors
    assert {"gcs_server", "raylet"} <= names
    assert any(n.startswith("ray::") for n in names), "workers are seen too"
    assert len(seen) >= 8, seen
    assert [s for s in seen if not s.is_on_loopback] == []
    assert rest.splitlines()[-1] == "after None True", "the caller may join another cluster afterwards"


@pytest.mark.slow(reason="a cluster of several nodes: 30 s")
def test_the_nodes_that_tests_start_listen_on_loopback_too() -> None:
    with serve_cluster() as cluster:
        node = cluster.add_node(1)
        seen = set(listeners([*cluster.head.processes(), *node.processes()]))
    assert {s.process for s in seen} >= {"raylet", "gcs_server"}
    assert [s for s in seen if not s.is_on_loopback] == []


def name(process: psutil.Process) -> str:
    try:
        return process.name()
    except psutil.Error:
        return ""


@pytest.mark.parametrize(
    ("address", "inside"),
    [("127.0.0.1", True), ("127.0.0.2", True), ("::1", True), ("::ffff:127.0.0.1", True), ("0.0.0.0", False),
     ("::", False), ("::ffff:0.0.0.0", False), ("10.1.2.3", False)],
)  # fmt: skip
def test_the_check_tells_loopback_from_every_other_address(address: str, inside: bool) -> None:
    assert Listener("p", address, 1).is_on_loopback == inside
