"""Starts Ray nodes on loopback, each in processes of its own that a test may kill."""

from __future__ import annotations

import itertools
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from testing.repository import ROOT

__all__ = ["Cluster", "Node", "serve_cluster"]

# Ray's command, which would replace 127.0.0.1 by the interface's address, and listens on all interfaces for any other.
_RAY = (
    "import ray._private.services as services; services.resolve_ip_for_localhost = lambda host: host; "
    "from ray.scripts.scripts import main; main()"
)
_ADDRESS = "127.0.0.1"


_STARTS = 3


class Node:
    """A started node: ``process`` is ``ray start --block``, whose children are the node's; ``log``: what it says."""

    def __init__(self, log: Path, process: subprocess.Popen[bytes]) -> None:
        self.log = log
        self.process = process

    @property
    def raylet(self) -> psutil.Process | None:
        """Its raylet, while it lives."""
        for child in psutil.Process(self.process.pid).children():
            if child.name() == "raylet" and child.status() != psutil.STATUS_ZOMBIE:
                return child
        return None

    def processes(self) -> list[psutil.Process]:
        """All of its processes."""
        root = psutil.Process(self.process.pid)
        return [root, *root.children(recursive=True)]

    def kill_raylet(self) -> None:
        """SIGKILL to the raylet: the node is lost, and its workers end with it."""
        raylet = self.raylet
        if raylet is not None:
            raylet.send_signal(signal.SIGKILL)

    def end(self) -> None:
        """End whatever is left of it."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


class Cluster:
    """A head without CPUs for work, and nodes that come and go. ``environment``: for drivers.

    ``settings``: further environment variables of its processes.
    """

    def __init__(self, folder: Path, settings: Mapping[str, str]) -> None:
        self._folder = folder
        self._numbers = itertools.count()
        token = folder / "token"
        token.write_text(secrets.token_hex(32))
        self._port = _free_port()
        self.address = f"{_ADDRESS}:{self._port}"
        self._base = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")} | {
            "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token), "OMP_NUM_THREADS": "1",
            # A node that is gone is found out at once by its closed connection; a stopped one within seconds.
            "RAY_health_check_period_ms": "1000", "RAY_health_check_failure_threshold": "5",
            "RAY_worker_niceness": "0", "PYTHONPATH": str(ROOT), **settings,
        }  # fmt: skip
        # With the variable a driver takes 127.0.0.1 as it is (and a node could not join, so they go without).
        self.environment = self._base | {"RAY_ADDRESS": self.address, "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
        self.nodes: list[Node] = []
        self.head = self._start(["--head", f"--port={self._port}", f"--temp-dir={folder}", "--num-cpus=0",
                                  f"--ray-client-server-port={_free_port()}", "--include-dashboard=false"])  # fmt: skip
        self._wait_until_up(self.head)

    def add_node(self, cpus: int) -> Node:
        """Start a node and wait until the head knows it."""
        for left in reversed(range(_STARTS)):
            node = self._start([f"--address={self.address}", f"--num-cpus={cpus}"])
            try:
                self._wait_until_up(node)
                break
            except RuntimeError:  # Ray draws free ports before it takes them: another process may be faster
                if not left or node.process.poll() is None:
                    raise
        self.nodes.append(node)
        return node

    def _start(self, arguments: list[str]) -> Node:
        command = [sys.executable, "-c", _RAY, "start", "--block", f"--node-ip-address={_ADDRESS}",
                   "--disable-usage-stats", "--object-store-memory=100000000", *arguments]  # fmt: skip
        path = self._folder / f"node-{next(self._numbers)}.log"
        with path.open("wb") as log:
            process = subprocess.Popen(command, env=self._base, stdout=log, stderr=log, start_new_session=True)
        return Node(path, process)

    def _wait_until_up(self, node: Node) -> None:
        deadline = time.monotonic() + 60
        while b"Ray runtime started" not in node.log.read_bytes():
            if node.process.poll() is not None or time.monotonic() > deadline:
                said = node.log.read_text(errors="replace")[-2000:]
                raise RuntimeError(f"{node.log.stem} did not start (status {node.process.poll()}): {said}")
            time.sleep(0.1)

    def end(self) -> None:
        """End every node."""
        for node in [*self.nodes, self.head]:
            node.end()


@contextmanager
def serve_cluster(**settings: str) -> Iterator[Cluster]:
    """A head, for the duration of the block. ``settings``: see :class:`Cluster`."""
    # Sockets live below this folder, and their paths may not be longer than about 100 characters.
    folder = Path(tempfile.mkdtemp(prefix="wr-", dir="/tmp"))
    cluster = Cluster(folder, settings)
    try:
        yield cluster
    finally:
        cluster.end()
        shutil.rmtree(folder, ignore_errors=True)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
