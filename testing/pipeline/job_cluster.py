"""A Ray cluster on loopback that takes submitted jobs: a head without CPUs and GPUs, and a node with made-up GPUs."""

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

from testing.repository import ROOT

_HOST = "127.0.0.1"
# Ray's command, which would replace 127.0.0.1 by the interface's address, and listens on all interfaces for any other.
_RAY = (
    "import ray._private.services as services; services.resolve_ip_for_localhost = lambda host: host; "
    "from ray.scripts.scripts import main; main()"
)
_PORTS = ("node-manager", "object-manager", "dashboard-agent-listen", "dashboard-agent-grpc", "metrics-export",
          "runtime-env-agent")  # fmt: skip
"""By default some of them are fixed, as if a node had the machine for itself."""
_PACKAGES = ("jobs", "pipeline", "wedlm_base", "wedlm_batch", "wedlm_core")


class JobCluster:
    """A running cluster.

    Attributes:
        address: of its job server.
        work: a folder with our packages alone, for ``--working-dir``.
        environment: for clients.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._processes: list[subprocess.Popen[bytes]] = []
        self.work = folder / "work"
        for package in _PACKAGES:
            shutil.copytree(ROOT / package, self.work / package, ignore=shutil.ignore_patterns("__pycache__"))
        token = folder / "token"
        token.write_text(secrets.token_hex(32))
        self._base = {k: v for k, v in os.environ.items() if not k.startswith("RAY_") and k != "PYTHONPATH"} | {
            "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token), "OMP_NUM_THREADS": "1",
            "RAY_worker_niceness": "0", "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        }  # fmt: skip
        # With the variable a node and the drivers on it stay on 127.0.0.1; a node that joins goes without.
        self.environment = self._base | {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
        self._dashboard = _free_port()
        self.address = f"http://{_HOST}:{self._dashboard}"

    def start(self, gpus: int) -> None:
        """Start the nodes; the second one has two CPUs, and made-up GPUs."""
        head = _free_port()
        self._start(self.environment, "--head", f"--port={head}", "--num-cpus=0", "--num-gpus=0",
                    f"--dashboard-host={_HOST}", f"--dashboard-port={self._dashboard}", f"--temp-dir={self._folder}",
                    f"--ray-client-server-port={_free_port()}")  # fmt: skip
        self._wait_until_jobs_are_taken()
        self._start(self._base, f"--address={_HOST}:{head}", "--num-cpus=2", f"--num-gpus={gpus}")

    def _start(self, environment: dict[str, str], *options: str) -> None:
        command = [sys.executable, "-c", _RAY, "start", "--block", f"--node-ip-address={_HOST}", *options,
                   "--disable-usage-stats", "--object-store-memory=200000000", "--min-worker-port=0",
                   "--max-worker-port=0", *(f"--{name}-port={_free_port()}" for name in _PORTS)]  # fmt: skip
        log = self._folder / f"node-{len(self._processes)}.log"
        with log.open("wb") as said:
            process = subprocess.Popen(command, env=environment, stdout=said, stderr=said, start_new_session=True)
        self._processes.append(process)
        deadline = time.monotonic() + 90
        while b"Ray runtime started" not in log.read_bytes():
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"a node did not start: {log.read_text(errors='replace')[-2000:]}")
            time.sleep(0.1)

    def _wait_until_jobs_are_taken(self) -> None:
        deadline = time.monotonic() + 90
        while time.monotonic() < deadline:
            try:
                urllib.request.urlopen(f"{self.address}/api/version", timeout=5)
            except urllib.error.HTTPError as error:
                if error.code in (401, 403):
                    return  # it answers, and wants a token
                raise
            except OSError:
                time.sleep(0.2)
            else:
                raise RuntimeError("the job server answers without a token")
        raise RuntimeError("the job server did not come up")

    def job(self, *arguments: str, timeout: float = 280) -> subprocess.CompletedProcess[str]:
        """``ray job COMMAND ...``, run to its end."""
        command, *rest = arguments
        return subprocess.run(
            [sys.executable, "-c", _RAY, "job", command, "--address", self.address, *rest], env=self.environment,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=timeout, check=False,
        )  # fmt: skip

    def log_of(self, submission: str) -> str:
        """The output of a job so far."""
        return self.job("logs", submission).stdout

    def end(self) -> None:
        """End every node."""
        for process in reversed(self._processes):
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@contextmanager
def serve_jobs(gpus: int = 1) -> Iterator[JobCluster]:
    """A cluster for the duration of the block. ``gpus`` of its node are made up: Ray counts them, nothing uses them."""
    # Sockets live below this folder, and their paths may not be longer than about 100 characters.
    folder = Path(tempfile.mkdtemp(prefix="wr-", dir="/tmp"))
    cluster = JobCluster(folder)
    try:
        cluster.start(gpus)
        yield cluster
    finally:
        cluster.end()
        shutil.rmtree(folder, ignore_errors=True)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((_HOST, 0))
        return int(probe.getsockname()[1])
