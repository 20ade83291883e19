"""Real runs with planted secrets: nothing that they show or leave has one, and they listen on loopback alone."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import psutil
import pytest

from testing.pipeline.s3 import serve_s3
from testing.pipeline.sockets import Listener, listeners, processes_with
from testing.repository import ROOT

ENDS = {
    "killed actor": "done, Totals(units=6, rows=12, failed_rows=1",
    "read": f"done, {list(range(12))}",  # the Ray dataset, in input order
    "other settings": "FingerprintError",
    "wrong bucket": "OutputError",
    "wrong input": "SourceError",
    "leaky engine": "EngineDiedError",
    "leaky start": "EngineDiedError",
    "wrong credentials": "OutputError",
    "wrong literal": "OutputError",
    "revoked credentials": "SourceError",
}
"""Every run that the driver makes, and how it ends."""


@dataclass(frozen=True, kw_only=True)
class Left:
    """The driver's output and files.

    Attributes:
        said: its standard output and standard error.
        titles: command lines of all processes of the run, while it ran.
        files: everything below the folder that Ray, caches and temporary files were in, by path.
        objects: everything in the store.
        sockets: that processes of the run listened at.
        planted: the secrets.
    """

    said: str
    titles: set[str]
    files: dict[str, bytes]
    objects: dict[str, bytes]
    sockets: set[Listener]
    planted: tuple[str, ...]


@pytest.fixture(scope="module")
def left(qwen3_folder: Path) -> Iterator[Left]:
    pytest.importorskip("moto.server", reason="moto[server] is not installed")
    planted = tuple(f"plant/{name}+{secrets.token_hex(8)}" for name in ("key", "file", "literal"))
    folder = Path(tempfile.mkdtemp(prefix="wr-", dir="/tmp"))  # sockets below it: their paths have to be short
    (folder / "home").mkdir()
    secret = folder / "secret"
    secret.write_text(planted[1] + "\n")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("RAY_", "AWS_"))} | {
        "PLANTED_KEY": planted[0], "PLANTED_FILE": str(secret), "PLANTED_LITERAL": planted[2], "PYTHONPATH": str(ROOT),
        "RAY_TMPDIR": str(folder), "TMPDIR": str(folder), "HOME": str(folder / "home"),
    }  # fmt: skip
    titles: set[str] = set()
    sockets: set[Listener] = set()
    with serve_s3() as s3:
        command = [sys.executable, "-m", "testing.pipeline.planted_secrets", s3.endpoint, str(qwen3_folder)]
        with (folder / "said").open("w") as said:
            driver = subprocess.Popen(command, cwd=folder, env=environment, stdout=said, stderr=subprocess.STDOUT)
        try:
            deadline = time.monotonic() + 240
            while driver.poll() is None and time.monotonic() < deadline:
                processes = processes_with("PLANTED_KEY", planted[0])
                sockets.update(listeners(processes))
                for process in processes:
                    with suppress(psutil.Error):
                        titles.add(" ".join(process.cmdline()))
                time.sleep(0.5)
        finally:
            for process in processes_with("PLANTED_KEY", planted[0]):
                process.kill()
        text = (folder / "said").read_text(errors="replace")
        assert driver.wait() == 0, text[-3000:]
        assert not [*folder.glob("wedlm-ray-*"), *(folder / "home").glob(".ray")], "nothing of the session is left"
        import s3fs

        fs = s3fs.S3FileSystem(**s3.options)
        objects = {path: fs.cat_file(path) for path in fs.find("plant")}
    files = {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file() and path != secret}
    yield Left(said=text, titles=titles, files=files, objects=objects, sockets=sockets, planted=planted)
    shutil.rmtree(folder, ignore_errors=True)


def shows(text: str | bytes, planted: tuple[str, ...]) -> bool:
    data = text.encode() if isinstance(text, str) else text
    return any(form.encode() in data for secret in planted for form in (secret, quote(secret), quote(secret, safe="")))


@pytest.mark.parametrize("run", ENDS)
def test_every_run_ends_as_it_should(left: Left, run: str) -> None:
    lines = [line for line in left.said.splitlines() if line.startswith(f"{run}: ")]
    assert len(lines) == 1
    assert lines[0].startswith(f"{run}: {ENDS[run]}")
    assert run != "killed actor" or lines[0].endswith("one killed")


def test_no_message_or_traceback_shows_a_secret(left: Left) -> None:
    assert "signature of *** was refused" in left.said, "an error of a library that quotes one is shown, masked"
    assert [line for line in left.said.splitlines() if shows(line, left.planted)] == []


def test_no_title_of_a_process_shows_a_secret(left: Left) -> None:
    assert any("GenerateActor" in title for title in left.titles)
    assert any("raylet" in title for title in left.titles)
    assert [title for title in left.titles if shows(title, left.planted)] == []


def test_every_socket_of_every_process_is_bound_to_loopback(left: Left) -> None:
    assert {"gcs_server", "raylet"} <= {socket.process for socket in left.sockets}
    assert any(socket.process.startswith("ray::") for socket in left.sockets), "workers are seen too"
    assert [socket for socket in left.sockets if not socket.is_on_loopback] == []
    assert "after None True" in left.said.splitlines(), "the caller may join another cluster afterwards"


def test_no_file_of_rays_session_of_caches_or_temporary_folders_has_a_secret(left: Left) -> None:
    logs = [path for path in left.files if "/logs/worker-" in path]
    assert logs, "the logs of workers are among them"
    assert any(b"ending this process" in left.files[path] for path in logs), "one of an actor that failed, too"
    assert [path for path, data in left.files.items() if shows(data, left.planted) or shows(path, left.planted)] == []


def test_no_object_of_an_output_has_a_secret(left: Left) -> None:
    notes = [key for key in left.objects if "/crashes/" in key or "crash" in key]
    assert notes, "crash notes are among them"
    assert any(b"***" in left.objects[key] for key in notes)
    assert any("/ledger/" in key for key in left.objects)
    assert [key for key, data in left.objects.items() if shows(data, left.planted) or shows(key, left.planted)] == []
