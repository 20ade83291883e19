"""A server that speaks the S3 protocol, in a process of its own on loopback; and settings for clients to reach it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from testing.repository import ROOT

CREDENTIAL = "local-s3-credential"
"""Key and secret: the server takes any. Secrets are masked wherever they occur: no path may have this in it."""


@dataclass(frozen=True, kw_only=True)
class S3Server:
    """A running server. ``options``: fsspec's ``storage_options``."""

    endpoint: str

    @property
    def options(self) -> dict[str, Any]:
        return {"key": CREDENTIAL, "secret": CREDENTIAL, "endpoint_url": self.endpoint}

    def references(self, folder: Path) -> dict[str, Any]:
        """:attr:`options` for a cluster: the credentials are in a file of ``folder``, and referred to."""
        (folder / "s3-credential").write_text(CREDENTIAL)
        by_file = {"file": str(folder / "s3-credential")}
        return {**self.options, "key": by_file, "secret": by_file}

    def bucket(self, name: str) -> str:
        """Make an empty bucket; its URL."""
        import s3fs

        s3fs.S3FileSystem(**self.options).mkdir(name)
        return f"s3://{name}"


@contextmanager
def serve_s3(log: Path | None = None) -> Iterator[S3Server]:
    """Start a server on a free port; it ends with the block and forgets everything.

    Args:
        log: gets a line for each request.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "testing.pipeline.s3_server", "-H", "127.0.0.1", "-p", str(port)]
    with open(log or os.devnull, "wb") as said:
        server = subprocess.Popen(command, cwd=ROOT, stdout=said, stderr=said)
    try:
        for _ in range(300):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            if server.poll() is not None:
                raise RuntimeError(f"{' '.join(command)} ended with status {server.returncode}")
            threading.Event().wait(0.1)
        else:
            raise RuntimeError(f"{' '.join(command)} does not answer on port {port}")
        yield S3Server(endpoint=f"http://127.0.0.1:{port}")
    finally:
        server.terminate()
        server.wait()
