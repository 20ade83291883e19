"""Configurations of the published models, copied from their ``config.json``, for use without a download.

WeDLM-7B continues Qwen2.5-7B (bias on q, k and v, no q/k norm), WeDLM-8B continues Qwen3-8B (q/k norm, no bias);
arXiv 2512.22737, section 5. Loading a checkpoint does not read these: it reads the checkpoint's own configuration.
"""

from __future__ import annotations

from collections.abc import Mapping

from wedlm_core.config import ModelConfig

_MASK_ID = 151665
_END_IDS = (151645, 151643)  # end of turn, end of text

WEDLM_7B = ModelConfig(
    vocab_size=152064,
    hidden_size=3584,
    intermediate_size=18944,
    num_hidden_layers=28,
    num_attention_heads=28,
    num_key_value_heads=4,
    head_dim=128,
    max_position_embeddings=32768,
    rope_theta=1_000_000.0,
    attention_bias=True,
    qk_norm=False,
    mask_token_id=_MASK_ID,
    eos_token_ids=_END_IDS,
    pad_token_id=151643,
)

WEDLM_8B = ModelConfig(
    vocab_size=151936,
    hidden_size=4096,
    intermediate_size=12288,
    num_hidden_layers=36,
    num_attention_heads=32,
    num_key_value_heads=8,
    head_dim=128,
    max_position_embeddings=32768,
    rope_theta=1_000_000.0,
    attention_bias=False,
    qk_norm=True,
    mask_token_id=_MASK_ID,
    eos_token_ids=_END_IDS,
    pad_token_id=151643,
)


def product_shapes(config: ModelConfig) -> Mapping[str, tuple[int, int]]:
    """Outputs and inputs of a layer's products."""
    heads = config.num_attention_heads + 2 * config.num_key_value_heads
    return {
        "qkv": (heads * config.head_dim, config.hidden_size),
        "o": (config.hidden_size, config.num_attention_heads * config.head_dim),
        "gate_up": (2 * config.intermediate_size, config.hidden_size),
        "down": (config.hidden_size, config.intermediate_size),
    }
