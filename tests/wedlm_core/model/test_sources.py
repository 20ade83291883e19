"""Models are found in all kinds of places, downloaded once per content, and errors have a remedy."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest

from wedlm_core.errors import ConfigError, WeightsError
from wedlm_core.model import download
from wedlm_core.model.sources import resolve
from wedlm_core.model.weights import load_model
from wedlm_core.tokenizer import Tokenizer


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("WEDLM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def memory_url(qwen3_folder: Path) -> Iterator[str]:
    fs = fsspec.filesystem("memory")
    for file in qwen3_folder.iterdir():
        fs.pipe(f"/bucket/model/{file.name}", file.read_bytes())
    fs.pipe("/bucket/model/pytorch_model.bin", b"a pickle nobody asked for")
    yield "memory://bucket/model"
    fs.rm("/bucket", recursive=True)


def test_a_local_folder_is_used_as_it_is(qwen3_folder: Path) -> None:
    assert resolve(str(qwen3_folder)) == qwen3_folder
    assert resolve(qwen3_folder.as_uri()) == qwen3_folder


def test_a_url_is_downloaded_once_and_only_model_files(
    memory_url: str, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = resolve(memory_url)
    assert folder.is_relative_to(cache)
    assert not (folder / "pytorch_model.bin").exists()
    load_model(folder)
    Tokenizer.load(folder)

    def no_more(*_: object) -> None:
        raise AssertionError("downloaded twice")

    monkeypatch.setattr(download, "_fetch", no_more)
    assert resolve(memory_url) == folder


def test_new_content_under_the_same_url_is_a_new_download(memory_url: str) -> None:
    before = resolve(memory_url)
    fsspec.filesystem("memory").pipe("/bucket/model/generation_config.json", b'{"eos_token_id": 3}')
    after = resolve(memory_url)
    assert after != before
    assert (after / "generation_config.json").read_text() == '{"eos_token_id": 3}'


def test_a_download_that_breaks_off_leaves_no_folder(
    memory_url: str, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = fsspec.implementations.memory.MemoryFileSystem.get_file

    def breaks(self: object, path: str, local: str, **kwargs: object) -> None:
        if path.endswith("safetensors"):
            raise OSError("connection reset")
        real(self, path, local, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(fsspec.implementations.memory.MemoryFileSystem, "get_file", breaks)
        with pytest.raises(WeightsError, match="connection reset"):
            resolve(memory_url)
    assert not [p for p in (cache / "models").iterdir() if p.is_dir()]
    load_model(resolve(memory_url))


def test_hub_ids_offline_say_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(WeightsError, match="give a local folder or fill the hub's cache"):
        resolve("someone/some-model")


def test_hub_ids_come_from_the_hub_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, qwen3_folder: Path) -> None:
    """The layout of the hub's own cache, as a machine without network has it after a prior download."""
    repo, commit = tmp_path / "models--someone--some-model", "0123456789abcdef0123456789abcdef01234567"
    shutil.copytree(qwen3_folder, repo / "snapshots" / commit)
    (repo / "refs").mkdir()
    (repo / "refs" / "v1").write_text(commit)
    script = "from wedlm_core.model.sources import resolve\nprint(resolve('someone/some-model', revision='v1'), end='')"
    env = {"HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": str(tmp_path), "PATH": "/usr/bin:/bin"}
    found = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, check=True)
    assert Path(found.stdout) == repo / "snapshots" / commit


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("/no/such/folder", "no such folder"),
        ("./here/nothing", "no such folder"),
        ("a/b/c", "no such folder"),
        ("file:///no/such/folder", "not a folder"),
        ("nosuchprotocol://x/y", "Protocol not known"),
        ("memory://empty/place", "no model files|cannot be read"),
    ],
)
def test_wrong_places_are_named(model: str, message: str) -> None:
    with pytest.raises(WeightsError, match=message) as caught:
        resolve(model)
    assert repr(model) in str(caught.value)


def test_a_folder_without_configuration_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=r"no config\.json"):
        resolve(tmp_path)


def test_a_revision_of_a_folder_is_refused(qwen3_folder: Path, memory_url: str) -> None:
    for model in (str(qwen3_folder), memory_url):
        with pytest.raises(ConfigError, match="only hub ids"):
            resolve(model, revision="main")
