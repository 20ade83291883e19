"""``ray job submit`` of the generate job to a cluster that this test starts on loopback."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pipeline
from testing.repository import ROOT

RAY = Path(sys.executable).with_name("ray")
NODE, DASHBOARD = "127.0.0.1", "127.0.0.1"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((DASHBOARD, 0))
        return int(probe.getsockname()[1])


@contextmanager
def head(environment: dict[str, str]) -> Iterator[str]:
    """A head node of its own session and folder; the address of its job server."""
    port = free_port()
    # Sockets live below this folder, and their paths may not be longer than about 100 characters.
    folder = tempfile.mkdtemp(prefix="wr-", dir="/tmp")
    command = [
        str(RAY), "start", "--head", "--block", f"--node-ip-address={NODE}", f"--port={free_port()}", "--num-cpus=2",
        f"--dashboard-host={DASHBOARD}", f"--dashboard-port={port}", f"--temp-dir={folder}",
        f"--ray-client-server-port={free_port()}", "--disable-usage-stats", "--object-store-memory=200000000",
    ]  # fmt: skip
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, start_new_session=True)
    try:
        address = f"http://{DASHBOARD}:{port}"
        _wait_for(address, process)
        yield address
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _wait_for(address: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        assert process.poll() is None, "the head node ended by itself"
        try:
            urllib.request.urlopen(f"{address}/api/version", timeout=5)
        except urllib.error.HTTPError:
            return  # it answers, and wants a token
        except OSError:
            time.sleep(0.5)
        else:
            return
    raise AssertionError("the head node did not come up")


@pytest.mark.slow
def test_a_submitted_job_joins_its_cluster_and_publishes(qwen3_folder: Path, tmp_path: Path) -> None:
    rows = [{"prompt": f"Count from {i} to {i + 3}.", "k": i} for i in range(9)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "in.parquet")
    (tmp_path / "token").write_text(secrets.token_hex(32))
    work = tmp_path / "work"
    for package in ("jobs", "pipeline", "wedlm_batch", "wedlm_core"):
        shutil.copytree(ROOT / package, work / package, ignore=shutil.ignore_patterns("__pycache__"))
    environment = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
    environment |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(tmp_path / "token")}
    environment["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # the node stays on loopback
    with head(environment) as address:
        job = [sys.executable, "-m", "jobs.generate", "--input", str(tmp_path / "in.parquet"),
               "--output", str(tmp_path / "out"), "--model", str(qwen3_folder),
               "--set", "sampling.max_tokens=6", "--set", "unit_rows=4"]  # fmt: skip
        done = subprocess.run(
            [str(RAY), "job", "submit", "--address", address, "--working-dir", str(work), "--", *job],
            env=environment, capture_output=True, text=True, timeout=280, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Rows: 9, 9 ok, 0 failed" in done.stdout
    assert [row["k"] for row in pipeline.read(tmp_path / "out", format="arrow").to_pylist()] == list(range(9))
