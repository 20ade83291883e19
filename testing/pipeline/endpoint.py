"""A batch endpoint for tests: its server as a process, or its application in a thread; with OpenAI's own client."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import openai
import uvicorn

from pipeline.serving.app import make_app
from pipeline.serving.batch_queue import Runner
from pipeline.serving.store import Store
from testing.repository import ROOT

_START_SECONDS, _END_SECONDS = 120.0, 240.0
ENDED = ("completed", "failed", "expired", "cancelled")


def client_of(url: str, token: str = "no token", **options: Any) -> openai.OpenAI:
    """The official client, which tries no request again unless it is told to."""
    return openai.OpenAI(base_url=url, api_key=token, **{"max_retries": 0, **options})


class Server:
    """``wedlm-batch serve`` with these options, in a process group of its own.

    Attributes:
        process: the server.
        client: of it.
    """

    def __init__(self, store: str, log: Path, *options: str, environment: dict[str, str] | None = None) -> None:
        command = [sys.executable, "-m", "wedlm_batch", "serve", "--store", store, "--model", "tiny", "--port", "0"]
        self._log = log
        with log.open("ab") as said:
            begin = said.tell()
            self.process = subprocess.Popen(
                [*command, *options], cwd=ROOT, stdout=said, stderr=said, start_new_session=True,
                env={**os.environ, "PYTHONPATH": str(ROOT), **(environment or {})},
            )  # fmt: skip
        self.client = client_of(self._url(begin))

    def _url(self, begin: int) -> str:
        end = time.monotonic() + _START_SECONDS
        while time.monotonic() < end and self.process.poll() is None:
            if found := re.search(r"^serving (\S+)", self._log.read_bytes()[begin:].decode(), re.MULTILINE):
                return found[1]
            time.sleep(0.05)
        raise RuntimeError(f"the server does not start:\n{self._log.read_text()[-3000:]}")

    def kill(self) -> None:
        """SIGKILL to the server and to every process that it has started."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def stop(self) -> int:
        """SIGTERM; the exit status."""
        self.process.terminate()
        return self.process.wait(60)

    def wait(self, batch: str) -> Any:
        """The batch, once it has ended."""
        return self._wait(batch, lambda found: found.status in ENDED)

    def wait_for_answers(self, batch: str) -> Any:
        """The batch, once some of its requests are answered."""
        return self._wait(batch, lambda found: found.request_counts.completed > 0)

    def _wait(self, batch: str, is_so: Callable[[Any], bool]) -> Any:
        end = time.monotonic() + _END_SECONDS
        while not is_so(found := self.client.batches.retrieve(batch)):
            if time.monotonic() > end:
                raise RuntimeError(f"{found}\n{self._log.read_text()[-3000:]}")
            time.sleep(0.05)
        return found


class StillRunner(Runner):
    """A queue that is not worked on."""

    def start(self) -> None:
        pass

    def stop(self) -> None:
        pass


@contextmanager
def app_in_thread(store: Store, *, token: str | None = None, max_file_bytes: int = 10_000) -> Iterator[str]:
    """Serve the application in a thread; its URL. Batches stay as they are."""
    runner = StillRunner(store, None, runs=1, max_requests=1)  # type: ignore[arg-type]
    app = make_app(store, runner, token=token, max_file_bytes=max_file_bytes)
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, access_log=False))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        while not server.started:
            time.sleep(0.01)
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/v1"
    finally:
        server.should_exit = True
        thread.join()
        listening.close()
