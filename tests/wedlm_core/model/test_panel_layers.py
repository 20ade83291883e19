"""A model packed while it is read equals a model packed afterwards, bit for bit."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from testing.engine.engines import requests_of, run
from testing.engine.hidden_rows import TARGET_PROMPTS
from testing.engine.models import random_decoder, write_tokenizer
from wedlm_core import LLM
from wedlm_core.config import EngineConfig
from wedlm_core.engine import Engine
from wedlm_core.errors import ConfigError, WeightsError
from wedlm_core.kernels.cpu.panel_products import numbers_here, numeric_kind
from wedlm_core.model import decoder_team
from wedlm_core.model.decoder import Decoder
from wedlm_core.model.panel_layers import PanelEmbedding, PanelLinear
from wedlm_core.model.smoothing import Smoothing
from wedlm_core.model.weights import load_config, load_model, save_model
from wedlm_core.tokenizer import Tokenizer
from wedlm_core.types import SamplingParams

KINDS = set(map(numeric_kind, numbers_here()))
HAS_BFLOAT16 = "bfloat16" in KINDS and not torch.cpu._is_amx_tile_supported()
NARROW = [pytest.param("float32", "int8")] if KINDS & {"int8", "int16"} else []
TABLES = [("float32", "auto"), *([("bfloat16", "auto")] if HAS_BFLOAT16 else []), *NARROW]
PARAMS = SamplingParams(max_tokens=12, window_size=4, ignore_eos=True, temperature=1, logprobs=True)


def is_packed(model: Decoder) -> bool:
    return isinstance(model.lm_head, PanelLinear)


def tokens_of(model: Decoder, folder: Path, weights: str, quantised_head: bool) -> list[tuple[object, ...]]:
    config = EngineConfig(weight_dtype=weights, quantised_head=quantised_head)  # type: ignore[arg-type]
    engine = Engine(model, Tokenizer.load(folder), config)
    prompts = [TARGET_PROMPTS[n] for n in (65, 1, 16, 5)]
    return [(one.token_ids, one.logprobs) for one in run(engine, requests_of(prompts, PARAMS), at_once=4)]


@pytest.mark.sweep(8)
@pytest.mark.parametrize("head", [True, False])
@pytest.mark.parametrize(("dtype", "weights"), TABLES)
@pytest.mark.parametrize("qwen3", [True, False])
@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16], ids=str)
def test_it_computes_what_a_model_computes_that_is_packed_afterwards(
    tmp_path: Path, stored: torch.dtype, qwen3: bool, dtype: str, weights: str, head: bool
) -> None:
    """Tied and untied, with and without biases and norms of heads."""
    save_model(random_decoder(qwen3=qwen3, seed=3).to(stored), tmp_path)
    write_tokenizer(tmp_path)

    def found(packed: bool) -> list[tuple[object, ...]]:
        model = load_model(
            tmp_path, dtype=getattr(torch, dtype), weight_dtype=weights, quantised_head=head, max_positions=700,
            packed=packed,
        )  # fmt: skip
        assert is_packed(model) == packed
        assert isinstance(model.embed, PanelEmbedding) == (packed and not qwen3)
        return tokens_of(model, tmp_path, weights, head)

    assert found(True) == found(False)


@pytest.mark.skipif(not NARROW, reason="no kernel of this CPU multiplies int8")
def test_smoothing_is_folded_before_weights_are_packed(qwen3_folder: Path) -> None:
    config = load_config(qwen3_folder)
    exponents = {
        "layers.0.input": torch.arange(config.hidden_size, dtype=torch.int8) % 5 - 2,
        "head": torch.arange(config.hidden_size, dtype=torch.int8) % 3 - 1,
    }
    found = []
    for packed in (False, True):
        smoothing = Smoothing(config, exponents)
        model = load_model(qwen3_folder, weight_dtype="int8", max_positions=700, smoothing=smoothing, packed=packed)
        found.append(tokens_of(model, qwen3_folder, "int8", True))
    assert found[0] == found[1]


def test_other_layers_stay_as_they_are(qwen25_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not is_packed(load_model(qwen25_folder, weight_dtype="int4", packed=True))
    assert not is_packed(load_model(qwen25_folder, dtype=torch.float16, packed=True))
    monkeypatch.setattr(decoder_team, "why_no_team", lambda model: "the test says so")
    model = load_model(qwen25_folder, weight_dtype="int8", packed=True)
    assert not is_packed(model)
    assert int(model.lm_head.weight.count_nonzero())


def test_it_is_for_engines_alone(qwen25_folder: Path, tmp_path: Path) -> None:
    model = load_model(qwen25_folder, packed=True, max_positions=700)
    ids = torch.zeros(1, dtype=torch.int64)
    for use in (
        lambda: model(ids, ids, lambda layer, q, k, v: q),
        lambda: model.logits(torch.zeros(1, model.config.hidden_size)),
    ):
        with pytest.raises(ConfigError, match="packed for an engine"):
            use()
    with pytest.raises(ConfigError, match="a decoder with all weights as they are stored"):
        save_model(model, tmp_path / "copy")
    with pytest.raises(ConfigError, match="packed for an engine"):
        Engine(model, Tokenizer.load(qwen25_folder), EngineConfig(attention="sdpa", batch_invariant=False))
    first = tokens_of(model, qwen25_folder, "auto", True)
    assert tokens_of(model, qwen25_folder, "auto", True) == first, "engines share the panels"


@pytest.mark.parametrize("weights", ["auto", *(["int8"] if NARROW else [])])
def test_a_stored_tied_head_must_be_the_packed_embedding(qwen25_folder: Path, tmp_path: Path, weights: str) -> None:
    for file in qwen25_folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    tensors = load_file(tmp_path / "model.safetensors")
    head = tensors["model.embed_tokens.weight"].clone()
    save_file(tensors | {"lm_head.weight": head}, tmp_path / "model.safetensors")
    assert is_packed(load_model(tmp_path, weight_dtype=weights, packed=True))
    head[-1, 3] += 1
    save_file(tensors | {"lm_head.weight": head}, tmp_path / "model.safetensors")
    with pytest.raises(WeightsError, match="differs from the embedding"):
        load_model(tmp_path, weight_dtype=weights, packed=True)


def test_an_llm_packs_where_its_engine_takes_panels(qwen25_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = []

    def noted(*arguments: object, **named: object) -> Decoder:
        loaded.append(load_model(*arguments, **named))  # type: ignore[arg-type]
        return loaded[-1]

    monkeypatch.setattr("wedlm_core.llm.load_model", noted)
    fast = LLM(str(qwen25_folder))
    LLM(str(qwen25_folder), attention="sdpa")
    monkeypatch.setattr("wedlm_core.llm.takes_panels", lambda *_: False)
    plain = LLM(str(qwen25_folder))
    assert [is_packed(model) for model in loaded] == [True, False, False]
    assert repr(fast) == repr(plain), "with the same number of parameters"
    texts = [[one.text for one in llm.generate(["The quick", "Count from"], PARAMS)] for llm in (fast, plain)]
    assert texts[0] == texts[1]
