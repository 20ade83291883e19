"""The grid of strategies and settings for the comparison with the paper's figures."""

from __future__ import annotations

from benchmarks.decode.paper_grid import grid
from wedlm_core.types import Strategy


def test_the_grid_has_streaming_and_blockwise_at_the_same_settings():
    points = list(grid([4, 8], [0.1, 0.4], [0.0, 0.02]))
    settings = {
        strategy: {(p.window, p.threshold, p.penalty) for p in points if p.strategy == strategy}
        for strategy in (Strategy.REFERENCE, Strategy.STREAMING, Strategy.BLOCKWISE)
    }
    assert all(len(found) == 8 for found in settings.values())
    assert settings[Strategy.STREAMING] == settings[Strategy.BLOCKWISE]
    assert points[1].params().window == 4
