"""Free memory is the lesser of the machine's and the container's."""

from __future__ import annotations

from pathlib import Path

import pytest

from wedlm_core import host_memory
from wedlm_core.host_memory import available_memory

KIB = 1024


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(host_memory, "_MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(host_memory, "_CGROUPS", ((tmp_path / "max", tmp_path / "current"),))
    return tmp_path


def test_the_least_counts(files: Path) -> None:
    assert available_memory() is None
    (files / "meminfo").write_text("MemTotal: 9000 kB\nMemAvailable:  5000 kB\nSwapFree: 1 kB\n")
    assert available_memory() == 5000 * KIB
    (files / "max").write_text("max\n")
    (files / "current").write_text("1000\n")
    assert available_memory() == 5000 * KIB
    (files / "max").write_text("3000\n")
    assert available_memory() == 2000
    (files / "current").write_text("4000\n")
    assert available_memory() == 0
    (files / "max").write_text("9223372036854771712\n")
    assert available_memory() == 5000 * KIB
    (files / "meminfo").write_text("MemAvailable:\n")
    assert available_memory() is None


def test_this_machine_tells() -> None:
    found = available_memory()
    assert found is None or found > 0
