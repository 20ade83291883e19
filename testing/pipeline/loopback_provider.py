"""A node provider for Ray's autoscaler whose machines are Ray nodes on loopback, each in a process group of its own.

The autoscaler's process makes it. The machines are known to a test by the files of :func:`machines_in`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
from ray.autoscaler.node_provider import NodeProvider
from ray.autoscaler.tags import NODE_KIND_HEAD, TAG_RAY_NODE_KIND, TAG_RAY_USER_NODE_TYPE

from pipeline.worker.notice import SPOT_NOTICE
from testing.pipeline.ray_nodes import SOCKETS, start_command

HEAD_TYPE = "head"


def machines_in(folder: Path) -> dict[str, dict[str, Any]]:
    """Machines that were started and not ended by the provider: id -> ``pid`` and ``tags``."""
    return {path.stem: json.loads(path.read_text()) for path in folder.glob("*.json")}


class LoopbackProvider(NodeProvider):  # Ray's class has no types
    """Starts and ends machines, for one autoscaler.

    ``provider_config``: ``address`` of the head, ``folder`` of the machines' files, ``head`` (its id).
    """

    def __init__(self, provider_config: dict[str, Any], cluster_name: str) -> None:
        super().__init__(provider_config, cluster_name)
        self._folder = Path(provider_config["folder"])
        self._folder.mkdir(exist_ok=True)
        self._head = str(provider_config["head"])

    def non_terminated_nodes(self, tag_filters: Mapping[str, str]) -> list[str]:
        """Ids of the head and of the machines that live, of those that have these tags."""
        there = [self._head, *(name for name, machine in machines_in(self._folder).items() if _lives(machine["pid"]))]
        return [name for name in there if tag_filters.items() <= self.node_tags(name).items()]

    def is_running(self, node_id: str) -> bool:
        """Whether the machine lives."""
        return node_id in self.non_terminated_nodes({})

    def is_terminated(self, node_id: str) -> bool:
        """The opposite."""
        return not self.is_running(node_id)

    def node_tags(self, node_id: str) -> dict[str, str]:
        """The tags it was created with."""
        if node_id == self._head:
            return {TAG_RAY_NODE_KIND: NODE_KIND_HEAD, TAG_RAY_USER_NODE_TYPE: HEAD_TYPE}
        tags: dict[str, str] = json.loads((self._folder / f"{node_id}.json").read_text())["tags"]
        return tags

    def set_node_tags(self, node_id: str, tags: Mapping[str, str]) -> None:
        """Tags stay as they were: only updaters change them, and there are none."""

    def external_ip(self, node_id: str) -> str:
        """Loopback, for every machine."""
        return "127.0.0.1"

    internal_ip = external_ip

    def create_node_with_resources_and_labels(
        self, node_config: Mapping[str, Any], tags: Mapping[str, str], count: int, resources: Mapping[str, float],
        labels: Mapping[str, str],
    ) -> None:  # fmt: skip
        """Start so many nodes with these resources."""
        for _ in range(count):
            name = os.urandom(28).hex()
            given = dict(resources)
            options = [f"--num-cpus={given.pop('CPU', 0):g}", f"--num-gpus={given.pop('GPU', 0):g}",
                       f"--resources={json.dumps(given)}"]  # fmt: skip
            own = {"RAY_OVERRIDE_NODE_ID_FOR_TESTING": name, "RAY_CLOUD_INSTANCE_ID": name,
                   "RAY_NODE_TYPE_NAME": tags[TAG_RAY_USER_NODE_TYPE],
                   SOCKETS: str(self._folder / name[:8]), SPOT_NOTICE: str(self._folder / f"{name}.spot")}  # fmt: skip
            with (self._folder / f"{name}.log").open("wb") as log:
                process = subprocess.Popen(
                    start_command(self.provider_config["address"], *options), env=os.environ | own, stdout=log,
                    stderr=log, start_new_session=True,
                )  # fmt: skip
            machine = {"pid": process.pid, "tags": dict(tags), "begin": time.time()}
            draft = self._folder / f"{name}.draft"
            draft.write_text(json.dumps(machine))
            draft.replace(self._folder / f"{name}.json")

    def terminate_node(self, node_id: str) -> None:
        """End a machine at once. Where the autoscaler ends it for being idle, Ray has drained it before.

        One that cannot be reached (there is a file ``NODE.unreachable``) is forgotten, and runs on.
        """
        path = self._folder / f"{node_id}.json"
        if not path.with_suffix(".unreachable").exists():
            with suppress(FileNotFoundError, ProcessLookupError):
                os.killpg(json.loads(path.read_text())["pid"], signal.SIGKILL)
        path.unlink(missing_ok=True)

    @staticmethod
    def bootstrap_config(cluster_config: dict[str, Any]) -> dict[str, Any]:
        """The configuration as it is."""
        return cluster_config


def _lives(pid: int) -> bool:
    """Whether its raylet is there or may still come. The provider is the parent, so an ended process is a zombie."""
    with suppress(psutil.NoSuchProcess):
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    return False
