"""A model's memory is as predicted from its configuration."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from wedlm_core.config import EngineConfig
from wedlm_core.engine import Engine
from wedlm_core.kernels.cpu.panel_products import numbers_here, numeric_kind
from wedlm_core.kv.pool import KVPool
from wedlm_core.model.checkpoint import load_config
from wedlm_core.model.decoder import Decoder
from wedlm_core.model.decoder_team import DecoderTeam
from wedlm_core.model.memory import kv_bytes_per_token, weight_bytes
from wedlm_core.model.weights import load_model
from wedlm_core.tokenizer import Tokenizer

FOLDERS = pytest.mark.parametrize("fixture", ["qwen3_folder", "qwen25_folder"])


def held(model: Decoder) -> int:
    """Bytes of all tensors of the model but the rotary tables; those that share memory count once."""
    tensors = [*model.parameters(), *(b for name, b in model.named_buffers() if name not in ("cos", "sin"))]
    return sum({t.data_ptr(): t.nbytes for t in tensors}.values())


@FOLDERS
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("weight_dtype", ["auto", "int8", "int4", "fp8_e4m3"])
@pytest.mark.parametrize("head", [True, False])
def test_weights_take_what_is_predicted(
    fixture: str, dtype: str, weight_dtype: str, head: bool, request: pytest.FixtureRequest
) -> None:
    folder: Path = request.getfixturevalue(fixture)
    model = load_model(folder, dtype=getattr(torch, dtype), weight_dtype=weight_dtype, quantised_head=head)
    predicted = weight_bytes(load_config(folder), dtype=dtype, weight_dtype=weight_dtype, quantised_head=head)
    assert held(model) == predicted


@FOLDERS
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("weight_dtype", ["auto", "int8"])
def test_an_engine_on_a_cpu_holds_each_weight_once(
    fixture: str, dtype: str, weight_dtype: str, request: pytest.FixtureRequest
) -> None:
    folder: Path = request.getfixturevalue(fixture)
    model = load_model(folder, dtype=getattr(torch, dtype), weight_dtype=weight_dtype, packed=True)
    predicted = weight_bytes(model.config, dtype=dtype, weight_dtype=weight_dtype)
    engine = Engine(model, Tokenizer.load(folder), EngineConfig(max_num_seqs=2))
    decoder = engine._runner.model_runner._team
    if dtype == "bfloat16" and weight_dtype == "auto" and dtype not in map(numeric_kind, numbers_here()):
        assert decoder is None, "nothing is packed"
        assert held(model) == predicted
        return
    assert isinstance(decoder, DecoderTeam)
    packed = [one for layer in decoder._packed for one in layer] + [decoder._head]
    matrices = sum(one.outputs * one.inputs * one.data.element_size() for one in packed)
    scales = sum(4 * one.outputs for one in packed if one.scale.numel())
    assert held(model) + matrices + scales == predicted


def test_keys_and_values_take_what_is_predicted(qwen3_folder: Path) -> None:
    config = load_config(qwen3_folder)
    kinds = (
        (torch.float32, "float32"),
        (torch.bfloat16, "bfloat16"),
        (torch.float8_e4m3fn, "fp8_e4m3"),
        (torch.int8, "int8"),
    )
    for kv_dtype, name in kinds:
        page = KVPool.bytes_per_page(config, 16, kv_dtype)
        assert kv_bytes_per_token(config, numbers=name) * 16 == page
    model, tokenizer = load_model(qwen3_folder, dtype=torch.bfloat16), Tokenizer.load(qwen3_folder)
    for name in ("auto", "float32", "int8"):
        engine_config = EngineConfig(kv_cache_dtype=name, num_pages=2)  # type: ignore[arg-type]
        pool = Engine(model, tokenizer, engine_config)._runner.pool
        held = sum(one.numel() * one.element_size() for one in (*pool.k, *pool.v, *pool.key_scales, *pool.value_scales))
        assert kv_bytes_per_token(config, numbers=engine_config.kv_numbers("bfloat16")) * pool.num_entries == held
