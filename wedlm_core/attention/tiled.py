"""Backend ``tiled``: batch-invariant CPU attention in torch. Query tiles meet fixed blocks of keys, in order.

A sequence's rows are cut into query tiles, and its KV into blocks of ``KV_BLOCK`` entries at fixed indices. All
(tile, block) pairs of the forward go through *one* batched matrix product, without padding to the longest sequence.
A row's result is bitwise independent of the rest of the forward, because:

- the product of a pair has fixed inner and key dimensions, and as many rows as one of :func:`alike_tiles`: a row has
  the same bits with any of these on this machine;
- the maximum is exact in any order, and the exponential acts on whole vectors (64 keys), never on a remainder;
- blocks are added in ascending order, and a block that a row cannot see adds exactly zero.

Pairs are ordered by block, and tiles by their number of blocks, descending. So the tiles that have a block j are always
a prefix of the tiles, and a reduction over blocks is a sum of leading slices (views).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from wedlm_core.attention.attention_protocol import IntArray, PackedRows
from wedlm_core.attention.problem import AttentionProblem
from wedlm_core.kv.pool import KVPool

KV_BLOCK = 64
_TILES = (2, 4, 8, 16, 32, 64)
_TRIED_PAIRS = (1, 3)
_GATHER_ROWS = 4  # cost of fetching one KV block, in query rows computed against it (measured on one CPU core)
_TILE_ROWS = 2  # overhead of a tile, in the same unit
_GROUP_SCORES = 1 << 19  # most scores in one group of tiles (float32: 2 MiB, to stay in cache)


def alike_tiles(group: int, dim: int) -> tuple[int, ...]:
    """The query tiles that give a row the same bits in both products, found by trying them on this machine.

    A library takes another kernel for matrices of few rows, the more of them the wider these are: float32 rows of 160
    numbers differ from those of large matrices where there are 6 of them.

    Args:
        group: query heads per KV head; a tile of Q rows is a matrix of ``Q * group`` rows.
        dim: of a head.
    """
    return _alike_tiles(group, dim, torch.get_num_threads())


@functools.cache
@torch.inference_mode()
def _alike_tiles(group: int, dim: int, _threads: int) -> tuple[int, ...]:
    generator, most = torch.Generator().manual_seed(0), _TILES[-1] * group
    q_PMD, weight_PMK, kv_PKD = (
        torch.randn(_TRIED_PAIRS[-1], *shape, generator=generator)
        for shape in ((most, dim), (most, KV_BLOCK), (KV_BLOCK, dim))
    )

    def products(first: int, rows: int, pairs: int) -> tuple[Tensor, Tensor]:
        """Rows of both products, computed as a matrix of their own."""
        q, weight = (x[:pairs, first : first + rows].contiguous() for x in (q_PMD, weight_PMK))
        return torch.bmm(q, kv_PKD[:pairs].transpose(1, 2)), torch.bmm(weight, kv_PKD[:pairs])

    whole = products(0, most, _TRIED_PAIRS[-1])

    def is_alike(rows: int) -> bool:
        return all(
            torch.equal(own, of_all[:pairs, first : first + rows])
            for pairs in _TRIED_PAIRS
            for first in {0, group, most - rows}
            for own, of_all in zip(products(first, rows, pairs), whole, strict=True)
        )

    return tuple(tile for tile in _TILES if tile == _TILES[-1] or is_alike(tile * group))


def choose_query_tile(counts_S: IntArray, cached_S: IntArray, group: int, tiles: Sequence[int]) -> int:
    """The rows per query tile that minimise the padded work of these sequences.

    Args:
        counts_S: rows of each sequence in this forward.
        cached_S: KV entries of each sequence before it.
        group: query heads per KV head.
        tiles: to choose from.
    """
    blocks_S = -(-(cached_S + counts_S) // KV_BLOCK)

    def work(tile: int) -> int:
        tiles_S = -(-counts_S // tile)
        return int((tiles_S * (blocks_S * (tile * group + _GATHER_ROWS) + _TILE_ROWS)).sum())

    return min(tiles, key=work)


@dataclass(frozen=True)
class _Group:
    """Tiles that are computed together: N tiles of Q rows, P (tile, block) pairs, at most J blocks per tile."""

    source_NQ: Tensor  # forward row of each tile row (padding repeats the last real row)
    real: Tensor  # indices of the real rows in the flattened [N * Q]
    real_rows: Tensor  # their forward rows
    pair_tile_P: Tensor
    kv_index_HP: Tensor  # flat indices into the pool in chunks of KV_BLOCK entries (or a page), head after head
    mask_PQ1K: Tensor  # 0 or -inf
    prefix_J: list[tuple[int, int]]  # block j: (first pair, number of pairs = number of leading tiles)


class _TiledPlan:
    def __init__(self, rows: PackedRows, pool: KVPool, num_heads: int) -> None:
        self.pool, self.group_size = pool, num_heads // pool.heads
        tiles = alike_tiles(self.group_size, pool.head_dim)
        self.tile = choose_query_tile(rows.counts_S, rows.cached_S, self.group_size, tiles)
        self.chunk = min(KV_BLOCK, pool.page_size)
        tiles_S = -(-rows.counts_S // self.tile)
        seq_N = np.repeat(np.arange(len(tiles_S)), tiles_S)
        first_N = (np.arange(len(seq_N)) - np.repeat(np.cumsum(tiles_S) - tiles_S, tiles_S)) * self.tile
        last_N = np.minimum(first_N + self.tile, rows.counts_S[seq_N])  # one past the tile's last real row
        blocks_N = -(-(rows.cached_S[seq_N] + last_N) // KV_BLOCK)
        order_N = np.argsort(-blocks_N, kind="stable")
        seq_N, first_N, last_N, blocks_N = seq_N[order_N], first_N[order_N], last_N[order_N], blocks_N[order_N]
        per_block = self.tile * num_heads * KV_BLOCK
        cuts = _cuts(blocks_N * per_block)
        self.groups = [self._group(rows, seq_N[a:b], first_N[a:b], last_N[a:b], blocks_N[a:b]) for a, b in cuts]

    def _group(
        self, rows: PackedRows, seq_N: IntArray, first_N: IntArray, last_N: IntArray, blocks_N: IntArray
    ) -> _Group:
        pool, tile = self.pool, self.tile
        device = rows.pages_SP.device
        row_NQ = np.minimum(first_N[:, None] + np.arange(tile), last_N[:, None] - 1)
        real_NQ = first_N[:, None] + np.arange(tile) < last_N[:, None]
        source_NQ = rows.starts_S[seq_N][:, None] + row_NQ
        depth = int(blocks_N[0])
        tiles_J = np.searchsorted(-blocks_N, -np.arange(depth), side="left")  # tiles with more than j blocks
        start_J = np.cumsum(tiles_J) - tiles_J
        block_P = np.repeat(np.arange(depth), tiles_J)
        tile_P = np.arange(len(block_P)) - np.repeat(start_J, tiles_J)
        key_PK = block_P[:, None] * KV_BLOCK + np.arange(KV_BLOCK)
        query_PQ = (rows.cached_S[seq_N][:, None] + row_NQ)[tile_P]
        mask_PQK = np.where(key_PK[:, None, :] <= query_PQ[:, :, None], np.float32(0), np.float32(-np.inf))
        chunk_PC = (block_P[:, None] * KV_BLOCK + np.arange(0, KV_BLOCK, self.chunk)) // pool.page_size
        within_PC = (block_P[:, None] * KV_BLOCK + np.arange(0, KV_BLOCK, self.chunk)) % pool.page_size
        chunk_PC = np.minimum(chunk_PC, rows.pages_SP.shape[1] - 1)
        pages_PC = rows.pages_SP[torch.from_numpy(seq_N[tile_P])[:, None].to(device), torch.from_numpy(chunk_PC)]
        chunks_PC = (pages_PC * pool.page_size + torch.from_numpy(within_PC)) // self.chunk
        head_H = torch.arange(pool.heads, device=device)[:, None] * (pool.num_entries // self.chunk)
        return _Group(
            source_NQ=torch.from_numpy(source_NQ),
            real=torch.from_numpy(np.flatnonzero(real_NQ)),
            real_rows=torch.from_numpy(source_NQ[real_NQ]),
            pair_tile_P=torch.from_numpy(tile_P),
            kv_index_HP=(head_H + chunks_PC.flatten()).flatten(),
            mask_PQ1K=torch.from_numpy(mask_PQK)[:, :, None, :],
            prefix_J=list(zip(start_J.tolist(), tiles_J.tolist(), strict=True)),
        )

    def attend(self, layer: int, q_THD: Tensor) -> Tensor:
        out_THD = torch.zeros_like(q_THD)
        for group in self.groups:
            context_RHD = self._attend_group(layer, q_THD, group)
            out_THD.index_copy_(0, group.real_rows, context_RHD)
        return out_THD

    def _attend_group(self, layer: int, q_THD: Tensor, group: _Group) -> Tensor:
        heads, dim, tile, per = self.pool.heads, self.pool.head_dim, self.tile, self.group_size
        tiles, pairs = group.source_NQ.shape[0], len(group.pair_tile_P)
        scaled_TD = (q_THD * dim**-0.5).flatten(1)
        q_HNMD = scaled_TD.index_select(0, group.source_NQ.flatten())
        q_HNMD = q_HNMD.view(tiles, tile, heads, per, dim).permute(2, 0, 1, 3, 4).reshape(heads, tiles, -1)
        q_HPMD = q_HNMD if pairs == tiles else q_HNMD.index_select(1, group.pair_tile_P)
        keys = self.pool.keys(layer, group.kv_index_HP, self.chunk).view(-1, KV_BLOCK, dim)
        scores = torch.bmm(q_HPMD.reshape(heads * pairs, tile * per, dim), keys.transpose(1, 2))
        scores = scores.view(heads, pairs, tile, per, KV_BLOCK).add_(group.mask_PQ1K)
        scores = scores.view(heads, pairs, tile * per, KV_BLOCK)

        best_HNM = scores[:, :tiles].amax(dim=-1)
        for start, count in group.prefix_J[1:]:
            lead = best_HNM[:, :count]
            torch.maximum(lead, scores[:, start : start + count].amax(dim=-1), out=lead)
        best_HPM = best_HNM if pairs == tiles else best_HNM.index_select(1, group.pair_tile_P)
        weights = scores.sub_(best_HPM.unsqueeze(-1)).exp_()

        sums_HPM = weights.sum(dim=-1)
        values = self.pool.values(layer, group.kv_index_HP, self.chunk).view(-1, KV_BLOCK, dim)
        context = torch.bmm(weights.view(heads * pairs, tile * per, KV_BLOCK), values)
        context = context.view(heads, pairs, tile * per, dim)
        total_HNM, out_HNMD = sums_HPM[:, :tiles], context[:, :tiles]
        for start, count in group.prefix_J[1:]:
            total_HNM[:, :count] += sums_HPM[:, start : start + count]
            out_HNMD[:, :count] += context[:, start : start + count]
        out_HNMD = out_HNMD / total_HNM.unsqueeze(-1)
        out = out_HNMD.reshape(heads, tiles, tile, per, dim).permute(1, 2, 0, 3, 4).reshape(tiles * tile, -1)
        return out.index_select(0, group.real).view(-1, heads * per, dim)


def _cuts(scores_N: IntArray) -> list[tuple[int, int]]:
    """Cut tiles into consecutive groups of at most ``_GROUP_SCORES`` scores (one tile at least)."""
    ends = np.cumsum(scores_N)
    cuts, start = [], 0
    while start < len(scores_N):
        base = ends[start - 1] if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, base + _GROUP_SCORES, side="right")))
        cuts.append((start, stop))
        start = stop
    return cuts


class TiledAttention:
    """Query tiles over fixed KV blocks; bitwise batch invariant in float32 on CPU."""

    name = "tiled"
    batch_invariant = True
    on_device = False
    cpu_decoder = False
    transposed_keys = False

    @staticmethod
    def why_not(problem: AttentionProblem) -> str | None:
        """Why this backend cannot be used; None if it can."""
        return None if problem.device.type == "cpu" else f"it runs on CPU only, not on {problem.device}"

    def plan(self, rows: PackedRows, pool: KVPool, num_heads: int) -> _TiledPlan:
        """Cut the rows into tiles and pairs, with numpy on the host and no Python loop over sequences."""
        return _TiledPlan(rows, pool, num_heads)
