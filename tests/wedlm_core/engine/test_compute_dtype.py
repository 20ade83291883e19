"""When bfloat16 weights are computed with in float32 kernels, and the sentence where they are not."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch

from wedlm_core.config import EngineConfig
from wedlm_core.engine.compute_dtype import compute_dtype, takes_panels
from wedlm_core.model.weights import load_model

BFLOAT16, FLOAT32 = torch.bfloat16, torch.float32
OWN = "wedlm_core.model.decoder_team.why_no_team"


def test_only_bfloat16_on_a_cpu_that_has_it_is_changed(qwen3_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OWN, lambda model: None)
    narrow = load_model(qwen3_folder, dtype=BFLOAT16)
    assert compute_dtype(narrow, EngineConfig()) == FLOAT32
    assert compute_dtype(load_model(qwen3_folder, dtype=FLOAT32), EngineConfig()) == FLOAT32
    assert compute_dtype(load_model(qwen3_folder, dtype=torch.float16), EngineConfig()) == torch.float16


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (EngineConfig(), "the test says so"),
        (EngineConfig(attention="sdpa"), "sdpa"),
        (EngineConfig(kv_cache_dtype="fp8_e4m3"), "kv_cache_dtype"),
        (EngineConfig(weight_dtype="fp8_e4m3"), "8-bit floats"),
    ],
)
def test_where_it_is_slow_a_sentence_says_why(
    qwen3_folder: Path, config: EngineConfig, reason: str, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    monkeypatch.setattr(OWN, lambda model: "the test says so")
    with caplog.at_level(logging.WARNING):
        assert compute_dtype(load_model(qwen3_folder, dtype=BFLOAT16), config) == BFLOAT16
    assert reason in caplog.text
    assert "float32" in caplog.text


@pytest.mark.parametrize(
    ("wanted", "dtype", "device"),
    [
        (EngineConfig(attention="sdpa"), FLOAT32, "cpu"),
        (EngineConfig(kv_cache_dtype="fp8_e4m3"), FLOAT32, "cpu"),
        (EngineConfig(weight_dtype="fp8_e4m3"), FLOAT32, "cpu"),
        (EngineConfig(weight_dtype="int4"), FLOAT32, "cpu"),
        (EngineConfig(), torch.float16, "cpu"),
        (EngineConfig(), FLOAT32, "cuda"),
    ],
)
def test_weights_are_packed_for_engines_that_take_them_so(
    wanted: EngineConfig, dtype: torch.dtype, device: str
) -> None:
    assert not takes_panels(wanted, torch.device(device), dtype)
    for config in (EngineConfig(), EngineConfig(weight_dtype="int8"), EngineConfig(kv_cache_dtype="bfloat16")):
        assert takes_panels(config, torch.device("cpu"), FLOAT32)
