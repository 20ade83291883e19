"""Weights in 4 bits: rounding, products, loading in pieces, and the refusal on CPUs."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from pipeline.worker.load_engine import check_attention
from wedlm_core import LLM
from wedlm_core.config import EngineConfig
from wedlm_core.engine import Engine
from wedlm_core.errors import ConfigError
from wedlm_core.model import placing
from wedlm_core.model.checkpoint import load_config
from wedlm_core.model.int4 import Int4Linear, expanded, rounded_to_nibbles
from wedlm_core.model.int8 import Int8Embedding, Int8Linear
from wedlm_core.model.quantised import quantise
from wedlm_core.model.weights import load_model
from wedlm_core.tokenizer import Tokenizer


def some_linear(seed: int, *, inputs: int = 64, outputs: int = 40, bias: bool = True) -> nn.Linear:
    torch.manual_seed(seed)
    linear = nn.Linear(inputs, outputs, bias=bias).requires_grad_(False)
    linear.weight.mul_(torch.logspace(-3, 2, outputs)[:, None] * torch.logspace(-1, 1, inputs))
    return linear


@given(seed=st.integers(0, 2**31), groups=st.integers(1, 5), zero=st.booleans())
@settings(max_examples=30, deadline=None)
def test_every_weight_is_an_integer_of_8_bits_times_the_scale_of_its_output(seed: int, groups: int, zero: bool) -> None:
    weight_OI = some_linear(seed, inputs=32 * groups).weight
    if zero:
        weight_OI[3] = 0
    nibble, multiplier, scale_O = rounded_to_nibbles(weight_OI)
    assert (nibble.shape, multiplier.shape) == ((40, 16 * groups), (40, groups))
    whole_OI = expanded(nibble, multiplier)
    assert whole_OI.dtype == torch.int8
    assert int(whole_OI.abs().max()) <= 126
    assert bool((multiplier >= 1).all())
    assert bool((multiplier <= 18).all())
    error_O = (whole_OI.float() * scale_O[:, None] - weight_OI).square().sum(dim=1)
    assert bool((error_O <= 0.04 * weight_OI.square().sum(dim=1)).all())


def test_no_share_of_the_largest_weight_rounds_worse_than_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from wedlm_core.model import int4

    weight_OI = some_linear(5, inputs=128).weight

    def error() -> torch.Tensor:
        nibble, multiplier, scale_O = rounded_to_nibbles(weight_OI)
        return (expanded(nibble, multiplier).float() * scale_O[:, None] - weight_OI).square().sum(dim=1)

    best = error()
    monkeypatch.setattr(int4, "_SHARES", (1.0,))
    assert bool((best <= error() * (1 + 1e-5)).all())
    assert float(best.sum()) < 0.95 * float(error().sum())


@given(rows=st.integers(1, 9), groups=st.integers(1, 4), seed=st.integers(0, 2**31), bias=st.booleans())
@settings(max_examples=30, deadline=None)
def test_the_product_gives_the_bits_of_8_bits(rows: int, groups: int, seed: int, bias: bool) -> None:
    layer = Int4Linear.of(some_linear(seed, inputs=32 * groups, bias=bias))
    x_RI = torch.randn(rows, 32 * groups) * torch.logspace(-2, 2, rows)[:, None]
    found = layer(x_RI)
    assert torch.equal(layer(x_RI[-1:]), found[-1:]), "a row alone"
    eight = Int8Linear(40, 32 * groups, layer.bias)
    eight.weight, eight.scale_O = expanded(layer.weight, layer.multiplier_OG), layer.scale_O
    assert torch.equal(eight(x_RI), found)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_row_that_is_no_number_stays_none(value: float) -> None:
    layer = Int4Linear.of(some_linear(3))
    good_RI = torch.randn(3, 64)
    bad_RI = good_RI.clone()
    bad_RI[1, 17] = value
    found = layer(bad_RI)
    assert not found[1].isfinite().any()
    assert torch.equal(found[::2], layer(good_RI)[::2])


def test_loading_in_pieces_gives_the_bytes_of_rounding_a_loaded_model(
    qwen3_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placing, "PIECE_BYTES", 1000)
    loaded = load_model(qwen3_folder, weight_dtype="int4")
    after = dict(quantise(load_model(qwen3_folder), "int4").named_buffers())
    found = dict(loaded.named_buffers())
    assert found.keys() == after.keys()
    assert all(torch.equal(found[name], value) for name, value in after.items())
    assert isinstance(loaded.layers[0].qkv_proj, Int4Linear)
    assert isinstance(loaded.lm_head, Int8Linear)
    assert isinstance(loaded.embed, Int8Embedding)
    layers = [one for one in loaded.modules() if isinstance(one, Int4Linear)]
    wide = sum(one.in_features * one.out_features for one in load_model(qwen3_folder).layers.modules()
               if isinstance(one, nn.Linear))  # fmt: skip
    assert sum(b.nbytes for one in layers for b in (one.weight, one.multiplier_OG)) == wide * 17 // 32


@pytest.mark.parametrize("field", ["hidden_size", "intermediate_size", "head_dim"])
def test_a_model_whose_layers_cannot_be_grouped_is_refused_before_its_weights_are_read(
    field: str, qwen3_folder: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(qwen3_folder, folder)
    raw = json.loads((folder / "config.json").read_text()) | {"num_attention_heads": 1, "num_key_value_heads": 1}
    (folder / "config.json").write_text(json.dumps(raw | {"head_dim": 32} | {field: 40}))
    for file in folder.glob("*.safetensors"):
        file.write_bytes(b"not weights")
    with pytest.raises(ConfigError, match="a multiple of 32; this model has one of 40"):
        load_config(folder).check_weight_dtype("int4")


def test_engines_on_a_cpu_refuse_them_and_name_int8(qwen3_folder: Path) -> None:
    rule = r'weight_dtype=\'int4\': it runs on GPUs only. Use "int8" on a CPU.'
    with pytest.raises(ConfigError, match=rule):
        LLM(str(qwen3_folder), weight_dtype="int4", device="cpu")
    model, config = load_model(qwen3_folder, weight_dtype="int4"), EngineConfig(weight_dtype="int4")
    with pytest.raises(ConfigError, match=rule):
        Engine(model, Tokenizer.load(qwen3_folder), config)
    with pytest.raises(ConfigError, match=rule):
        check_attention(config, on_cpu=True)
