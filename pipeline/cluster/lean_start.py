"""Starts a private Ray session without the processes that it has no use for.

``ray.init`` waits for a dashboard server and for two agents, one after the other, and starts a log monitor and an
autoscaler's monitor besides: several seconds on two cores, and as many of the processors' time while actors want to
load their models. A private session has no dashboard, forwards no logs and never grows, so it needs the GCS server, the
raylet and the agent for runtime environments only. It is then what Ray calls a minimal installation.

This reaches into private parts of Ray; for versions that it was not tried with, the session starts as Ray has it.
"""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

__all__ = ["TRIED_VERSIONS", "lean_start"]

TRIED_VERSIONS = ("2.60",)
_NO_DASHBOARD = ImportError("not needed")
_IDLE = Path(__file__).with_name("idle_agent.py")
_AGENT, _PRESTART = "--dashboard_agent_command=", "--num_prestart_python_workers="


@contextmanager
def lean_start(address: str, workers: int) -> Iterator[None]:
    """A block in which ``ray.init(address="local")`` starts the necessary processes only.

    Args:
        address: that the session is bound to.
        workers: worker processes that the raylet starts ahead of their first task.
    """
    import ray

    if not ray.__version__.startswith(tuple(f"{version}." for version in TRIED_VERSIONS)):
        yield
        return
    from ray._private import node, services, utils

    start_process = services.start_ray_process

    def start(command: Sequence[str], *args: Any, **options: Any) -> Any:
        return start_process([_changed(word, workers) for word in command], *args, **options)

    with (
        socket.socket() as reserved,
        patch.object(node, "Node", _lean(node.Node, address, reserved)),
        patch.object(services, "start_ray_process", start),
        patch.object(utils, "get_dashboard_dependency_error", lambda: _NO_DASHBOARD),  # it imports them all, to try
    ):
        yield


def _changed(word: str, workers: int) -> str:
    """A word of a command line of Ray's: of the raylet's, the dashboard agent and the number of workers change."""
    if word.startswith(_AGENT):
        return _AGENT + subprocess.list2cmdline([sys.executable, "-I", "-S", str(_IDLE)])
    return f"{_PRESTART}{workers}" if word.startswith(_PRESTART) else word


def _lean(base: Any, address: str, reserved: socket.socket) -> Any:
    """Ray's class of a node, without what :mod:`pipeline.cluster.lean_start` leaves out.

    Args:
        base: that class.
        address: that the node is bound to.
        reserved: an open socket, which will hold the port of the agent for runtime environments while that starts.
    """

    class Lean(base):
        def start_api_server(self, **_: Any) -> None:
            """Leave out the dashboard's server."""

        def start_monitor(self) -> None:
            """Leave out the autoscaler."""

        def start_log_monitor(self) -> None:
            """Leave out what forwards the workers' output to the driver."""

        def start_raylet(self, *args: Any, **options: Any) -> None:
            """Start it with ports that are known already, so that it waits for no agent."""
            import ray

            raylet: Any = ray._raylet  # which has no types

            # The agent sets this option too, and listens alone; so both may be bound to the port.
            reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            reserved.bind((address, 0))
            port = reserved.getsockname()[1]
            self._ray_params.runtime_env_agent_port = port
            unused = (
                raylet.METRICS_AGENT_PORT_NAME,
                raylet.METRICS_EXPORT_PORT_NAME,
                raylet.DASHBOARD_AGENT_LISTEN_PORT_NAME,
            )
            for name, number in ((raylet.RUNTIME_ENV_AGENT_PORT_NAME, port), *((name, -1) for name in unused)):
                raylet.persist_port(self._session_dir, self._node_id, name, number)
            super().start_raylet(*args, **options)

    return Lean
