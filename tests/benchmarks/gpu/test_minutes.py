"""The GPU minutes run from end to end on a CPU at toy sizes, and refuse to run without a GPU otherwise."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import get_args, get_type_hints

import pytest
import torch

from benchmarks.decode.random_model import SHAPES, parameters, random_decoder
from benchmarks.gpu import minutes as module
from benchmarks.gpu.decoding import Subject
from benchmarks.gpu.device import ceilings
from benchmarks.gpu.kernels import kind_of
from benchmarks.gpu.minutes import OPEN, SECTIONS
from benchmarks.gpu.section import FULL, TOY, Clock, Scene, WeightDtype, scale_of
from benchmarks.gpu.structured import structured
from testing.engine.models import random_decoder as small_decoder
from testing.repository import ROOT
from wedlm_core import EngineConfig
from wedlm_core.model.memory import weight_bytes
from wedlm_core.model.placing import empty_decoder

ON_CPUS = [dtype for dtype in get_args(WeightDtype) if dtype != "int4"]
"""int4 runs on GPUs only."""


def minutes(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks.gpu.minutes", *arguments]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}  # so that a machine with a GPU behaves the same
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240, check=False)


@pytest.mark.slow  # half a minute of both cores
@pytest.mark.parametrize("weights", ON_CPUS)
def test_sections_of_the_model_run_with_every_dtype_of_weights(weights: str, tmp_path: Path) -> None:
    sections = ("costs", "steps")
    done = minutes("--device", "cpu", "--tiny", "--weight-dtype", weights, "--sections", *sections,
                 "--output", str(tmp_path))  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    (plain,) = tmp_path.glob("gpu_minutes_toy_*.json" if weights == "int8" else f"gpu_minutes_toy_*_{weights}.json")
    found = json.loads(plain.read_text())
    assert found["weight_dtype"] == weights
    assert list(found["sections"]) == ["ceilings", *sections]


@pytest.mark.slow  # half a minute of both cores
def test_every_section_runs_on_a_cpu_and_the_result_says_that_it_is_not_of_a_gpu(tmp_path: Path) -> None:
    done = minutes("--device", "cpu", "--tiny", "--sections", *SECTIONS, "--output", str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    (text,) = tmp_path.glob("gpu_minutes_toy_*.md")
    (plain,) = tmp_path.glob("gpu_minutes_toy_*.json")
    found = json.loads(plain.read_text())
    assert found["toy"]
    assert list(found["sections"]) == list(SECTIONS)
    for name, section in found["sections"].items():
        assert section["rows"], name
        assert f"## {section['title']}" in text.read_text()
        assert json.loads((plain.with_suffix("") / f"{name.replace(' ', '_')}.json").read_text())["rows"], name
    assert "Not a GPU" in text.read_text()
    assert found["sections"]["tests"]["rows"] == [{"note": "not run: these tests need a GPU"}]
    races = found["sections"]["load"]["rows"]
    assert {(r["context"], r["batch"], r["regime"]) for r in races} == {
        (c, b, r) for c in (64, 128) for b in (1, 4) for r in ("low", "medium", "high")
    }


def test_sections_that_were_not_started_are_failures_in_a_result_named_after_what_was_measured(tmp_path: Path) -> None:
    # There is no time for the ceilings: their process is not started, and the other part needs their results.
    given = ["--device", "cpu", "--tiny", "--weight-dtype", "auto", "--sections", "steps", "--minutes", "0.01"]
    assert module.main([*given, "--output", str(tmp_path)]) == 1
    (text,) = tmp_path.glob("gpu_minutes_toy_*_auto.md")
    assert "python -m benchmarks.gpu.minutes --device cpu --tiny --weight-dtype auto`" in text.read_text()
    assert text.read_text().count("**Failed:** its process was not started") == 2
    for shape, weights, end in (("8b", "int8", ""), ("0.6b", "int8", "_0.6b"), ("1.7b", "int4", "_1.7b_int4")):
        args = module._parser().parse_args(["--shape", shape, "--weight-dtype", weights, "--output", str(tmp_path)])
        module._write(args, {}, 0.0)
        assert [p for p in tmp_path.glob(f"gpu_minutes_2*{end}.json") if p.stem.count("_") == 2 + end.count("_")]


def test_the_open_parts_take_no_more_than_the_time_that_a_machine_is_lent_for() -> None:
    assert sum(SECTIONS[name].seconds for name in OPEN) <= 60 * module._parser().parse_args([]).minutes <= 590


def test_a_part_that_fails_keeps_its_error_and_ends_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one process: the part between two others raises."""
    broken = module._Section(place="device:no_such_function", group="device", seconds=5)
    monkeypatch.setattr(module, "SECTIONS", {**SECTIONS, "filters": broken})
    child = ["--child", "ceilings", "filters", "costs", "--into", str(tmp_path), "--seconds", "60"]
    assert module.main(["--device", "cpu", "--tiny", *child]) == 0
    found = {name: json.loads((tmp_path / f"{name}.json").read_text()) for name in ("ceilings", "filters", "costs")}
    assert "no_such_function" in found["filters"]["error"]
    assert found["ceilings"]["rows"]
    assert found["costs"]["rows"]


def test_what_cannot_be_measured_ends_at_once_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "_has_cuda", lambda: False)
    assert module.main(["--output", str(tmp_path)]) == 2
    assert "no CUDA device" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        module.main(["--device", "cpu", "--tiny", "--shape", "0.6b", "--output", str(tmp_path)])
    assert "Drop --tiny, or --shape" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
    scale = replace(TOY, batches=(128,))
    with pytest.raises(ValueError, match="batches 128: structured output is measured with 4 sequences at most"):
        structured(Scene(device=torch.device("cpu"), scale=scale, clock=Clock(60)))


def test_the_options_are_those_of_the_engine_and_of_the_shapes() -> None:
    assert set(module._WEIGHT_DTYPES) == set(get_args(get_type_hints(EngineConfig)["weight_dtype"]))
    assert get_args(WeightDtype) == get_args(get_type_hints(EngineConfig)["weight_dtype"])
    assert set(module._SHAPES) <= set(SHAPES)
    assert scale_of("8b", "auto", tiny=False) == replace(FULL, name="random 8B weights in bfloat16")
    small = scale_of("0.6b", "int8", tiny=False)
    assert (small.config, small.name) == (SHAPES["0.6b"], "random 0.6B weights in bfloat16, quantised to int8")
    assert scale_of("8b", "auto", tiny=True) == TOY


@pytest.mark.parametrize(("weights", "tied"), [("auto", False), ("int8", False), ("fp8_e4m3", True)])
def test_bytes_of_weights_are_those_that_a_forward_reads(weights: WeightDtype, tied: bool) -> None:
    config = replace(TOY.config, tie_word_embeddings=tied)
    scene = Scene(device=torch.device("cpu"), scale=replace(TOY, config=config), clock=Clock(60), weight_dtype=weights)
    subject = Subject(scene)
    table = config.vocab_size * config.hidden_size
    exact = weights == "int8"
    table_bytes = table + 4 * config.vocab_size if exact else 4 * table
    whole = weight_bytes(config, dtype="float32", weight_dtype=weights)
    assert subject.weight_bytes == whole - (0 if tied else table_bytes)
    plain = random_decoder(config, device="cpu", dtype=torch.float32, max_positions=8)
    assert subject.weights == parameters(plain) - (0 if tied else table)
    assert subject.engine.config.weight_dtype == weights


@pytest.mark.parametrize("weights", ON_CPUS)
def test_arithmetic_is_held_against_a_product_of_the_numbers_that_layers_multiply(weights: WeightDtype) -> None:
    report = ceilings(Scene(device=torch.device("cpu"), scale=TOY, clock=Clock(60), weight_dtype=weights))
    assert len(report.rows) == (2 if weights == "auto" else 3)
    assert report.facts["gemm_rate"] / 1e12 == pytest.approx(float(report.rows[-1]["rate"].split()[0]), abs=0.06)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("multiply_int8", "products"),
        ("multiply_int4", "products"),
        ("nvjet_tst_128x64", "products"),
        ("round_rows_int8", "layers"),
        ("_add_rms_norm", "layers"),
        ("attend_tiles", "attention"),
    ],
)
def test_kinds_of_kernels(name: str, kind: str) -> None:
    assert kind_of(name) == kind


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
    models = {name: empty_decoder(c, device="meta", dtype=torch.bfloat16) for name, c in SHAPES.items()}
    assert {name: parameters(model) for name, model in models.items()} == {
        "25m": 25_470_080,
        "0.6b": 596_049_920,
        "1.7b": 1_720_574_976,
        "7b": 7_615_616_512,
        "8b": 8_190_735_360,
        "14b": 14_768_307_200,
        "32b": 32_762_123_264,
    }
