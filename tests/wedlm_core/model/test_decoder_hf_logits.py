"""Logits equal those of transformers' Qwen models on the same checkpoint folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers  # whose models are imported when they are first used
from safetensors.torch import load_file, save_file

from testing.engine.oracle import causal_logits
from wedlm_core.errors import WeightsError
from wedlm_core.model.weights import load_model

SIZES: dict[str, Any] = {
    "vocab_size": 96, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "bos_token_id": None, "eos_token_id": 5,
}  # fmt: skip
PLAIN = {"rope_type": "default", "rope_theta": 5_000.0}
YARN = {"rope_type": "yarn", "rope_theta": 5_000.0, "factor": 4.0, "original_max_position_embeddings": 16}


def write_theirs(folder: Path, kind: str, shard: str = "1GB", **settings: Any) -> torch.nn.Module:
    config_class, model_class = {
        "qwen2": (transformers.Qwen2Config, transformers.Qwen2ForCausalLM),
        "qwen3": (transformers.Qwen3Config, transformers.Qwen3ForCausalLM),
    }[kind]
    torch.manual_seed(7)
    model = model_class(config_class(**{**SIZES, **settings})).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.uniform_(0.5, 1.5) if "norm" in name else parameter.normal_(std=0.2)
            if name.endswith("o_proj.bias"):
                parameter.zero_()
    model.save_pretrained(folder, max_shard_size=shard)
    return model


def assert_same_logits(folder: Path, theirs: torch.nn.Module, atol: float = 1e-4) -> None:
    ids = torch.randint(0, SIZES["vocab_size"], (50,), generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        expected = theirs(ids[None]).logits[0]
    ours = causal_logits(load_model(folder), ids.tolist(), range(50))
    assert expected.std() > 0.1
    torch.testing.assert_close(ours, expected, atol=atol, rtol=0)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("rope", [PLAIN, YARN])
@pytest.mark.parametrize("kind", ["qwen2", "qwen3"])
def test_logits_of_plain_qwen_checkpoints_equal_those_of_transformers(
    tmp_path: Path, kind: str, rope: dict[str, Any], tied: bool
) -> None:
    extra = {"head_dim": 16} if kind == "qwen3" else {}
    theirs = write_theirs(tmp_path, kind, rope_parameters=dict(rope), tie_word_embeddings=tied, **extra)
    assert_same_logits(tmp_path, theirs)


@pytest.mark.parametrize("tied", [False, True])
def test_logits_of_a_sharded_checkpoint_equal_those_of_transformers(tmp_path: Path, tied: bool) -> None:
    theirs = write_theirs(tmp_path, "qwen3", shard="20KB", rope_parameters=PLAIN, head_dim=8, tie_word_embeddings=tied)
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    assert_same_logits(tmp_path, theirs)


def drop(folder: Path, suffix: str) -> None:
    tensors = load_file(folder / "model.safetensors")
    save_file({k: v for k, v in tensors.items() if not k.endswith(suffix)}, folder / "model.safetensors")


def set_config(folder: Path, **values: Any) -> None:
    raw = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**raw, **values}))


def test_bias_and_norm_are_chosen_independently(tmp_path: Path) -> None:
    both = write_theirs(tmp_path / "both", "qwen3", rope_parameters=PLAIN, head_dim=8, attention_bias=True)
    drop(tmp_path / "both", "o_proj.bias")  # zero there; WeDLM has q, k and v biases only
    set_config(tmp_path / "both", model_type="wedlm", qk_norm=True, attention_bias=True)
    assert_same_logits(tmp_path / "both", both)

    neither = write_theirs(tmp_path / "neither", "qwen2", rope_parameters=PLAIN)
    with torch.no_grad():
        for name, parameter in neither.named_parameters():
            if name.endswith("bias"):
                parameter.zero_()
    drop(tmp_path / "neither", ".bias")
    set_config(tmp_path / "neither", model_type="wedlm", qk_norm=False, attention_bias=False)
    assert_same_logits(tmp_path / "neither", neither)


def test_bfloat16_loading_rounds_each_weight_once(tmp_path: Path) -> None:
    write_theirs(tmp_path, "qwen3", rope_parameters=PLAIN, head_dim=8)
    wide, narrow = load_model(tmp_path), load_model(tmp_path, dtype=torch.bfloat16)
    for name, parameter in narrow.named_parameters():
        assert parameter.dtype == torch.bfloat16
        assert torch.equal(parameter, wide.get_parameter(name).bfloat16())


def test_bias_of_the_output_projection_is_named_not_ignored(tmp_path: Path) -> None:
    write_theirs(tmp_path, "qwen3", rope_parameters=PLAIN, head_dim=8, attention_bias=True)
    with pytest.raises(WeightsError, match=r"unexpected model\.layers\.0\.self_attn\.o_proj\.bias"):
        load_model(tmp_path)
