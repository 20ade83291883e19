"""The GPU suite runs from end to end on a CPU at toy sizes, and refuses to run without a GPU otherwise."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks.decode.random_model import parameters, random_decoder
from benchmarks.gpu.host import idle_seconds
from benchmarks.gpu.suite import SECTIONS
from testing.engine.models import random_decoder as small_decoder
from testing.repository import ROOT
from wedlm_core.model.placing import empty_decoder
from wedlm_core.model.shapes import WEDLM_7B, WEDLM_8B


def suite(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks.gpu.suite", *arguments]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}  # so that a machine with a GPU behaves the same
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240, check=False)


@pytest.mark.slow  # half a minute of both cores
def test_every_section_runs_on_a_cpu_and_the_result_says_that_it_is_not_of_a_gpu(tmp_path: Path) -> None:
    done = suite("--device", "cpu", "--tiny", "--output", str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    (text,) = tmp_path.glob("gpu_suite_toy_*.md")
    (plain,) = tmp_path.glob("gpu_suite_toy_*.json")
    found = json.loads(plain.read_text())
    assert found["toy"]
    assert list(found["sections"]) == list(SECTIONS)
    for name, section in found["sections"].items():
        assert section["rows"], name
        assert f"## {section['title']}" in text.read_text()
    assert "Not a GPU" in text.read_text()
    assert found["sections"]["tiny"]["goals"][0]["reached"], "the CPU against itself"
    races = found["sections"]["load"]["rows"]
    assert {(r["context"], r["batch"], r["regime"]) for r in races} == {
        (c, b, r) for c in (64, 128) for b in (1, 4) for r in ("low", "medium", "high")
    }


def test_sections_that_were_not_started_are_failures_in_the_result(tmp_path: Path) -> None:
    # There is no time for the ceilings: their process is not started, and the other section needs their results.
    done = suite("--device", "cpu", "--tiny", "--sections", "host", "--minutes", "0.01", "--output", str(tmp_path))
    assert done.returncode == 1
    (text,) = tmp_path.glob("*.md")
    assert text.read_text().count("**Failed:** its process was not started") == 2


def test_without_a_device_it_ends_at_once_and_says_so(tmp_path: Path) -> None:
    done = suite("--output", str(tmp_path))
    assert done.returncode == 2
    assert "no CUDA device" in done.stderr
    assert not list(tmp_path.iterdir())


def test_gaps_longer_than_the_bound_are_idle_and_overlaps_are_not() -> None:
    spans = [(0.0, 1.0), (0.5, 0.7), (1.1, 2.0), (4.0, 5.0), (4.5, 4.6)]
    assert idle_seconds(spans, 0.5) == pytest.approx(2.0)
    assert idle_seconds(spans, 0.01) == pytest.approx(2.1)
    assert idle_seconds(spans[::-1], 5.0) == 0.0


def test_a_random_model_is_the_same_for_the_same_seed_and_has_the_shape_asked_for() -> None:
    config = small_decoder(qwen3=False, seed=0).config
    one, same, other = (
        random_decoder(config, device="cpu", dtype=torch.bfloat16, seed=seed, max_positions=8) for seed in (1, 1, 2)
    )
    pairs = zip(one.parameters(), same.parameters(), other.parameters(), strict=True)
    equal = [(torch.equal(a, b), torch.equal(a, c)) for a, b, c in pairs if a.ndim > 1]
    assert all(b and not c for b, c in equal)
    assert one.lm_head.weight is one.embed.weight
    assert one.cos.shape[0] == 8


def test_models_of_full_size_have_the_published_parameter_counts() -> None:
    models = (empty_decoder(c, device="meta", dtype=torch.bfloat16) for c in (WEDLM_7B, WEDLM_8B))
    assert [parameters(model) for model in models] == [7_615_616_512, 8_190_735_360]
