"""A model's files are downloaded once per machine, whole, and checked before use."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import fsspec
import pytest

from testing.pipeline.s3 import S3Server, serve_s3
from testing.repository import ROOT
from wedlm_core.model import download
from wedlm_core.model.sources import resolve

URL = "s3://models/qwen3"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("WEDLM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def resolver(server: S3Server, cache: Path, before: str = "") -> subprocess.Popen[str]:
    """A process that resolves the model, and prints its folder."""
    find = f"print(resolve({URL!r}, storage_options={server.options!r}))"
    code = f"from wedlm_core.model.sources import resolve\n{before}\n{find}"
    return subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, env={**os.environ, "WEDLM_CACHE": str(cache)}, stdout=subprocess.PIPE,
        text=True,
    )  # fmt: skip


def gets(log: Path) -> int:
    """Requests for the content of the weights."""
    return log.read_text().count("GET /models/qwen3/model.safetensors")


def test_processes_of_a_machine_download_once_also_after_one_was_killed(
    qwen3_folder: Path, tmp_path: Path, cache: Path
) -> None:
    log = tmp_path / "s3.log"
    with serve_s3(log) as server:
        fs = fsspec.filesystem("s3", **server.options)
        fs.mkdir("models")
        fs.put(str(qwen3_folder), "models/qwen3", recursive=True)
        # One stops after a part of the weights, and is killed: its files are not taken for a model.
        begun = tmp_path / "begun"
        stops = f"""
import pathlib, time, s3fs
def half(self, path, local, **_):
    pathlib.Path(local).write_bytes(b"half")
    if path.endswith("safetensors"):
        pathlib.Path({str(begun)!r}).touch()
        time.sleep(600)
s3fs.S3FileSystem.get_file = half
"""
        killed = resolver(server, cache, stops)
        try:
            deadline = time.monotonic() + 60
            while not begun.exists() and time.monotonic() < deadline:
                time.sleep(0.02)
        finally:
            killed.send_signal(signal.SIGKILL)
            killed.wait()
        assert begun.exists()
        assert not gets(log)
        both = [resolver(server, cache) for _ in range(3)]
        folders = {process.communicate(timeout=120)[0].strip() for process in both}
        (folder,) = folders
        assert gets(log) == 1, "the weights travelled once"
        left = sorted(path.name for path in Path(folder).parent.iterdir() if path.is_dir())
        assert left == [Path(folder).name], "nothing of the killed one is left"
        assert (Path(folder) / "model.safetensors").read_bytes() == (qwen3_folder / "model.safetensors").read_bytes()


@pytest.fixture
def memory_url(qwen3_folder: Path) -> str:
    fs = fsspec.filesystem("memory")
    for file in qwen3_folder.iterdir():
        fs.pipe(f"/checked/model/{file.name}", file.read_bytes())
    return "memory://checked/model"


@pytest.mark.parametrize("damage", ["flip", "cut", "missing", "record"])
def test_a_damaged_folder_is_downloaded_again(
    damage: str, memory_url: str, cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = resolve(memory_url)
    weights = folder / "model.safetensors"
    whole = weights.read_bytes()
    if damage == "flip":
        weights.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    elif damage == "cut":
        weights.write_bytes(whole[:-1])
    elif damage == "missing":
        weights.unlink()
    else:
        (folder / "CHECKSUMS").write_text("{")
    assert resolve(memory_url) == folder
    assert weights.read_bytes() == whole
    assert "differ from the downloaded ones" in caplog.text


def test_files_that_were_only_touched_are_read_and_kept(
    memory_url: str, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = resolve(memory_url)
    monkeypatch.setattr(download, "_fetch", lambda *_: pytest.fail("they are whole"))
    monkeypatch.setattr(download, "_checksum", lambda path: pytest.fail("files as recorded are not read"))
    assert resolve(memory_url) == folder
    monkeypatch.undo()
    monkeypatch.setenv("WEDLM_CACHE", str(cache))
    monkeypatch.setattr(download, "_fetch", lambda *_: pytest.fail("they are whole"))
    os.utime(folder / "model.safetensors", (1, 1))
    assert resolve(memory_url) == folder
