"""Runs with an adapter: its name and its content are a part of the run, and commands name it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import yaml
from safetensors.torch import save_file

import pipeline
from jobs import generate
from pipeline import layout
from pipeline.commands.report import report
from pipeline.commands.run import run_on
from pipeline.commands.verify import verify
from pipeline.config import RunConfig
from pipeline.errors import ConfigError, FingerprintError
from pipeline.prompts.model_files import check_model
from pipeline.storage.open import open_storage
from testing.pipeline.fakes import RealExecutor
from wedlm_core import LLM, SamplingParams
from wedlm_core.errors import WeightsError
from wedlm_core.model.adapter import ADAPTER_FILE, CONFIG_FILE
from wedlm_core.model.checkpoint import expected_tensors, load_config


def write_adapter(folder: Path, model: Path, seed: int = 0) -> Path:
    """An adapter of the query projections."""
    folder.mkdir()
    settings = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "bias": "none", "target_modules": ["q_proj"]}
    (folder / CONFIG_FILE).write_text(json.dumps(settings))
    torch.manual_seed(seed)
    tensors = {}
    for name, where in expected_tensors(load_config(model)).items():
        if name.endswith("q_proj.weight"):
            prefix = f"base_model.model.{name.removesuffix('.weight')}"
            tensors[f"{prefix}.lora_A.weight"] = torch.randn(2, where.shape[1])
            tensors[f"{prefix}.lora_B.weight"] = torch.randn(where.shape[0], 2)
    save_file(tensors, folder / ADAPTER_FILE)
    return folder


@pytest.fixture
def config(qwen3_folder: Path, tmp_path: Path) -> RunConfig:
    pq.write_table(pa.table({"prompt": [f"Count from {i}." for i in range(4)]}), tmp_path / "in.parquet")
    adapter = write_adapter(tmp_path / "poems", qwen3_folder)
    return RunConfig.from_mapping({
        "input": str(tmp_path / "in.parquet"), "output": str(tmp_path / "out"), "sampling": {"max_tokens": 8},
        "model": {"path": str(qwen3_folder), "adapter": str(adapter)},
    })  # fmt: skip


def run(config: RunConfig) -> list[list[int]]:
    run_on(RealExecutor(), config, open_storage(config.output, layout.SCRATCH, {}), lambda progress: None)
    found: list[list[int]] = pipeline.read(config.output).to_arrow()["token_ids"].to_pylist()
    return found


def test_rows_are_those_of_the_adapted_model_and_name_it(config: RunConfig, tmp_path: Path) -> None:
    tokens = run(config)
    params = SamplingParams(max_tokens=8)
    prompts = [f"Count from {i}." for i in range(4)]
    adapted, plain = (LLM(config.model, adapter=own).generate(prompts, params) for own in (config.adapter, None))
    assert tokens == [list(own.token_ids) for own in adapted]
    assert tokens != [list(own.token_ids) for own in plain]
    assert set(pipeline.read(config.output).to_arrow()["model"].to_pylist()) == {f"{config.model} + {config.adapter}"}
    found = verify(config.output, input=config.input, regenerate=4)
    assert found.ok, found.problems
    page = Path(report(config.output, to=str(tmp_path / "report.html"))).read_text(encoding="utf-8")
    assert f"{config.model} + {config.adapter}" in page


def test_another_adapter_or_content_is_another_run(config: RunConfig, tmp_path: Path) -> None:
    run(replace(config, limit=None))
    for other in (None, str(write_adapter(tmp_path / "other", Path(config.model)))):
        with pytest.raises(FingerprintError, match="adapter"):
            run(replace(config, adapter=other))
    assert config.adapter is not None
    tensors = write_adapter(tmp_path / "edited", Path(config.model), seed=1) / ADAPTER_FILE
    (Path(config.adapter) / ADAPTER_FILE).write_bytes(tensors.read_bytes())
    with pytest.raises(FingerprintError, match="model"):
        run(config)
    found = verify(config.output, input=config.input, regenerate=4)
    assert not found.ok
    assert any("poems" in note and "are not those of the run" in note for note in found.notes)


def test_an_adapter_that_does_not_fit_ends_the_run_before_it_begins(config: RunConfig) -> None:
    assert config.adapter is not None
    settings = json.loads((Path(config.adapter) / CONFIG_FILE).read_text())
    (Path(config.adapter) / CONFIG_FILE).write_text(json.dumps(settings | {"r": 3}))
    with pytest.raises(WeightsError, match="adapter="):
        check_model(config)
    with pytest.raises(WeightsError, match=r"adapter='no-such/x/y'.*no such folder"):
        check_model(replace(config, adapter="no-such/x/y"))
    assert not Path(config.output).exists()


def test_a_model_is_a_name_or_a_mapping_of_path_and_adapter(config: RunConfig, tmp_path: Path) -> None:
    both: dict[str, Any] = {"model": {"path": "m", "adapter": "a"}}
    assert replace(config, adapter=None, **both).adapter == "a"
    bad: list[dict[str, Any]] = [{"model": {"path": "m"}}, {"model": {"path": "m", "adapters": "a"}}, both]
    for given in bad:  # it has an adapter already
        with pytest.raises(ConfigError, match="model="):
            replace(config, **given)
    job = tmp_path / "job.yaml"
    job.write_text(yaml.safe_dump({"input": config.input, "output": config.output, "model": config.model}))
    assert generate.main(["--config", str(job), "--adapter", str(config.adapter), "--preview", "1"]) == 0
