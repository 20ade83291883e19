"""A private session has no process that it has no use for, does what sessions do, and leaves none behind."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys

import ray
from ray._private import node

from pipeline.cluster.lean_start import lean_start
from testing.pipeline.sockets import processes_with
from testing.repository import ROOT

MARK = "WEDLM_TEST_LEAN"
DRIVER = """
import os, psutil, threading
from pipeline.cluster.crew import Background
background = Background(1)
background.wait()  # the session starts in another thread
import ray
@ray.remote(num_cpus=0, runtime_env={"env_vars": {"LEAN": "7"}})
def with_environment():
    return os.environ["LEAN"]
print(ray.get(with_environment.remote()))
for process in psutil.Process().children(recursive=True):
    print(" ".join(process.cmdline())[:4000].replace(chr(10), " "))
background.close()
print(ray.is_initialized())
"""


def test_a_private_session_starts_what_it_needs_and_ends_it() -> None:
    mark = secrets.token_hex(8)
    environment = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")} | {MARK: mark}
    done = subprocess.run(
        [sys.executable, "-c", DRIVER], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    first, *commands, last = done.stdout.splitlines()
    assert (first, last) == ("7", "False"), "an environment of a task's own still works"
    started = [" ".join(command.split()[:4]) for command in commands]
    assert any("gcs_server" in command for command in started)
    assert any("raylet" in command for command in started)
    unwanted = ("dashboard/dashboard.py", "dashboard/agent.py", "log_monitor.py", "monitor.py")
    assert not [command for command in started if command.endswith(unwanted)]
    assert "SIGTERM" not in done.stderr, "nothing is said of the thread"
    left = processes_with(MARK, mark)
    for process in left:  # a raylet that is asked to end is waited for, its agents are not
        process.wait(5)


def test_a_version_that_was_not_tried_starts_as_ray_has_it(monkeypatch: object) -> None:
    plain = node.Node
    with lean_start("127.0.0.1", 2):
        assert node.Node is not plain
    assert node.Node is plain
    monkeypatch.setattr(ray, "__version__", "9.0.0")  # type: ignore[attr-defined]
    with lean_start("127.0.0.1", 2):
        assert node.Node is plain
