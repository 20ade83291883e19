"""A Ray cluster on loopback whose nodes an autoscaler (Ray's, version 2) starts and ends by load."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from testing.pipeline.loopback_provider import HEAD_TYPE, machines_in
from testing.pipeline.ray_nodes import Cluster, Node

_HEAD_ID = "ab" * 28
_WORKER_TYPE = "spot-gpu"
_UPDATE_SECONDS = 1


class AutoscaledCluster(Cluster):
    """A head without CPUs for work, and up to ``most`` nodes of ``cpus`` CPUs and made-up ``gpus``, by demand.

    Args:
        folder: for sessions, logs and machines.
        most: nodes beside the head.
        cpus, gpus: of each.
        idle_seconds: a node without work is given back after so long.
    """

    def __init__(self, folder: Path, *, most: int, cpus: int = 1, gpus: int = 1, idle_seconds: float = 5.0) -> None:
        self._machines = folder / "machines"
        self._yaml = folder / "cluster.yaml"
        self._shape = {"CPU": cpus, "GPU": gpus}
        self._most = most
        self._idle_seconds = idle_seconds
        self._unreachable: list[Node] = []
        super().__init__(
            folder, [f"--autoscaling-config={self._yaml}"],
            {"RAY_enable_autoscaler_v2": "1", "AUTOSCALER_UPDATE_INTERVAL_S": str(_UPDATE_SECONDS)},
        )  # fmt: skip

    def _start_head(self) -> Node:
        configuration = {
            "cluster_name": "loopback", "max_workers": self._most, "head_node_type": HEAD_TYPE,
            "idle_timeout_minutes": self._idle_seconds / 60, "upscaling_speed": 100,
            "provider": {"type": "external", "module": "testing.pipeline.loopback_provider.LoopbackProvider",
                         "address": self.address, "folder": str(self._machines), "head": _HEAD_ID,
                         "disable_node_updaters": True, "disable_launch_config_check": True},
            "available_node_types": {
                HEAD_TYPE: {"resources": {"CPU": 0}, "node_config": {}, "min_workers": 0, "max_workers": 0},
                _WORKER_TYPE: {"resources": self._shape, "node_config": {}, "min_workers": 0,
                               "max_workers": self._most},
            },
            "auth": {}, "docker": {}, "file_mounts": {}, "cluster_synced_files": [],
            "initialization_commands": [], "setup_commands": [], "head_setup_commands": [],
            "worker_setup_commands": [], "head_start_ray_commands": [], "worker_start_ray_commands": [],
        }  # fmt: skip
        self._yaml.write_text(json.dumps(configuration))  # which is YAML
        return super()._start_head()

    def _head_name(self) -> str:
        return _HEAD_ID

    def machines(self) -> list[Node]:
        """The nodes that live, those that are starting among them."""
        found = []
        for name, machine in machines_in(self._machines).items():
            with suppress(psutil.NoSuchProcess):
                if psutil.Process(machine["pid"]).status() != psutil.STATUS_ZOMBIE:
                    found.append(Node(name, machine["pid"]))
        return found

    def give_notice(self, node: Node) -> None:
        """Let the actors of a node know that it will be taken away, in the way of a spot notice."""
        (self._machines / f"{node.name}.spot").write_text("capacity is needed elsewhere")

    def freeze(self, node: Node) -> None:
        """Stop every process of a node, and keep its platform from ending it: as if both had lost their network."""
        (self._machines / f"{node.name}.unreachable").touch()
        self._unreachable.append(node)
        node.freeze()

    def end(self) -> None:
        """End the head first, and with it the autoscaler, then every machine."""
        self.head.end()
        for node in [*self._unreachable, *self.machines()]:
            node.end()
        super().end()

    def start_head(self) -> None:
        """See :meth:`Cluster.start_head`: machines of the head before are ended, as their platform would."""
        for node in self.machines():
            node.end()
        shutil.rmtree(self._machines, ignore_errors=True)
        super().start_head()


@contextmanager
def serve_autoscaled(
    *, most: int, cpus: int = 1, gpus: int = 1, idle_seconds: float = 5.0
) -> Iterator[AutoscaledCluster]:
    """A head with an autoscaler, for the duration of the block."""
    folder = Path(tempfile.mkdtemp(prefix="wr-", dir="/tmp"))
    cluster = AutoscaledCluster(folder, most=most, cpus=cpus, gpus=gpus, idle_seconds=idle_seconds)
    try:
        yield cluster
    finally:
        cluster.end()
        shutil.rmtree(folder, ignore_errors=True)
