"""With tiles a row has the same bits whatever goes with it, also where a library chooses its kernel by rows."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from wedlm_core.attention import tiled
from wedlm_core.attention.attention_protocol import PackedRows
from wedlm_core.attention.tiled import TiledAttention, alike_tiles
from wedlm_core.config import ModelConfig
from wedlm_core.kv.pool import KVPool

PAGE, KV_HEADS = 16, 2
COUNTS, CACHED = [1, 3, 8, 70, 1, 16], [200, 5, 63, 0, 0, 130]


@pytest.fixture(params=[1, 2], autouse=True)
def threads(request: pytest.FixtureRequest) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


def attended(pool: KVPool, heads: int, q_THD: torch.Tensor, sequences: list[int], rows: int | None = None) -> list:
    """The results of the last ``rows`` rows of some sequences in one forward of them."""
    counts = [min(COUNTS[s], rows or COUNTS[s]) for s in sequences]
    cached = [CACHED[s] + COUNTS[s] - count for s, count in zip(sequences, counts, strict=True)]
    ends = np.cumsum(COUNTS)[sequences]
    taken = [torch.arange(end - count, end) for end, count in zip(ends, counts, strict=True)]
    deepest = (max(map(sum, zip(COUNTS, CACHED, strict=True))) - 1) // PAGE + 1
    packed = PackedRows(
        counts_S=np.array(counts), cached_S=np.array(cached), starts_S=np.cumsum(counts) - counts,
        pages_SP=torch.arange(len(COUNTS) * deepest).view(-1, deepest)[sequences],
    )  # fmt: skip
    out_THD = TiledAttention().plan(packed, pool, heads).attend(0, q_THD[torch.cat(taken)])
    return list(out_THD.split(counts))


def filled(dim: int, heads: int) -> tuple[KVPool, torch.Tensor]:
    config = ModelConfig(
        vocab_size=1, hidden_size=1, intermediate_size=1, num_hidden_layers=1, num_attention_heads=heads,
        num_key_value_heads=KV_HEADS, head_dim=dim,
    )  # fmt: skip
    pages = len(COUNTS) * ((max(map(sum, zip(COUNTS, CACHED, strict=True))) - 1) // PAGE + 1)
    generator = torch.Generator().manual_seed(dim)
    pool = KVPool(config, pages, PAGE, device=torch.device("cpu"), dtype=torch.float32)
    k, v = torch.randn(2, pages * PAGE, KV_HEADS, dim, generator=generator)
    pool.write_entries(0, torch.arange(pages * PAGE), k, v)
    return pool, torch.randn(sum(COUNTS), heads, dim, generator=generator)


@pytest.mark.sweep(6)
@pytest.mark.parametrize("dim", [32, 80, 96, 128, 160, 256])
@pytest.mark.parametrize("group", [1, 2, 8])
def test_a_row_has_the_same_bits_alone_and_among_others(dim: int, group: int) -> None:
    pool, q_THD = filled(dim, KV_HEADS * group)
    together = attended(pool, KV_HEADS * group, q_THD, list(range(len(COUNTS))))
    for rows in (1, 2, 5, None):
        for sequence, found in enumerate(together):
            (alone,) = attended(pool, KV_HEADS * group, q_THD, [sequence], rows)
            assert torch.equal(alone, found[-len(alone) :]), (sequence, rows)


def test_tiles_that_are_not_alike_are_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """A library that adds in another order below 20 rows."""
    tiled._alike_tiles.cache_clear()
    right = torch.bmm

    def bmm(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        out = right(a, b)
        return out if a.shape[1] >= 20 else out * (1 + 1e-6)

    with monkeypatch.context() as patch:
        patch.setattr(torch, "bmm", bmm)
        assert alike_tiles(2, 64) == (16, 32, 64)
    tiled._alike_tiles.cache_clear()
    assert set(alike_tiles(2, 64)) >= {32, 64}
