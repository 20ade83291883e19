"""Keeps a private Ray session on loopback: none of its sockets accepts connections from other machines.

Ray replaces the address 127.0.0.1 by that of the network interface, and listens on every interface for any other
address. Its setting for single-machine desktops (an environment variable, read when Ray is imported) turns both off.
Without it, 15 of 18 sockets of a session accepted connections from anywhere (Ray 2.60, Linux).
"""

from __future__ import annotations

import ipaddress
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["LOOPBACK", "on_loopback", "warn_unless_on_loopback"]

LOOPBACK = "127.0.0.1"
"""The node's address in a private session. Ray binds to this one only; for 127.0.0.2 it listens on all interfaces."""

_VARIABLE = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
_CONSTANT = "ENABLE_RAY_CLUSTER"

logger = logging.getLogger(__name__)


@contextmanager
def on_loopback() -> Iterator[None]:
    """A block in which ``ray.init(_node_ip_address=LOOPBACK)`` starts a session on loopback only.

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
            "firewall, or use the version in constraints.txt.",
            ", ".join(elsewhere),
            ray.__version__,
            _VARIABLE,
        )
