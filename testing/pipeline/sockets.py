"""Lists the listening sockets of the processes of a run."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

import psutil


@dataclass(frozen=True)
class Listener:
    """A socket that waits for connections (TCP) or takes datagrams (UDP).

    Attributes:
        process: name of the process that holds it.
        address: it is bound to.
        port: of it.
    """

    process: str
    address: str
    port: int

    @property
    def is_on_loopback(self) -> bool:
        """Whether only processes of this machine reach it; IPv6 addresses that stand for IPv4 ones are these."""
        address = ipaddress.ip_address(self.address)
        mapped = getattr(address, "ipv4_mapped", None)
        return (mapped or address).is_loopback


def processes_with(variable: str, value: str) -> list[psutil.Process]:
    """Every process of the machine that has inherited an environment variable, whoever its parent is now."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get(variable) == value:
                found.append(process)
    return found


def listeners(processes: list[psutil.Process]) -> Iterator[Listener]:
    """The listening sockets of these processes, IPv4 and IPv6."""
    for process in processes:
        with suppress(psutil.Error):
            for socket in process.net_connections(kind="inet"):
                if socket.laddr and not socket.raddr and socket.status in (psutil.CONN_LISTEN, psutil.CONN_NONE):
                    yield Listener(process.name(), socket.laddr.ip, socket.laddr.port)
