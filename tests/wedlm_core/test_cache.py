"""The cache folder: where the user says, and somewhere else that is safe where nothing can be written there."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from wedlm_core.cache import _writable, cache_folder, writable_cache


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of temporary files; nothing is remembered."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    _writable.cache_clear()
    return folder


def test_it_is_where_the_environment_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WEDLM_CACHE_HOME", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "xdg" / "wedlm"
    monkeypatch.setenv("WEDLM_CACHE_HOME", str(tmp_path / "own"))
    assert cache_folder() == tmp_path / "own"
    assert writable_cache("kernels") == tmp_path / "own" / "kernels"
    assert (tmp_path / "own" / "kernels").is_dir()


@pytest.mark.parametrize("mode", [0o700, 0o777])
def test_where_nothing_can_be_written_it_is_a_temporary_folder_that_nobody_else_can_write_to(
    mode: int, temporary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("WEDLM_CACHE_HOME", str(tmp_path / "file"))
    own = temporary / f"wedlm-cache-{os.getuid()}"
    own.mkdir()
    own.chmod(mode)
    found = writable_cache("kernels")
    assert found.is_dir()
    assert (found.parent == own) == (mode == 0o700), "code is not taken from where others could have put it"
    assert found.is_relative_to(temporary)
