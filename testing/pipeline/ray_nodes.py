"""Starts Ray nodes on loopback, each in processes of its own that a test may kill."""

from __future__ import annotations

import itertools
import os
import random
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

SOCKETS = "TESTING_RAY_SOCKETS"
"""Name of the variable for the beginning of the paths of a node's sockets."""
_RAY = [sys.executable, "-m", "testing.pipeline.ray_command"]
_ADDRESS = "127.0.0.1"
_PORTS = (15_000, 32_000)
_STARTS = 3


class Node:
    """A started node: ``pid`` is ``ray start --block``, whose children are the node's.

    Attributes:
        name: its node id in Ray.
        pid: of the process that started it, which leads a process group.
        log: its output; None if another process started it.
        process: the handle of ``pid``; None if another process started it.
    """

    def __init__(
        self, name: str, pid: int, log: Path | None = None, process: subprocess.Popen[bytes] | None = None
    ) -> None:  # fmt: skip
        self.name = name
        self.pid = pid
        self.log = log
        self.process = process

    @property
    def raylet(self) -> psutil.Process | None:
        """Its raylet, while it lives."""
        for child in psutil.Process(self.pid).children():
            if child.name() == "raylet" and child.status() != psutil.STATUS_ZOMBIE:
                return child
        return None

    def processes(self) -> list[psutil.Process]:
        """All of its processes."""
        root = psutil.Process(self.pid)
        return [root, *root.children(recursive=True)]

    def actors(self) -> list[psutil.Process]:
        """Processes of its generate actors."""
        raylet, found = self.raylet, []
        for worker in raylet.children(recursive=True) if raylet is not None else []:
            with suppress(psutil.Error):
                if "GenerateActor" in " ".join(worker.cmdline()):
                    found.append(worker)
        return found

    def kill_raylet(self) -> None:
        """SIGKILL to the raylet: the node is lost, and its workers end with it."""
        raylet = self.raylet
        if raylet is not None:
            raylet.send_signal(signal.SIGKILL)

    def end(self) -> None:
        """End whatever is left of it."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        if self.process is not None:
            self.process.wait()


def start_command(address: str | None, *options: str) -> list[str]:
    """The command of a node that joins the head at ``address``; of a head if that is None."""
    role = ["--head"] if address is None else [f"--address={address}"]
    # Ray takes fixed ports, as if the node had the machine for itself.
    names = ("node-manager", "object-manager", "dashboard-agent-listen", "dashboard-agent-grpc", "metrics-export",
             "runtime-env-agent")  # fmt: skip
    ports = [*(f"--{name}-port={free_port()}" for name in names), "--min-worker-port=0", "--max-worker-port=0"]
    return [*_RAY, "start", "--block", f"--node-ip-address={_ADDRESS}", "--disable-usage-stats",
            "--object-store-memory=100000000", *ports, *role, *options]  # fmt: skip


class Cluster:
    """A head without CPUs for work, and nodes that come and go. ``environment``: for drivers.

    Args:
        folder: for sessions and logs.
        environment: further variables of all nodes.
    """

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self.folder = folder
        self._numbers = itertools.count()
        token = folder / "token"
        token.write_text(secrets.token_hex(32))
        self._port = free_port()
        self.address = f"{_ADDRESS}:{self._port}"
        self._base = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")} | {
            "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token), "OMP_NUM_THREADS": "1",
            # A node that is gone is found out at once by its closed connection; a stopped one within seconds.
            "RAY_health_check_period_ms": "1000", "RAY_health_check_failure_threshold": "5",
            "RAY_health_check_timeout_ms": "1000",
            "RAY_worker_niceness": "0", "PYTHONPATH": str(ROOT), **environment,
        }  # fmt: skip
        # With the variable a driver takes 127.0.0.1 as it is (and a node could not join, so they go without).
        self.environment = self._base | {"RAY_ADDRESS": self.address, "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
        self.nodes: list[Node] = []
        self.head = self._start_head()

    def _start_head(self) -> Node:
        # A session of its own each time: a head that comes after another knows nothing of it.
        session = self.folder / f"h{next(self._numbers)}"
        head = self._start(None, f"--port={self._port}", f"--temp-dir={session}", "--num-cpus=0",
                           f"--ray-client-server-port={free_port()}", "--include-dashboard=false")  # fmt: skip
        self._wait_until_up(head)
        return head

    def add_node(self, cpus: int, gpus: int = 0) -> Node:
        """Start a node and wait until the head knows it. ``gpus`` are made up: Ray counts them, nothing uses them."""
        options = [f"--num-cpus={cpus}", f"--num-gpus={gpus}"]
        for left in reversed(range(_STARTS)):
            node = self._start(self.address, *options)
            try:
                self._wait_until_up(node)
                break
            except RuntimeError:  # Ray draws free ports before it takes them: another process may be faster
                if not left or node.process is None or node.process.poll() is None:
                    raise
        self.nodes.append(node)
        return node

    def kill_head(self) -> None:
        """SIGKILL to every process of the head."""
        self.head.end()

    def start_head(self) -> None:
        """Start another head at the same address, with no memory of the one before; nodes of that one are ended."""
        for node in self.nodes:
            node.end()
        self.nodes.clear()
        self.head = self._start_head()

    def _start(self, address: str | None, *options: str) -> Node:
        number = next(self._numbers)
        name = secrets.token_hex(28)
        path = self.folder / f"node-{number}.log"
        environment = self._base | {"RAY_OVERRIDE_NODE_ID_FOR_TESTING": name, "RAY_CLOUD_INSTANCE_ID": name,
                                    SOCKETS: str(path.with_suffix(""))}  # fmt: skip
        with path.open("wb") as log:
            process = subprocess.Popen(
                start_command(address, *options), env=environment, stdout=log, stderr=log, start_new_session=True
            )
        return Node(name, process.pid, path, process)

    def _wait_until_up(self, node: Node) -> None:
        assert node.log is not None
        assert node.process is not None
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
    """A head, for the duration of the block. ``settings``: further environment variables of its processes."""
    # Sockets live below this folder, and their paths may not be longer than about 100 characters.
    folder = Path(tempfile.mkdtemp(prefix="wr-", dir="/tmp"))
    cluster = Cluster(folder, environment=settings)
    try:
        yield cluster
    finally:
        cluster.end()
        shutil.rmtree(folder, ignore_errors=True)


def free_port() -> int:
    """A port of loopback that nobody listens on now, of those that the system gives to nobody by itself.

    Ray's processes take their ports seconds after they were drawn: a connection could have one of the others by then.
    """
    while True:
        port = random.randrange(*_PORTS)
        with socket.socket() as probe, suppress(OSError):
            probe.bind((_ADDRESS, port))
            return port
