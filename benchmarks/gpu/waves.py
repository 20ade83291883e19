"""A model of int8 products on a GPU: how many tiles one has, in how many waves, and how much of the device they use.

A processor computes a wave's tiles at the rate of its tensor cores, padding included; a product takes no less time than
reading its weights. The steps of the measured times (``benchmarks/results/gpu.md``) follow from these waves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from wedlm_core.config import ModelConfig
from wedlm_core.model.int8_gpu import Tiles, tiles_of

BANDWIDTH, RATE, PROCESSORS = 4.3e12, 1277e12, 132
"""Of an H200: bytes/s of a copy, int8 operations/s, multiprocessors."""


@dataclass(frozen=True, kw_only=True)
class Waves:
    """A product, cut.

    Attributes:
        cut: its tiles.
        tiles: their number.
        waves: of tiles, one for each processor; the last one may be short.
        used: results that are wanted, of those that whole waves compute.
        seconds: by the model.
    """

    cut: Tiles
    tiles: int
    waves: int
    used: float
    seconds: float


def shapes(config: ModelConfig) -> Mapping[str, tuple[int, int]]:
    """Outputs and inputs of a layer's products, and of the head."""
    heads = config.num_attention_heads + 2 * config.num_key_value_heads
    return {
        "qkv": (heads * config.head_dim, config.hidden_size),
        "o": (config.hidden_size, config.num_attention_heads * config.head_dim),
        "gate_up": (2 * config.intermediate_size, config.hidden_size),
        "down": (config.hidden_size, config.intermediate_size),
        "head": (config.vocab_size, config.hidden_size),
    }


def waves(rows: int, outputs: int, inputs: int) -> Waves:
    """The product of so many rows and outputs."""
    cut = tiles_of(rows, outputs)
    tiles = -(-rows // cut.rows) * -(-outputs // cut.outputs)
    count = -(-tiles // PROCESSORS)
    computed = count * PROCESSORS * cut.rows * cut.outputs
    seconds = max(outputs * inputs / BANDWIDTH, 2 * computed * inputs / RATE)
    return Waves(cut=cut, tiles=tiles, waves=count, used=rows * outputs / computed, seconds=seconds)
