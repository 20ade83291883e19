"""The commands of ``infra/README.md`` that a Ray head suffices for run as they are written.

They run in namespaces of their own (network, processes, mounts): Ray listens on all interfaces there (only the loopback
exists), and all processes end with the block.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.cluster.metrics import METRICS
from testing.infra import INFRA, clusters_in, load
from testing.pages.blocks import text_of
from testing.repository import ROOT

_INSIDE = "mount -t tmpfs none /tmp/ray && ip link set lo up"
_UNSHARE = ["unshare", "--map-root-user", "--net", "--pid", "--fork", "--mount", "--mount-proc"]


def may_unshare() -> bool:
    """Whether this machine lets us make namespaces, and has the commands that are used in them."""
    if any(shutil.which(name) is None for name in ("unshare", "ip", "curl")):
        return False
    Path("/tmp/ray").mkdir(exist_ok=True)
    return subprocess.run([*_UNSHARE, "bash", "-c", _INSIDE], capture_output=True, check=False).returncode == 0


def block(heading: str) -> str:
    """The first block of shell commands below a heading."""
    return text_of(INFRA / "README.md").split(f"\n## {heading}\n")[1].split("```bash\n")[1].split("```")[0]


def test_the_blocks_are_those_of_a_ray_head() -> None:
    assert "ray job submit" in block("Launch")
    assert "jobs.status" in block("Watch")
    assert "ray drain-node" in block("Drain")
    assert "kubectl" not in block("Launch") + block("Watch") + block("Drain")


def pre_stop() -> str:
    """The last command of a worker's pod, without the wait: it drains its node."""
    (cluster,) = clusters_in(load(INFRA / "kuberay" / "base" / "job" / "rayjob.yaml"))
    (container,) = cluster["workerGroupSpecs"][0]["template"]["spec"]["containers"]
    command: str = container["lifecycle"]["preStop"]["exec"]["command"][2]
    return command.partition(";")[0]


def run(folder: Path, *commands: str) -> str:
    """The output of commands, run one after the other in namespaces of their own; the first that fails ends them."""
    if not may_unshare():
        pytest.skip("this machine makes no namespaces")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")} | {
        "PYTHONPATH": str(ROOT), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"
    }  # fmt: skip
    script = "\n".join([_INSIDE, "set -exo pipefail", *commands])
    done = subprocess.run(
        [*_UNSHARE, "bash", "-c", script], cwd=folder, env=environment, capture_output=True, text=True, timeout=280,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
    return done.stdout


@pytest.mark.slow  # starts a Ray head, a job on it, and commands: about 25 s
def test_launch_watch_and_drain_run_as_written(tmp_path: Path) -> None:
    said = run(tmp_path, *map(block, ("Launch", "Watch", "Drain")))
    assert "Cost of this run:" in said, "the summary comes through the job's log"
    shown = set(re.findall(r"^(ray_wedlm_\w+)[{ ]", said, re.MULTILINE))
    known = [metric.scraped_name for metric in METRICS]
    assert not [name for name in shown if re.sub("_(bucket|count|sum)$", "", name) not in known], "as the page has them"
    assert {"ray_wedlm_units", "ray_wedlm_tokens_committed_total", "ray_wedlm_actor_start_seconds_count"} <= shown
    assert list((tmp_path / "out").glob("data-*/*.parquet"))


@pytest.mark.slow  # starts a Ray head: about 15 s
def test_a_pod_that_ends_drains_the_node_that_it_runs_on(tmp_path: Path) -> None:
    *head, _, _ = block("Launch").strip().splitlines()
    gone = "for i in $(seq 20); do pgrep -x raylet || exit 0; sleep 1; done; echo the raylet is still there; exit 1"
    # The command is a driver on the node that it drains: Ray may end it with the node, and the pod goes on regardless.
    run(tmp_path, *head, "pgrep -x raylet", "export RAY_ADDRESS=127.0.0.1:6379", f"{pre_stop()} || true", gone)
