"""Checkpoints: round trips, and one error that lists everything that is wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from testing.engine.models import random_decoder, save_sharded, write_tokenizer
from wedlm_core.config import ModelConfig, YarnScaling
from wedlm_core.errors import ConfigError, WeightsError
from wedlm_core.model.checkpoint import expected_tensors
from wedlm_core.model.decoder import Decoder
from wedlm_core.model.weights import load_config, load_model, save_model


def assert_equal_models(a: Decoder, b: Decoder) -> None:
    ours, theirs = dict(a.named_parameters()), dict(b.named_parameters())
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.parametrize("save", [save_model, *(partial(save_sharded, shard_bytes=most) for most in (30_000, 1))])
@pytest.mark.parametrize("qwen3", [True, False])
def test_saved_models_come_back_bit_for_bit(tmp_path: Path, qwen3: bool, save: Callable[[Decoder, Path], None]) -> None:
    model = random_decoder(qwen3=qwen3, seed=0)
    save(model, tmp_path / "m")
    back = load_model(tmp_path / "m")
    assert_equal_models(back, model)
    assert back.config == model.config
    assert (back.lm_head.weight is back.embed.weight) == model.config.tie_word_embeddings
    assert not any(p.requires_grad for p in back.parameters())
    assert not list(tmp_path.glob(".*")), "a temporary folder was left"
    plain = tmp_path / "any file"
    plain.touch()
    assert {p.stat().st_mode for p in (tmp_path / "m").iterdir()} == {plain.stat().st_mode}


def test_saving_over_another_layout_leaves_nothing_of_it(tmp_path: Path) -> None:
    first, second = random_decoder(qwen3=True, seed=0), random_decoder(qwen3=True, seed=1)
    write_tokenizer(tmp_path)
    for model in (first, second):
        save_sharded(random_decoder(qwen3=True, seed=2), tmp_path, 30_000)
        save_model(model, tmp_path)
        assert_equal_models(load_model(tmp_path), model)
    assert (tmp_path / "tokenizer.json").is_file()


def test_bfloat16_is_stored_as_such(tmp_path: Path) -> None:
    save_model(random_decoder(qwen3=True, seed=0).bfloat16(), tmp_path / "m")
    stored = load_file(tmp_path / "m" / "model.safetensors")
    assert {tensor.dtype for tensor in stored.values()} == {torch.bfloat16}


def test_every_parameter_row_is_filled_exactly_once() -> None:
    for qwen3 in (True, False):
        model = random_decoder(qwen3=qwen3, seed=0)
        covered = {name: torch.zeros(p.shape[0], dtype=torch.int64) for name, p in model.named_parameters()}
        for tensor in expected_tensors(model.config).values():
            covered[tensor.parameter][tensor.start : tensor.start + tensor.shape[0]] += 1
        assert all(bool((rows == 1).all()) for rows in covered.values())


@pytest.fixture
def stale(tmp_path: Path) -> Path:
    save_model(random_decoder(qwen3=True, seed=0), tmp_path / "m")
    return tmp_path / "m"


def edit(folder: Path, **changes: torch.Tensor | None) -> None:
    """Replace (or with None remove) tensors; ``__`` stands for a dot in a name."""
    tensors = load_file(folder / "model.safetensors")
    for name, value in changes.items():
        tensors.pop(name.replace("__", "."), None)
        if value is not None:
            tensors[name.replace("__", ".")] = value
    save_file(tensors, folder / "model.safetensors")


def test_one_error_lists_all_missing_misshapen_and_unexpected_tensors(stale: Path) -> None:
    edit(
        stale,
        model__layers__1__self_attn__k_proj__weight=None,
        lm_head__weight=None,
        model__norm__weight=torch.ones(31),
        model__layers__0__mlp__gate__weight=torch.ones(3),
    )
    with pytest.raises(WeightsError) as caught:
        load_model(stale)
    for line in (
        "missing model.layers.1.self_attn.k_proj.weight",
        "missing lm_head.weight",
        "misshapen model.norm.weight: [31], needs [32]",
        "unexpected model.layers.0.mlp.gate.weight",
    ):
        assert line in str(caught.value)


def test_integer_tensors_are_refused(stale: Path) -> None:
    edit(stale, model__norm__weight=torch.ones(32, dtype=torch.int8))
    with pytest.raises(WeightsError, match=r"wrong kind model\.norm\.weight"):
        load_model(stale)


@pytest.mark.parametrize("weights", ["auto", "int8"])
def test_a_stored_tied_head_must_be_the_embedding(tmp_path: Path, weights: str) -> None:
    """Twice a row has the same bytes in int8: only its scale differs."""
    model = random_decoder(qwen3=False, seed=0)
    save_model(model, tmp_path / "m")
    edit(tmp_path / "m", lm_head__weight=model.embed.weight.clone())
    load_model(tmp_path / "m", weight_dtype=weights)
    edit(tmp_path / "m", lm_head__weight=model.embed.weight * 2)
    with pytest.raises(WeightsError, match="ties it to"):
        load_model(tmp_path / "m", weight_dtype=weights)


@pytest.mark.parametrize("weights", ["int8", "fp8_e4m3"])
def test_a_decoder_without_its_wide_weights_is_not_saved(qwen3_folder: Path, tmp_path: Path, weights: str) -> None:
    model = load_model(qwen3_folder, weight_dtype=weights)
    with pytest.raises(ConfigError, match="a decoder with all weights as they are stored; it was quantised"):
        save_model(model, tmp_path / "m")
    assert not list(tmp_path.iterdir())


def test_an_index_that_points_to_the_wrong_shard_is_an_error(tmp_path: Path) -> None:
    save_sharded(random_decoder(qwen3=True, seed=0), tmp_path / "m", 30_000)
    path = tmp_path / "m" / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    index["weight_map"]["model.norm.weight"] = index["weight_map"]["model.embed_tokens.weight"]
    path.write_text(json.dumps(index))
    with pytest.raises(WeightsError, match=r"missing model\.norm\.weight"):
        load_model(tmp_path / "m")


def test_mask_and_end_ids_are_found_where_checkpoints_keep_them(tmp_path: Path) -> None:
    config = replace(random_decoder(qwen3=True, seed=0).config, mask_token_id=None)
    write_tokenizer(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(config.to_hf()))
    assert load_config(tmp_path).mask_token_id is None, "engines ask the tokenizer"
    (tmp_path / "generation_config.json").write_text(json.dumps({"mask_token_id": 9}))
    assert load_config(tmp_path).mask_token_id == 9
    assert load_config(tmp_path).eos_token_ids == (1,)
    (tmp_path / "config.json").write_text(json.dumps(replace(config, mask_token_id=7).to_hf()))
    assert load_config(tmp_path).mask_token_id == 7


SIZE = st.integers(1, 64)


@given(
    heads=st.tuples(SIZE, st.integers(1, 8)),
    half=SIZE,
    rest=st.tuples(SIZE, SIZE, SIZE, SIZE, SIZE),
    flags=st.tuples(st.booleans(), st.booleans(), st.booleans()),
    theta=st.floats(1.5, 1e7),
    yarn=st.none() | st.builds(
        YarnScaling, factor=st.floats(1, 64), original_max_position_embeddings=st.integers(1, 10**6),
        attention_factor=st.none() | st.floats(0.5, 2), beta_fast=st.floats(1, 64), truncate=st.booleans(),
    ),
    ids=st.tuples(st.none() | st.just(0), st.lists(st.integers(0, 99), unique=True, max_size=3)),
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_configurations_survive_the_round_trip(heads, half, rest, flags, theta, yarn, ids) -> None:  # type: ignore[no-untyped-def]
    config = ModelConfig(
        vocab_size=rest[0], hidden_size=rest[1], intermediate_size=rest[2], num_hidden_layers=rest[3],
        num_attention_heads=heads[0] * heads[1], num_key_value_heads=heads[0], head_dim=2 * half,
        max_position_embeddings=rest[4], rope_theta=theta, rope_scaling=yarn, attention_bias=flags[0],
        qk_norm=flags[1], tie_word_embeddings=flags[2], mask_token_id=ids[0], eos_token_ids=tuple(ids[1]),
    )  # fmt: skip
    assert ModelConfig.from_hf(json.loads(json.dumps(config.to_hf()))) == config
