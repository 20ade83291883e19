"""A model of the waves of int8 products has the jumps that an H200 has, and shows how much of it each product uses.

A processor computes a wave's tiles at the rate of its tensor cores, padding included; a product takes no less time than
reading its weights.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from testing.engine.published_models import WEDLM_8B, product_shapes
from wedlm_core.model.int8_gpu import Tiles, tiles_of

BANDWIDTH, RATE, PROCESSORS = 4.3e12, 1277e12, 132
"""Of an H200: bytes/s of a copy, int8 operations/s, multiprocessors."""
SHAPES = {**product_shapes(WEDLM_8B), "head": (WEDLM_8B.vocab_size, WEDLM_8B.hidden_size)}
"""Outputs and inputs of each product."""


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


def waves(rows: int, outputs: int, inputs: int) -> Waves:
    """The product of so many rows and outputs."""
    cut = tiles_of(rows, outputs)
    tiles = -(-rows // cut.rows) * -(-outputs // cut.outputs)
    count = -(-tiles // PROCESSORS)
    computed = count * PROCESSORS * cut.rows * cut.outputs
    seconds = max(outputs * inputs / BANDWIDTH, 2 * computed * inputs / RATE)
    return Waves(cut=cut, tiles=tiles, waves=count, used=rows * outputs / computed, seconds=seconds)


MEASURED = {136: 5.73 / 4.08, 264: 8.49 / 5.80, 520: 12.2 / 8.87, 1032: 19.6 / 15.7}
"""Jumps of a step's time, by the table of costs in ``benchmarks/results/gpu.md``."""


def seconds(rows: int) -> float:
    """Of the products of a forward."""
    products = {name: waves(rows, *shape).seconds for name, shape in SHAPES.items()}
    return WEDLM_8B.num_hidden_layers * sum(products.values()) - (WEDLM_8B.num_hidden_layers - 1) * products["head"]


def test_products_jump_where_a_step_was_measured_to_jump() -> None:
    sizes = range(16, 2049, 8)
    found = {rows: seconds(rows) / seconds(rows - 8) for rows in sizes}
    assert {rows for rows, jump in found.items() if jump > 1.25} == set(MEASURED)
    for rows, jump in MEASURED.items():  # a step has other parts too, which do not jump
        assert jump <= found[rows] * 1.01


@pytest.mark.parametrize(
    ("rows", "tiles", "least"),
    [(16, {"qkv": 96, "o": 64, "gate_up": 192, "down": 64, "head": 1187}, 0.48),
     (64, {"qkv": 96, "o": 128, "gate_up": 384, "down": 128, "head": 2374}, 0.72),
     (128, {"qkv": 192, "o": 128, "gate_up": 384, "down": 128, "head": 2374}, 0.72),
     (136, {"qkv": 144, "o": 192, "gate_up": 384, "down": 192, "head": 2374}, 0.38),
     (256, {"qkv": 192, "o": 256, "gate_up": 768, "down": 256, "head": 4748}, 0.72),
     (512, {"qkv": 384, "o": 256, "gate_up": 768, "down": 256, "head": 4748}, 0.96)],
)  # fmt: skip
def test_each_product_has_these_tiles(rows: int, tiles: dict[str, int], least: float) -> None:
    found = {name: waves(rows, *shape) for name, shape in SHAPES.items()}
    assert {name: one.tiles for name, one in found.items()} == tiles
    for one in found.values():
        assert one.waves == -(-one.tiles // PROCESSORS)
        assert least <= one.used <= 1
