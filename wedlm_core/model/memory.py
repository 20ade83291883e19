"""How much memory a model takes, in each dtype of its weights. Imports no torch."""

from __future__ import annotations

from wedlm_core.config import EXACT_WEIGHT_DTYPES, ModelConfig
from wedlm_core.model.checkpoint import expected_tensors

BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
"""Of a number in each dtype that a model computes in."""
WEIGHT_DTYPES = {"int8": 1.0, "int4": 17 / 32, "fp8_e4m3": 1.0}
"""Bytes of a weight in each narrow dtype, the multipliers of groups included."""
_SCALE = 4  # bytes of the scale of an output
_PROJECTIONS = ("qkv_proj.weight", "o_proj.weight", "gate_up_proj.weight", "down_proj.weight")
_TABLES = ("embed.weight", "lm_head.weight")


def weight_bytes(config: ModelConfig, *, dtype: str, weight_dtype: str = "auto", quantised_head: bool = True) -> int:
    """Bytes of all weights, as they stay in memory.

    Args:
        config: of the model.
        dtype: a name of :data:`BYTES`.
        weight_dtype: as in ``EngineConfig``.
        quantised_head: as in ``EngineConfig``.
    """
    total = 0.0
    exact_head = weight_dtype in EXACT_WEIGHT_DTYPES and quantised_head
    for place in expected_tensors(config).values():
        rows, inputs = place.shape[0], place.shape[1] if len(place.shape) > 1 else 1
        narrow = WEIGHT_DTYPES.get(weight_dtype) if place.parameter.endswith(_PROJECTIONS) else None
        if place.parameter in _TABLES and exact_head:
            narrow = WEIGHT_DTYPES["int8"]
        total += rows * (inputs * BYTES[dtype] if narrow is None else inputs * narrow + _SCALE)
    return int(total)


def kv_bytes_per_token(config: ModelConfig, *, numbers: str) -> int:
    """Bytes of a token's keys and values.

    Args:
        config: of the model.
        numbers: of the pool, as ``EngineConfig.kv_numbers`` says.
    """
    size = {**BYTES, "fp8_e4m3": 1, "int8": 1}[numbers]
    return config.kv_bytes_per_token(size, scaled_rows=numbers == "int8")
