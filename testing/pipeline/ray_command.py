"""Ray's command for nodes on loopback: ``python -m testing.pipeline.ray_command start ...``.

Ray would replace 127.0.0.1 by the interface's address, and listens on all interfaces for any other. And nodes that
start at once on one machine would take the same names for their sockets: a variable says how these begin.
"""

from __future__ import annotations

import os
from typing import Any

from ray._private import services
from ray._private.parameter import RayParams
from ray.scripts.scripts import main

from testing.pipeline.ray_nodes import SOCKETS


def _name_sockets(prefix: str) -> None:
    make = RayParams.__init__

    def init(self: RayParams, *args: Any, **options: Any) -> None:
        make(self, *args, **options)
        self.raylet_socket_name, self.plasma_store_socket_name = f"{prefix}.raylet", f"{prefix}.store"

    RayParams.__init__ = init  # type: ignore[method-assign]


if __name__ == "__main__":
    services.resolve_ip_for_localhost = lambda host: host
    if os.environ.get(SOCKETS):
        _name_sockets(os.environ[SOCKETS])
    main()
