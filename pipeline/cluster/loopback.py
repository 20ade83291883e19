"""A private Ray session on loopback only: no socket of it takes connections from other machines.

Ray replaces the address 127.0.0.1 by the interface's own, and listens on every interface for any other address. The
setting with which it serves desktops of one machine (an environment variable, read as Ray is imported) keeps it from
both; without it, 15 of 18 sockets of a session took connections from anywhere (Ray 2.60, Linux).
"""

from __future__ import annotations

import ipaddress
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["LOOPBACK", "on_loopback", "warn_unless_on_loopback"]

LOOPBACK = "127.0.0.1"
"""The node's address in a private session. Ray binds to this one alone; for 127.0.0.2 it listens on all interfaces."""

_VARIABLE = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
_CONSTANT = "ENABLE_RAY_CLUSTER"

logger = logging.getLogger(__name__)


@contextmanager
def on_loopback() -> Iterator[None]:
    """A block in which ``ray.init(_node_ip_address=LOOPBACK)`` starts a session on loopback only.

    The processes that Ray starts inside the block inherit the variable. In this process Ray has read it already, so
    the constant is set that holds what it read. Both are restored: later in this process, the caller may join another
    cluster, or start one.
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
    """Say so where the session that runs is bound to another address: a version of Ray that does it otherwise."""
    import ray

    addresses = [str(node["NodeManagerAddress"]) for node in ray.nodes()]
    elsewhere = [address for address in addresses if not ipaddress.ip_address(address).is_loopback]
    if elsewhere:
        logger.warning(
            "the private Ray session listens on %s, not on loopback alone: Ray %s ignores %s. Close its ports by a "
            "firewall, or use the version in constraints.txt.",
            ", ".join(elsewhere),
            ray.__version__,
            _VARIABLE,
        )
