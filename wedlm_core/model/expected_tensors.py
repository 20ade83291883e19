"""The tensors of a Hugging Face checkpoint and their places in the :class:`Decoder`; used to load and to save."""

from __future__ import annotations

from dataclasses import dataclass

from wedlm_core.config import ModelConfig

__all__ = ["TensorPlace", "expected_tensors"]


@dataclass(frozen=True, kw_only=True)
class TensorPlace:
    """Where one Hugging Face tensor belongs.

    Attributes:
        parameter: name of a parameter of :class:`Decoder`.
        start: the tensor fills ``[start : start + shape[0]]`` of the parameter.
        shape: shape of the tensor.
    """

    parameter: str
    start: int
    shape: tuple[int, ...]


def expected_tensors(config: ModelConfig) -> dict[str, TensorPlace]:
    """Every tensor that a checkpoint of ``config`` must hold, by Hugging Face name; ``lm_head`` only if untied."""
    width, inner, dim = config.hidden_size, config.intermediate_size, config.head_dim
    q_rows, kv_rows = config.num_attention_heads * dim, config.num_key_value_heads * dim
    expected = {
        "model.embed_tokens.weight": TensorPlace(parameter="embed.weight", start=0, shape=(config.vocab_size, width))
    }
    for i in range(config.num_hidden_layers):
        theirs, ours = f"model.layers.{i}", f"layers.{i}"

        def put(name: str, parameter: str, *shape: int, start: int = 0, t: str = theirs, o: str = ours) -> None:
            expected[f"{t}.{name}"] = TensorPlace(parameter=f"{o}.{parameter}", start=start, shape=shape)

        start = 0
        for letter, rows in (("q", q_rows), ("k", kv_rows), ("v", kv_rows)):
            put(f"self_attn.{letter}_proj.weight", "qkv_proj.weight", rows, width, start=start)
            if config.attention_bias:
                put(f"self_attn.{letter}_proj.bias", "qkv_proj.bias", rows, start=start)
            start += rows
        if config.qk_norm:
            put("self_attn.q_norm.weight", "q_norm.weight", dim)
            put("self_attn.k_norm.weight", "k_norm.weight", dim)
        put("self_attn.o_proj.weight", "o_proj.weight", width, q_rows)
        put("mlp.gate_proj.weight", "gate_up_proj.weight", inner, width)
        put("mlp.up_proj.weight", "gate_up_proj.weight", inner, width, start=inner)
        put("mlp.down_proj.weight", "down_proj.weight", width, inner)
        put("input_layernorm.weight", "input_norm.weight", width)
        put("post_attention_layernorm.weight", "post_norm.weight", width)
    expected["model.norm.weight"] = TensorPlace(parameter="norm.weight", start=0, shape=(width,))
    if not config.tie_word_embeddings:
        expected["lm_head.weight"] = TensorPlace(parameter="lm_head.weight", start=0, shape=(config.vocab_size, width))
    return expected
