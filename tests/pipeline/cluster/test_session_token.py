"""A private session takes no client without its token: the token is a file of this user's, which goes with the run."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
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


@dataclass(frozen=True, kw_only=True)
class Session:
    """A running private session.

    Attributes:
        driver: its process, which ends when it gets a line.
        address: of its head.
        token: the file of its token.
        folder: the temporary folder of the driver; its path is longer than those of sockets may be.
    """

    driver: subprocess.Popen[str]
    address: str
    token: Path
    folder: Path


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    folder = tmp_path_factory.mktemp("a folder of more than fifty characters, which is too long for sockets")
    driver = subprocess.Popen([sys.executable, "-c", SESSION], env=plain() | {"TMPDIR": str(folder)},
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)  # fmt: skip
    assert driver.stdout is not None
    address = driver.stdout.readline().strip()
    raylet = next(child for child in psutil.Process(driver.pid).children(recursive=True) if child.name() == "raylet")
    token = Path(raylet.environ()["RAY_AUTH_TOKEN_PATH"])
    yield Session(driver=driver, address=address, token=token, folder=folder)
    driver.kill()
    driver.communicate()


def clients(address: str, environments: list[dict[str, str]], code: str) -> list[tuple[int, str]]:
    """Exit status and output of a client in each environment, all at once."""
    begun = [
        subprocess.Popen([sys.executable, "-c", code, address], env=environment, stdout=subprocess.PIPE,
                         stderr=subprocess.STDOUT, text=True)
        for environment in environments
    ]  # fmt: skip
    return [(client.wait(60), client.communicate()[0]) for client in begun]


def test_no_other_user_reaches_a_file_of_the_session(session: Session) -> None:
    token = session.token
    assert len(token.read_text()) == 64
    assert stat.S_IMODE(token.stat().st_mode) == 0o600
    assert stat.S_IMODE(token.parent.stat().st_mode) == 0o700
    assert list(token.parent.glob("ray/session_2*/sockets/plasma_store"))
    assert list(token.parent.glob("ray/session_2*/logs/raylet.*"))


def test_only_a_client_with_the_token_is_taken(session: Session, tmp_path: Path) -> None:
    (tmp_path / "wrong").write_text("0" * 64)
    stranger = plain() | {"HOME": str(tmp_path)}
    wrong = stranger | {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(tmp_path / "wrong")}
    right = stranger | {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(session.token)}
    without, mistaken, known = clients(session.address, [stranger, wrong, right], CLIENT)
    assert known == (0, "taken\n")
    for status, said in (without, mistaken):
        assert status != 0
        assert "taken" not in said
        assert "authentication" in said.lower()


def test_a_killed_process_leaves_nothing_also_below_a_long_folder(session: Session) -> None:
    """The last test: nothing is left of the session after it."""
    short = [
        path for path in Path("/tmp").glob("wedlm-ray-*") if (path / "ray").resolve().is_relative_to(session.folder)
    ]
    assert short, "sockets have a short path"
    assert list(session.folder.glob("wedlm-ray-*/ray/session_2*/logs")), "files are where the user wants them"
    session.driver.kill()
    session.driver.communicate()
    end = time.monotonic() + 15
    while (any(session.folder.iterdir()) or short[0].exists()) and time.monotonic() < end:
        time.sleep(0.1)
    assert [*session.folder.iterdir()] == []
    assert not short[0].exists()
