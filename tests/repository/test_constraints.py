"""The pinned torch and Triton are a pair that a GPU machine can install; the range of Ray is the one that CI runs."""

from __future__ import annotations

import importlib.metadata
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path

import pytest

from pipeline.cluster.private_ray import SUPPORTED
from testing.repository import ROOT, pins

PINNED = pins()
TRITON_OF_TORCH = {"2.11.0": "3.6.0", "2.12.1": "3.7.1", "2.13.0": "3.7.1", "2.14.1": "3.8.0", "2.15.0": "3.9.0"}
"""As required by torch's CUDA builds for Linux. The CPU build names no Triton, so a CPU machine installs any pair."""


def test_the_pinned_triton_is_the_one_that_the_pinned_torch_requires_for_cuda() -> None:
    assert PINNED["triton"] == TRITON_OF_TORCH[PINNED["torch"]]


@pytest.mark.skipif(sys.platform != "linux", reason="Triton is for Linux")
def test_kernels_are_tested_with_the_triton_of_the_installed_torch() -> None:
    torch, triton = importlib.metadata.version("torch"), importlib.metadata.version("triton")
    required = triton_required(importlib.metadata.requires("torch") or ())
    assert triton == (required or TRITON_OF_TORCH[torch.partition("+")[0]])


@pytest.mark.slow(reason="asks the package index for the metadata of torch's CUDA build; nothing is installed")
def test_the_metadata_of_the_pinned_torch_requires_the_pinned_triton(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    # "===" compares the text: builds with a local part, such as +cpu, are not taken.
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--no-deps", "--quiet",
               "--only-binary=:all:", "--report", str(report), f"torch==={PINNED['torch']}"]  # fmt: skip
    try:
        subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    except (subprocess.TimeoutExpired, subprocess.CalledProcessError) as error:
        pytest.skip(f"the package index gave no metadata: {error}")
    (found,) = json.loads(report.read_text(encoding="utf-8"))["install"]
    assert triton_required(found["metadata"].get("requires_dist", ())) in (PINNED["triton"], None)


def triton_required(requirements: Iterable[str]) -> str | None:
    """The version in a line such as ``triton==3.7.1; platform_system == "Linux"``; None if there is none."""
    named = re.findall(r"^triton\s*\(?==\s*([\w.]+)", "\n".join(requirements), re.MULTILINE)
    return named[0] if named else None


def test_the_supported_range_of_ray_ends_with_the_versions_that_ci_runs() -> None:
    oldest, newest = (tuple(map(int, version.split("."))) for version in SUPPORTED)
    required = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    low, high = f"{oldest[0]}.{oldest[1]}", f"{newest[0]}.{newest[1] + 1}"
    assert f"ray[data,default]>={low},<{high}" in required
    assert PINNED["ray"] == SUPPORTED[1], "make test runs on the newest"
    assert "SUPPORTED[0]" in (ROOT / ".ci" / "run").read_text(), "and the tests of the cluster on the oldest"


def test_private_parts_of_ray_lie_in_one_module() -> None:
    private = re.compile(r"""(?<!["'])\bray\._""")  # names of loggers are strings
    modules = [path for top in ("pipeline", "jobs", "wedlm_core") for path in (ROOT / top).rglob("*.py")]
    assert [path.name for path in modules if private.search(path.read_text())] == ["private_ray.py"]
