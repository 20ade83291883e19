"""Starts a module of this package in a new process, which gets its work over one connection."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from multiprocessing.connection import Connection

_START = "import importlib, sys; importlib.import_module(sys.argv[1]).main(int(sys.argv[2]))"


def start_child(
    module: str, theirs: Connection, environment: Mapping[str, str], *, quiet: bool = False
) -> subprocess.Popen[bytes]:  # fmt: skip
    """Start ``main(descriptor)`` of a module in a new process.

    Args:
        module: its name.
        theirs: the process's end of the connection, whose descriptor ``main`` is given. It is closed here.
        environment: variables that are added to this process's own.
        quiet: drop the output of the process.

    Raises:
        OSError: no process could be started.
    """
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    descriptor, output = theirs.fileno(), subprocess.DEVNULL if quiet else None
    with theirs:
        return subprocess.Popen(
            [sys.executable, "-P", "-c", _START, module, str(descriptor)],
            env={**os.environ, **environment, "PYTHONPATH": path}, pass_fds=[descriptor],
            stdin=subprocess.DEVNULL, stdout=output, stderr=output,
        )  # fmt: skip
