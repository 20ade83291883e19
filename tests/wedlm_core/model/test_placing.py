"""Weights are copied in pieces: any number of workers and piece size gives the same values, in bounded memory."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from testing.engine.models import random_decoder, save_sharded, wide_model
from testing.repository import ROOT
from wedlm_core.model import placing
from wedlm_core.model.checkpoint import expected_tensors
from wedlm_core.model.placing import empty_decoder
from wedlm_core.model.weights import load_model

SLACK = 24 << 20
"""Python, threads and the allocator's rounding, in addition to loading."""


@pytest.mark.sweep(6)
@pytest.mark.parametrize("piece_bytes", [1, 1000, 1 << 20])
@pytest.mark.parametrize("workers", [1, 3, 16])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_row_is_the_files_whatever_the_pieces_and_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, workers: int, piece_bytes: int
) -> None:
    save_sharded(random_decoder(qwen3=False, seed=5), tmp_path, 30_000)
    monkeypatch.setattr(placing, "PIECE_BYTES", piece_bytes)
    model = load_model(tmp_path, dtype=dtype, workers=workers)
    expected, seen = expected_tensors(model.config), 0
    for path in tmp_path.glob("*.safetensors"):
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118
                tensor = expected[name]
                rows = model.get_parameter(tensor.parameter)[tensor.start : tensor.start + tensor.shape[0]]
                assert torch.equal(rows, file.get_tensor(name).to(dtype))
                seen += 1
    assert seen == len(expected)


def test_an_empty_decoder_is_on_its_device_and_its_weights_stay_tied() -> None:
    for qwen3 in (True, False):
        config = random_decoder(qwen3=qwen3, seed=0).config
        model = empty_decoder(config, device="cpu", dtype=torch.bfloat16)
        assert (model.lm_head.weight is model.embed.weight) == config.tie_word_embeddings
        assert {(p.device.type, p.dtype, p.requires_grad) for p in model.parameters()} == {
            ("cpu", torch.bfloat16, False)
        }
        model.set_max_positions(8)
        assert model.cos.device.type == "cpu"
        assert model.cos.shape[0] == 8


def test_loading_allocates_the_model_and_nothing_else(tmp_path: Path) -> None:
    wide_model(tmp_path / "small", 64, 1)
    wide_model(tmp_path / "large", 100_000, 4)  # the embedding has 100 MB, more than the bound allows beside the model
    command = [sys.executable, "-m", "testing.engine.loading_child", str(tmp_path / "small"), str(tmp_path / "large")]
    done = subprocess.run([*command, "4"], cwd=ROOT, capture_output=True, text=True, check=True, timeout=120)
    found = json.loads(done.stdout)
    assert found["model"] > 400e6
    # On the CPU a piece is a view of the mapped file, so nothing but the model is allocated.
    assert found["grown"] <= found["model"] + SLACK
