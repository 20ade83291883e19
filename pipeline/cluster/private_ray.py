"""All that we use of Ray beyond its public API, in one place.

A private session must accept no connections from other machines. Ray replaces the address 127.0.0.1 by that of the
network interface, and listens on every interface for any other address. Its setting for single-machine desktops (an
environment variable, read when Ray is imported) turns both off. Without it, 15 of 18 sockets of a session accepted
connections from anywhere (Ray 2.60, Linux).
"""

from __future__ import annotations

import atexit
import functools
import ipaddress
import itertools
import logging
import os
import re
import secrets
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

SUPPORTED = ("2.59.0", "2.60.0")
"""The oldest and the newest Ray whose private parts were tested; CI runs the tests of this package on both."""
LOOPBACK = "127.0.0.1"
"""The node's address in a private session. Ray binds to this one only; for 127.0.0.2 it listens on all interfaces."""
PER_NODE = "node:__internal_implicit_resource_"
"""Each node has 1 of any resource with this prefix, nodes to come included; Ray Serve limits replicas so."""

_VARIABLE = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
_CONSTANT = "ENABLE_RAY_CLUSTER"
_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04" + bytes(5)
"""The preface of an HTTP/2 connection and an empty frame of settings, which every server of gRPC answers."""
_RETRIED = re.compile(
    r"Task (GenerateActor|_Recorder|prepare_units|_write_part|_prepare|ReadUnits)\b.* retries remaining", re.DOTALL
)
"""Ray prints this on standard output when it does a task of ours again: after each death, and after each run that is
stopped. The run itself reports the important ones; Ray's logs have the rest."""

logger = logging.getLogger(__name__)


@contextmanager
def on_loopback() -> Iterator[None]:
    """Context: ``ray.init(_node_ip_address=LOOPBACK)`` starts a session on loopback only.

    The processes that Ray starts inside the block inherit the variable. This process has imported Ray already, so the
    constant that holds the variable's value is set too. Both are restored afterwards, as the caller may later join or
    start another cluster in this process.
    """
    from ray._private import ray_constants

    variable, constant = os.environ.get(_VARIABLE), getattr(ray_constants, _CONSTANT, None)
    os.environ[_VARIABLE] = "0"
    if constant is not None:
        setattr(ray_constants, _CONSTANT, False)
    try:
        yield
    finally:
        if variable is None:
            del os.environ[_VARIABLE]
        else:
            os.environ[_VARIABLE] = variable
        if constant is not None:
            setattr(ray_constants, _CONSTANT, constant)


def warn_unless_on_loopback() -> None:
    """Log a warning if the running session is bound to another address, as another version of Ray may do."""
    import ray

    addresses = [str(node["NodeManagerAddress"]) for node in ray.nodes()]
    elsewhere = [address for address in addresses if not ipaddress.ip_address(address).is_loopback]
    if elsewhere:
        logger.warning(
            "the private Ray session listens on %s, not on loopback alone: Ray %s ignores %s. Close its ports by a "
            "firewall, or use a version from %s to %s.",
            ", ".join(elsewhere),
            ray.__version__,
            _VARIABLE,
            *SUPPORTED,
        )


def silence_retries() -> None:
    """Leave the lines about tasks of ours that are done again out of the output of this process."""
    from ray._private import worker

    plain = getattr(worker, "print_to_stdstream", None)  # without it, Ray prints as before
    if plain is None or hasattr(plain, "__wrapped__"):
        return

    @functools.wraps(plain)
    def printed(data: dict[str, Any], *args: Any, **options: Any) -> None:
        if not any(_RETRIED.match(line) for line in data.get("lines", ())):
            plain(data, *args, **options)

    worker.print_to_stdstream = printed


def head_of(address: str) -> str | None:
    """Host and port that ``ray.init(address=address)`` connects to; None if Ray finds none."""
    with suppress(Exception):  # Ray says why when it is asked to connect
        from ray._private.services import canonicalize_bootstrap_address

        found: str | None = canonicalize_bootstrap_address(address)
        return found
    return None


def answers(head: str, seconds: float) -> bool:
    """Whether a head answers in that time: Ray itself waits for one without end."""
    try:
        with _connection(head, seconds) as connection:
            connection.sendall(_HELLO)
            return bool(connection.recv(1))
    except (OSError, ValueError):
        return False


def _connection(address: str, seconds: float) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host.strip("[]"), int(port)), timeout=seconds)


def is_head_of_own_session() -> bool:
    """Whether this process began the session that it is connected to."""
    import ray

    node = ray._private.worker._global_node
    return node is not None and bool(node.is_head())


def read_node_tables() -> tuple[Sequence[Mapping[str, Any]], Mapping[str, int]]:
    """Ask the head for its nodes, and for those that are being drained. Waits for as long as it does not answer.

    Returns:
        The table of nodes; and node id -> deadline in ms since 1970, 0 where there is none.
    """
    # No public call names the nodes that are being drained. And public ones would start a session if there is none.
    from ray._private.state import state

    return state.node_table(), state.get_draining_nodes()


# The system limits a socket's path to 103 bytes or more; Ray's names below its folder take 68 of them.
_LONGEST = 103 - 68
_RAY = "ray"
# Waits for the end of the process that holds its standard input, and for Ray's processes, which end after that.
_REMOVE = 'read -r _; for _ in 1 2 3 4 5 6 7 8 9 10; do rm -rf "$@" 2>/dev/null && exit; sleep 1; done'
_FRAME = "(+0x"  # in a line of a stack of Ray's own, which follows the reason
_REMOVERS: list[subprocess.Popen[bytes]] = []


@functools.cache
def private_folder() -> str:
    """The folder for Ray's files, made at the first call; sets the token of the session, unless the user has set one.

    Left alone, Ray would leave a token in the user's home, which later clusters and clients then trip over.
    """
    own = tempfile.mkdtemp(prefix="wedlm-ray-", dir=os.environ.get("RAY_TMPDIR") or None)
    folders, path = [own], os.path.join(own, _RAY)
    os.mkdir(path)
    if len(os.fsencode(path)) > _LONGEST:
        folders.append(tempfile.mkdtemp(prefix="wedlm-ray-", dir="/tmp"))
        os.symlink(path, path := os.path.join(folders[1], _RAY))
    _remove_at_end(folders)
    if not any(os.environ.get(name) for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")):
        token = os.path.join(own, "token")
        with open(os.open(token, os.O_CREAT | os.O_WRONLY, 0o600), "w") as file:
            file.write(secrets.token_hex(32))
        # Ray itself turns the mode on for a local cluster, and reads it again then.
        os.environ["RAY_AUTH_TOKEN_PATH"] = token
    return path


def end_of_logs(folder: str, lines: int = 5) -> str:
    """The last lines of each of the three logs below :func:`private_folder` that processes of Ray wrote last."""
    ends = list[str]()
    for pattern in ("*.err", "*.out"):  # errors first: a process may write to the other file after the cause of its end
        logs = [path for path in Path(folder).glob(f"session_latest/logs/{pattern}") if path.stat().st_size]
        for path in itertools.islice(sorted(logs, key=lambda path: path.stat().st_mtime, reverse=True), 3 - len(ends)):
            text = path.read_text("utf-8", "replace").rstrip().splitlines()
            last = [line for line in text if _FRAME not in line][-lines:]
            ends.append("\n".join([f"{path.name}:", *(f"  {line[:500]}" for line in last)]))
    return "\n".join(ends)


def _remove_at_end(folders: list[str]) -> None:
    _REMOVERS.append(
        subprocess.Popen(
            ["/bin/sh", "-c", _REMOVE, "sh", *folders],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            cwd="/",
        )
    )
    for folder in folders:
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
