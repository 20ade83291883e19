"""The 7B and 8B configurations equal transformers' Qwen2.5 and Qwen3: all tensor shapes and rotary tables."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers  # whose models are imported when they are first used

from testing.engine.published_models import WEDLM_7B, WEDLM_8B
from wedlm_core.config import ModelConfig
from wedlm_core.model.checkpoint import expected_tensors
from wedlm_core.model.decoder import Decoder
from wedlm_core.model.rotary import rope_tables

SIZES: dict[str, Any] = {
    "7b": {"vocab_size": 152064, "hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28,
           "num_attention_heads": 28, "num_key_value_heads": 4},
    "8b": {"vocab_size": 151936, "hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36,
           "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128},
}  # fmt: skip
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
LONG = 131072


def theirs(size: str, **settings: Any) -> transformers.PreTrainedConfig:
    config_class = {"7b": transformers.Qwen2Config, "8b": transformers.Qwen3Config}[size]
    rope = {"rope_type": "default", "rope_theta": 1e6, **settings.pop("rope", {})}
    given = {"max_position_embeddings": 32768, "tie_word_embeddings": False, **SIZES[size], **settings}
    return config_class(**given, rope_parameters=rope)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("size", ["7b", "8b"])
def test_every_tensor_of_the_published_class_has_its_place_and_no_place_is_left(size: str, tied: bool) -> None:
    config = theirs(size, tie_word_embeddings=tied)
    with torch.device("meta"):
        model = {"7b": transformers.Qwen2ForCausalLM, "8b": transformers.Qwen3ForCausalLM}[size](config)
        ours = Decoder(ModelConfig.from_hf(config.to_dict()), max_positions=1)
    stored = {name: tuple(p.shape) for name, p in model.named_parameters()}  # a tied head counts once
    expected = expected_tensors(ours.config)
    assert {name: tensor.shape for name, tensor in expected.items()} == stored
    rows = {name: p.shape[0] for name, p in ours.named_parameters()}
    for tensor in expected.values():
        rows[tensor.parameter] -= tensor.shape[0]
        assert tensor.shape[1:] == ours.get_parameter(tensor.parameter).shape[1:]
    assert set(rows.values()) == {0}
    assert sum(p.numel() for p in ours.parameters()) == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(("size", "preset"), [("7b", WEDLM_7B), ("8b", WEDLM_8B)])
def test_presets_are_what_a_published_configuration_is_read_as(size: str, preset: ModelConfig) -> None:
    raw = {**theirs(size).to_dict(), "mask_token_id": 151665, "eos_token_id": [151645, 151643], "pad_token_id": 151643}
    assert ModelConfig.from_hf({**raw, "bos_token_id": None}) == preset
    assert ModelConfig.from_hf(preset.to_hf()) == preset


@pytest.mark.parametrize("extra", [
    None, {}, {"beta_fast": 16.0, "beta_slow": 2.0}, {"attention_factor": 1.07}, {"factor": 2.5, "truncate": False},
    {"mscale": 0.7, "mscale_all_dim": 1.3},
])  # fmt: skip
@pytest.mark.parametrize("size", ["8b"])
def test_rotary_tables_equal_those_of_transformers_to_the_end(size: str, extra: dict[str, Any] | None) -> None:
    from transformers.models.qwen2.modeling_qwen2 import Qwen2RotaryEmbedding
    from transformers.models.qwen3.modeling_qwen3 import Qwen3RotaryEmbedding

    rope = {} if extra is None else {**YARN, **extra}
    config = theirs(size, rope=rope, max_position_embeddings=LONG)
    rotary = {"7b": Qwen2RotaryEmbedding, "8b": Qwen3RotaryEmbedding}[size](config)
    position = torch.tensor([0, 1, 77, 4095, 32767, 32768, LONG - 1])
    expected_cos, expected_sin = rotary(torch.zeros(1), position[None])
    mine = ModelConfig.from_hf(config.to_dict())
    assert (mine.rope_scaling is None) == (extra is None)
    cos, sin = rope_tables(mine, LONG)
    for table, expected in ((cos, expected_cos[0]), (sin, expected_sin[0])):
        # Theirs holds both halves of the pairs; sines and cosines of long arrays may round in the last bit.
        torch.testing.assert_close(torch.cat([table[position]] * 2, dim=-1), expected, atol=2e-7, rtol=0)
