"""Runs a job on real Ray nodes while killing processes and damaging files at random moments."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from testing.engine.counted_engine import Work, work_done
from testing.pipeline.ray_nodes import Cluster
from testing.pipeline.vandal import STAGING, Vandal
from testing.repository import ROOT

KILLS = ("driver", "actor", "raylet", "sigterm")
DAMAGE = (*STAGING, "swap", "state", "edit", "frozen")
"""Damage to staged units; state files emptied while no driver lives; the input edited while the job runs; a driver
stopped while another takes over, and woken after that."""

_GENERATING_SECONDS = (0.2, 3.0)
_STARTING_SECONDS = (0.5, 8.0)
_SHARE_WHILE_STARTING = 0.2
_GIVE_UP_SECONDS = 240.0


@dataclass(kw_only=True)
class Outcome:
    """The kills of a job, and their cost.

    Attributes:
        kills: kind of kill or damage -> how often.
        ends: exit statuses of drivers that nobody had killed, and their last line of error where not 0.
        drivers: driver processes started.
        seconds: wall clock.
        work: of all engines, dead ones included.
    """

    kills: Counter[str] = field(default_factory=Counter)
    ends: list[tuple[int, str]] = field(default_factory=list)
    drivers: int = 0
    seconds: float = 0.0
    work: Work = field(default_factory=lambda: Work(tokens=0, busy_seconds=0.0))


class JobDriver:
    """A job whose driver is a process of its own (:mod:`testing.pipeline.chaos_driver`), started as often as wanted.

    Args:
        cluster: that it joins.
        folder: for the specification, counters and the log.
        config: of the job, fields of RunConfig.
        failures: probability that an operation on the output fails.
        ttl: seconds of a lease unless renewed.
        pace: seconds of an engine's step, at least.
    """

    def __init__(
        self, cluster: Cluster, folder: Path, config: Mapping[str, Any], *, failures: float = 0.0, ttl: float = 60.0,
        pace: float = 0.0,
    ) -> None:  # fmt: skip
        self._cluster = cluster
        self.counters, self.log, self._spec = folder / "counters", folder / "driver.log", folder / "spec.json"
        self.counters.mkdir(parents=True)
        spec = {"config": dict(config), "counters": str(self.counters), "failures": failures, "ttl": ttl, "pace": pace}
        self._spec.write_text(json.dumps(spec))

    def start(self) -> subprocess.Popen[bytes]:
        """A driver."""
        with self.log.open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "testing.pipeline.chaos_driver", str(self._spec)], cwd=ROOT, stdout=log,
                stderr=log, env=self._cluster.environment | {"PYTHONPATH": str(ROOT)}, start_new_session=True,
            )  # fmt: skip

    def said(self) -> str:
        """The output of all drivers so far."""
        return self.log.read_text(errors="replace")


class Chaos:
    """A job on a cluster.

    Args:
        cluster: with as many nodes as are to be there; a node that is killed is replaced.
        folder: for the specification, counters and logs.
        config: of the job, fields of RunConfig.
        cpus: of each node.
        tokens: of the whole job where known: no kill of k comes later than where its k + 1-th part is done, however
            fast the machine is.
        failures: probability that an operation on the output fails.
        ttl: seconds of a driver's lease unless renewed.
        seed: of the moments.
    """

    def __init__(
        self, cluster: Cluster, folder: Path, config: Mapping[str, Any], *, cpus: int = 2, tokens: int | None = None,
        failures: float = 0.0, ttl: float = 60.0, seed: int = 0,
    ) -> None:  # fmt: skip
        self._cluster = cluster
        self._cpus = cpus
        self._tokens = tokens
        self._random = random.Random(seed)
        self._job = JobDriver(cluster, folder, config, failures=failures, ttl=ttl)
        self._ttl = ttl
        self._vandal = Vandal(config, seed)
        self._driver: subprocess.Popen[bytes] | None = None
        self._outcome = Outcome()

    def run(self, kills: Sequence[str]) -> Outcome:
        """Do as listed (:data:`KILLS`, :data:`DAMAGE`), then let the job end.

        Raises:
            RuntimeError: it does not end, or ended before the last kill.
        """
        begin = time.monotonic()
        try:
            for i, kind in enumerate(kills):
                latest = None if self._tokens is None else self._tokens * (i + 1) // (len(kills) + 1)
                self._wait_for_the_moment(latest)
                if kind in KILLS:
                    self._kill(kind)
                else:
                    self._damage(kind)
            self._finish()
        finally:
            if self._driver is not None and self._driver.poll() is None:
                self._driver.kill()
                self._driver.wait()
        done = work_done(self._job.counters).values()
        self._outcome.work = Work(tokens=sum(w.tokens for w in done), busy_seconds=sum(w.busy_seconds for w in done))
        self._outcome.seconds = time.monotonic() - begin
        return self._outcome

    def _wait_for_the_moment(self, latest: int | None) -> None:
        """Mostly some time after work has begun (again), sometimes while everything is starting.

        Not later than when engines have generated ``latest`` tokens.
        """
        if self._random.random() < _SHARE_WHILE_STARTING:
            self._keep_running_until(time.monotonic() + self._random.uniform(*_STARTING_SECONDS), latest)
            return
        before = self._busy()
        deadline = time.monotonic() + _GIVE_UP_SECONDS
        while self._busy() <= before:
            self._keep_running(0.1)
            if time.monotonic() > deadline:
                raise RuntimeError(f"no engine has worked for {_GIVE_UP_SECONDS:.0f} s; see {self._job.log}")
        self._keep_running_until(time.monotonic() + self._random.uniform(*_GENERATING_SECONDS), latest)

    def _keep_running_until(self, moment: float, latest: int | None) -> None:
        while time.monotonic() < moment and (latest is None or self._generated() < latest):
            self._keep_running(0.02)

    def _keep_running(self, seconds: float) -> None:
        """Let time pass; a driver that ended with an error is started again, as its user would."""
        deadline = time.monotonic() + seconds
        while True:
            if self._driver is None:
                self._start()
            elif self._driver.poll() is not None:
                if self._note_end() == 0:
                    raise RuntimeError(f"the job ended after {dict(self._outcome.kills)}: too short for these kills")
                self._driver = None
                continue
            if (left := deadline - time.monotonic()) <= 0:
                return
            time.sleep(min(0.05, left))

    def _start(self) -> None:
        self._outcome.drivers += 1
        self._driver = self._job.start()

    def _note_end(self) -> int:
        assert self._driver is not None
        status = self._driver.wait()
        lines = [line for line in self._job.said().splitlines() if "rror" in line] if status else []
        self._outcome.ends.append((status, lines[-1][:300] if lines else ""))
        return status

    def _kill(self, kind: str) -> None:
        assert self._driver is not None
        if kind in ("driver", "sigterm"):
            self._driver.send_signal(signal.SIGKILL if kind == "driver" else signal.SIGTERM)
            status = self._driver.wait(timeout=60)
            expected = -signal.SIGKILL if kind == "driver" else 128 + signal.SIGTERM
            if kind == "sigterm" and status == -signal.SIGTERM:
                expected = status  # it came before the handler was there
            if status != expected:
                self._outcome.ends.append((status, f"after {kind}"))
            self._driver = None
        elif kind == "actor":
            while not (pids := self._actors()):
                self._keep_running(0.2)
            os.kill(self._random.choice(pids), signal.SIGKILL)
        else:
            node = self._random.choice(self._cluster.nodes)
            node.kill_raylet()
            self._cluster.nodes.remove(node)
            self._cluster.add_node(self._cpus)
            node.end()
        self._outcome.kills[kind] += 1

    def _damage(self, kind: str) -> None:
        if kind == "state":
            self._kill("driver")
            self._outcome.kills["driver"] -= 1  # counted under its own kind
            while not self._vandal.empty_state():
                self._keep_running(0.2)
        elif kind == "edit":
            self._edit()
        elif kind == "frozen":
            self._freeze()
        else:
            while not self._vandal.damage_staging(kind):
                self._keep_running(0.2)
        self._outcome.kills[kind] += 1

    def _edit(self) -> None:
        """The driver has to find out by itself, and end with an error; then the file is put back."""
        assert self._driver is not None
        self._vandal.edit_input()
        try:
            self._driver.wait(timeout=_GIVE_UP_SECONDS)
        finally:
            self._vandal.restore_input()
        if self._note_end() == 0:
            raise RuntimeError("a run whose input was edited ended as if nothing had happened")
        self._driver = None

    def _freeze(self) -> None:
        """Another driver takes over when the lease has run out; the one that slept ends by itself, with an error."""
        asleep, self._driver = self._driver, None
        assert asleep is not None
        asleep.send_signal(signal.SIGSTOP)
        try:
            deadline = time.monotonic() + self._ttl + _GIVE_UP_SECONDS
            while self._driver is None or self._vandal.writer() != self._driver.pid:
                self._keep_running(0.2)
                if time.monotonic() > deadline:
                    raise RuntimeError(f"nobody took over; see {self._job.log}")
            self._keep_running(self._random.uniform(*_GENERATING_SECONDS))
        finally:
            asleep.send_signal(signal.SIGCONT)
        status = asleep.wait(timeout=_GIVE_UP_SECONDS)
        if status == 0:
            raise RuntimeError("a driver that had lost its lease ended as if it had not")

    def _actors(self) -> list[int]:
        """Process ids of live generate actors of this cluster's nodes."""
        return [worker.pid for node in self._cluster.nodes for worker in node.actors()]

    def _busy(self) -> float:
        return sum(work.busy_seconds for work in work_done(self._job.counters).values())

    def _generated(self) -> int:
        return sum(work.tokens for work in work_done(self._job.counters).values())

    def _finish(self) -> None:
        deadline = time.monotonic() + 2 * _GIVE_UP_SECONDS
        while time.monotonic() < deadline:
            if self._driver is None:
                self._start()
            assert self._driver is not None
            self._driver.wait(timeout=deadline - time.monotonic())
            if self._note_end() == 0:
                return
            self._driver = None
        raise RuntimeError(f"the job does not end; see {self._job.log}")
