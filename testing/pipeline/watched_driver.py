"""A driver process of :mod:`testing.pipeline.chaos_driver`, and a test's view of it from outside."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from testing.pipeline.ray_nodes import Cluster
from testing.repository import ROOT

_GIVE_UP_SECONDS = 120.0


class WatchedDriver:
    """A job's driver; it may be started again after it ended.

    Args:
        cluster: that it joins.
        folder: for its files; made if need be.
        config: fields of RunConfig.
        pace: seconds of an engine's step, at least.
    """

    def __init__(self, cluster: Cluster, folder: Path, config: Mapping[str, Any], *, pace: float = 0.0) -> None:
        self._cluster = cluster
        counters = folder / "counters"
        counters.mkdir(parents=True, exist_ok=True)
        self._spec, self._log, self._progress = folder / "spec.json", folder / "driver.log", folder / "progress.jsonl"
        self._spec.write_text(json.dumps({
            "config": dict(config), "counters": str(counters), "failures": 0.0, "ttl": 60.0,
            "pace": pace, "progress": str(self._progress),
        }))  # fmt: skip
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it."""
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "testing.pipeline.chaos_driver", str(self._spec)], cwd=ROOT, stdout=log,
                stderr=log, env=self._cluster.environment | {"PYTHONPATH": str(ROOT)}, start_new_session=True,
            )  # fmt: skip

    def wait(self, seconds: float) -> int:
        """Wait for its end; the exit status.

        Raises:
            TimeoutExpired: it does not end in time.
        """
        assert self.process is not None
        return self.process.wait(seconds)

    def said(self) -> str:
        """Its output so far, in all of its lives."""
        return self._log.read_text(errors="replace")

    def progress(self) -> list[tuple[float, int]]:
        """Each commit so far: seconds since 1970, and units done."""
        lines = self._progress.read_text().splitlines() if self._progress.exists() else []
        found = []
        for line in lines:
            with suppress(json.JSONDecodeError):  # the last one may be half written
                entry = json.loads(line)
                found.append((float(entry["time"]), int(entry["units"])))
        return found

    def units(self) -> int:
        """Units done so far."""
        return max((units for _, units in self.progress()), default=0)

    def wait_for_units(self, count: int, seconds: float = _GIVE_UP_SECONDS) -> None:
        """Wait until so many units are done.

        Raises:
            RuntimeError: the driver ended before, or it takes too long.
        """
        deadline = time.monotonic() + seconds
        while self.units() < count:
            assert self.process is not None
            if (status := self.process.poll()) is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{self.units()} units instead of {count} (status {status}): {self.said()[-3000:]}")
            time.sleep(0.1)

    def end(self) -> None:
        """Kill it if it still runs."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
