"""The pinned torch and Triton are a pair that a GPU machine can install; the range of Ray is the one that CI runs."""

from __future__ import annotations

import importlib.metadata
import re
import sys
import tomllib

import pytest

from pipeline.cluster.private_ray import SUPPORTED
from testing.repository import ROOT
from testing.torch_pair import CONSTRAINTS, TRITON_OF_TORCH, fault, installed_requirements, pins, triton_required

PINNED = pins(CONSTRAINTS.read_text(encoding="utf-8"))


def test_the_pinned_triton_is_the_one_that_the_pinned_torch_requires_for_cuda() -> None:
    assert fault(PINNED["torch"], PINNED["triton"]) is None


@pytest.mark.skipif(sys.platform != "linux", reason="Triton is for Linux")
def test_kernels_are_tested_with_the_triton_of_the_installed_torch() -> None:
    torch, triton = importlib.metadata.version("torch"), importlib.metadata.version("triton")
    assert fault(torch, triton, installed_requirements()) is None


@pytest.mark.parametrize("torch", ["2.13.0", "2.13.0+cpu", "2.12.1"])
def test_a_triton_of_another_torch_is_named_with_the_remedy(torch: str) -> None:
    assert fault(torch, "3.7.1") is None
    assert "Pin triton==3.7.1" in (fault(torch, "3.9.0") or "")


def test_metadata_comes_before_the_table_and_an_unknown_torch_passes_with_metadata_only() -> None:
    requires = ["filelock", 'triton==3.7.5; platform_system == "Linux" and python_version < "3.15"', "triton-dist==1"]
    assert triton_required(requires) == "3.7.5"
    assert triton_required(["tritonclient==9", "filelock"]) is None
    assert fault("2.13.0", "3.7.1", requires) is not None
    assert fault("9.9.9", "3.7.5", requires) is None
    assert "9.9.9" not in TRITON_OF_TORCH
    assert "Add this torch" in (fault("9.9.9", "3.7.5") or "")


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
