"""A private session takes no client without its token: the token is a file of this user's, which goes with the run."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from testing.repository import ROOT

SESSION = """
import ray
from pipeline.cluster.session import ray_session
with ray_session():
    print(ray.get_runtime_context().gcs_address, flush=True)
    input()
    print([node["NodeManagerAddress"] for node in ray.nodes()], ray.get(ray.remote(lambda: 7).remote()))
print(ray.is_initialized())
"""
CLIENT = """
import sys
from ray._raylet import GcsClient
GcsClient(address=sys.argv[1]).internal_kv_put(b"k", b"v", True)
print("taken")
"""


def plain() -> dict[str, str]:
    """The environment of somebody who has no token."""
    return {k: v for k, v in os.environ.items() if not k.startswith("RAY_")} | {"PYTHONPATH": str(ROOT)}


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """The address of a running private session, and the file of its token."""
    home = tmp_path_factory.mktemp("home")
    driver = subprocess.Popen(
        [sys.executable, "-c", SESSION], env=plain() | {"HOME": str(home)}, stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert driver.stdin is not None
    assert driver.stdout is not None
    address = driver.stdout.readline().strip()
    raylet = next(child for child in psutil.Process(driver.pid).children(recursive=True) if child.name() == "raylet")
    token = Path(raylet.environ()["RAY_AUTH_TOKEN_PATH"])
    yield address, token
    assert driver.communicate("\n", timeout=60)[0] == "['127.0.0.1'] 7\nFalse\n"
    assert driver.returncode == 0
    assert not token.exists()
    assert not token.parent.exists()
    assert not (home / ".ray").exists(), "no token is left for later clusters"


def clients(address: str, environments: list[dict[str, str]], code: str) -> list[tuple[int, str]]:
    """Exit status and output of a client in each environment, all at once."""
    begun = [
        subprocess.Popen([sys.executable, "-c", code, address], env=environment, stdout=subprocess.PIPE,
                         stderr=subprocess.STDOUT, text=True)
        for environment in environments
    ]  # fmt: skip
    return [(client.wait(60), client.communicate()[0]) for client in begun]


def test_no_other_user_reaches_a_file_of_the_session(session: tuple[str, Path]) -> None:
    _, token = session
    assert len(token.read_text()) == 64
    assert stat.S_IMODE(token.stat().st_mode) == 0o600
    assert stat.S_IMODE(token.parent.stat().st_mode) == 0o700
    assert list(token.parent.glob("ray/session_2*/sockets/plasma_store"))
    assert list(token.parent.glob("ray/session_2*/logs/raylet.*"))


def test_a_killed_process_leaves_nothing_also_below_a_long_folder(tmp_path: Path) -> None:
    long = tmp_path / "a folder of more than fifty characters, which is too long for sockets"
    long.mkdir()
    before = set(Path("/tmp").glob("wedlm-ray-*"))
    driver = subprocess.Popen([sys.executable, "-c", SESSION], env=plain() | {"TMPDIR": str(long)},
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # fmt: skip
    assert driver.stdout is not None
    assert driver.stdout.readline()
    own = [
        path for path in set(Path("/tmp").glob("wedlm-ray-*")) - before if (path / "ray").resolve().is_relative_to(long)
    ]
    assert own, "sockets have a short path"
    assert list(long.glob("wedlm-ray-*/ray/session_2*/logs")), "files are where the user wants them"
    driver.kill()
    driver.communicate()
    end = time.monotonic() + 15
    while (any(long.iterdir()) or own[0].exists()) and time.monotonic() < end:
        time.sleep(0.1)
    assert [*long.iterdir()] == []
    assert not own[0].exists()


def test_only_a_client_with_the_token_is_taken(session: tuple[str, Path], tmp_path: Path) -> None:
    address, token = session
    (tmp_path / "wrong").write_text("0" * 64)
    stranger = plain() | {"HOME": str(tmp_path)}
    wrong = stranger | {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(tmp_path / "wrong")}
    right = stranger | {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)}
    without, mistaken, known = clients(address, [stranger, wrong, right], CLIENT)
    assert known == (0, "taken\n")
    for status, said in (without, mistaken):
        assert status != 0
        assert "taken" not in said
        assert "authentication" in said.lower()
