"""Machine code of kernels is kept for later processes, wherever the package lies, until a kernel changes."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from testing.repository import ROOT
from wedlm_core import cache
from wedlm_core.kernels.cpu import kept

CODE = """
import numpy as np
from wedlm_core.kernels.cpu.kept import kernel_folder
before = any(kernel_folder().glob("*.nbc"))
from wedlm_core.kernels.cpu.step import _is_stop
assert _is_stop(3, np.array([[1, 3, -1]]), 0)
print(before, len(_is_stop.stats.cache_hits), len(_is_stop.stats.cache_misses), any(kernel_folder().glob("*.nbc")))
"""


def ask(cache: Path, code: str = CODE) -> str:
    environment = {**os.environ, "WEDLM_CACHE_HOME": str(cache)}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache with one kernel, to be copied."""
    folder = tmp_path_factory.mktemp("filled")
    assert ask(folder) == "False 0 1 True"
    return folder


@pytest.mark.sweep(1)
@pytest.mark.parametrize("damaged", ["*.nbc", "*.nbi"])
@pytest.mark.parametrize("damage", ["cut", "empty", "other bytes"])
def test_a_kernel_is_compiled_once_and_again_when_its_file_is_damaged(
    damaged: str, damage: str, filled: Path, tmp_path: Path
) -> None:
    shutil.copytree(filled, tmp_path, dirs_exist_ok=True)
    (folder,) = tmp_path.iterdir()
    assert any(path.name.startswith("step._is_stop") for path in folder.iterdir())
    for file in tmp_path.rglob(damaged):
        content = file.read_bytes()
        middle = len(content) // 2
        other = content[:middle] + bytes(255 - one for one in content[middle : middle + 64]) + content[middle + 64 :]
        file.write_bytes({"cut": content[:40], "empty": b"", "other bytes": other}[damage])
    assert ask(tmp_path) == "True 0 1 True"


@pytest.mark.sweep(1)
@pytest.mark.parametrize("damaged", ["*.nbc", "*.nbi"])
def test_a_kernel_that_cannot_be_kept_is_used_all_the_same(damaged: str, filled: Path, tmp_path: Path) -> None:
    shutil.copytree(filled, tmp_path, dirs_exist_ok=True)
    for file in tmp_path.rglob(damaged):
        file.unlink()
        file.mkdir()
        (file / "in the way").touch()
    assert ask(tmp_path) == "True 0 1 True"


def test_machine_code_of_another_kernel_is_not_run(tmp_path: Path) -> None:
    both = "from wedlm_core.kernels.cpu.scalar import exp, log; print(exp(0.0), log(1.0), len(exp.stats.cache_misses))"
    assert ask(tmp_path, both) == "1.0 0.0 1"
    assert ask(tmp_path, both) == "1.0 0.0 0"
    exp, log = (next(tmp_path.rglob(f"scalar.{name}*.nbc")) for name in ("exp", "log"))
    exp.write_bytes(log.read_bytes())
    assert ask(tmp_path, both) == "1.0 0.0 1"


@pytest.mark.skipif(shutil.which("mount") is None or os.geteuid() != 0, reason="mounts a small file system")
def test_on_a_full_disk_kernels_are_compiled_and_not_kept(tmp_path: Path) -> None:
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", tmp_path], check=False).returncode:
        pytest.skip("file systems cannot be mounted here")
    try:
        (tmp_path / "kernels").mkdir()
        with suppress(OSError):
            (tmp_path / "fill").write_bytes(bytes(1 << 16))
        assert ask(tmp_path).split()[:3] == ["False", "0", "1"]
    finally:
        subprocess.run(["umount", tmp_path], check=True)


def test_the_folder_is_another_one_if_any_kernel_changes_or_what_they_read(tmp_path: Path) -> None:
    kernels = tmp_path / "kernels/cpu"
    kernels.mkdir(parents=True)
    versions = []
    for vector, statistics in (("a", "a"), ("a", "a"), ("b", "a"), ("b", "b")):
        (kernels / "vector.py").write_text(vector)
        (kernels / "attention.py").write_text("inlines functions of vector.py")
        (tmp_path / "statistics.py").write_text(statistics)
        versions.append(kept._version_of.__wrapped__(tmp_path))
    assert versions[0] == versions[1]
    assert len(set(versions)) == 3


def test_the_version_covers_all_that_kernels_import() -> None:
    """A kernel has constants of its imports in its machine code."""
    package = ROOT / "wedlm_core"
    hashed = {path for pattern in kept._SOURCES for path in package.glob(pattern)}
    imported = {
        node.module
        for path in (package / "kernels/cpu").glob("*.py")
        if path.name != "kept.py"  # compiles nothing
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("wedlm_core")
    }
    assert "wedlm_core.statistics" in imported
    files = [ROOT / (name.replace(".", "/") + ".py") for name in imported - {"wedlm_core.kernels.cpu"}]
    assert [path for path in files if path not in hashed] == []


def test_kernels_that_were_kept_are_read_where_nothing_can_be_written(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("WEDLM_CACHE_HOME", str(tmp_path))
    kept._folder.cache_clear()
    folder = kept.kernel_folder()
    assert folder.parent == tmp_path
    assert not kept.are_kept()
    kept.note_kept()
    monkeypatch.setattr(cache, "is_writable", lambda folder: False)
    cache.writable_folder.cache_clear()
    kept._folder.cache_clear()
    assert kept.kernel_folder() == folder
    assert kept.are_kept()
    cache.writable_folder.cache_clear()
    kept._folder.cache_clear()


def test_kernels_of_other_versions_are_removed_when_no_process_has_used_them_for_long(
    tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setenv("WEDLM_CACHE_HOME", str(tmp_path))
    for name, days in (("kernels-old", 31), ("kernels-young", 29), ("models", 99)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x.nbc").touch()
        os.utime(tmp_path / name, (0, time.time() - days * 24 * 3600))
    kept._folder.cache_clear()
    folder = kept.kernel_folder()
    assert {path.name for path in tmp_path.iterdir()} == {"kernels-young", "models", folder.name}
    kept._folder.cache_clear()
