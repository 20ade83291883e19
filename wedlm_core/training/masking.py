"""Dual-stream rows: a clean memory stream and a masked, reordered prediction stream (arXiv 2512.22737, section 4)."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from wedlm_core.ordering import observed_first
from wedlm_core.training.examples import Example

__all__ = ["IGNORE", "Block", "LossWeights", "MaskingConfig", "StreamRows", "dual_stream", "plan_blocks"]

IGNORE = -1
"""Target of a row that has no loss."""


@dataclass(frozen=True, kw_only=True)
class MaskingConfig:
    """How prediction blocks are drawn.

    Attributes:
        block_sizes: one is drawn for each document (repeat a size to weight it).
        full_share: probability that a block is masked whole (gamma 1). With random block offsets this is
            what a decode forward looks like: masks behind a clean prefix, at every distance from it.
        max_tail: end-of-sequence tokens trained behind the end, at most.
    """

    block_sizes: tuple[int, ...] = (16,)
    full_share: float = 0.65
    max_tail: int = 8


@dataclass(frozen=True, kw_only=True)
class LossWeights:
    """Weights of the loss terms: next-token on answers, on prompts, on end tokens; and the masked loss."""

    answer: float = 1.0
    prompt: float = 0.1
    end: float = 2.0
    masked: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Block:
    """Logical positions ``start .. start + len(observed)`` of the prediction stream."""

    start: int
    observed: tuple[bool, ...]


@dataclass(frozen=True, kw_only=True)
class StreamRows:
    """Rows of one document in physical order: memory stream, then the blocks. Equal-length tuples.

    Attributes:
        ids, positions: input token and logical position of each row.
        limit: a row sees memory rows of its document at positions below this.
        block: 0 for memory rows; blocks count from 1.
        target: id the row is to predict, or IGNORE.
        weight: weight of its loss.
    """

    ids: tuple[int, ...]
    positions: tuple[int, ...]
    limit: tuple[int, ...]
    block: tuple[int, ...]
    target: tuple[int, ...]
    weight: tuple[float, ...]


def plan_blocks(rng: random.Random, start: int, length: int, config: MaskingConfig) -> list[Block]:
    """Cut ``length`` positions from ``start`` into blocks with a random offset, each with its own mask ratio."""
    size = rng.choice(config.block_sizes)
    end, at, blocks = start + length, start, []
    take = rng.randint(1, size)
    while at < end:
        count = min(take, end - at)
        masked = set(range(count))
        if rng.random() >= config.full_share:
            masked = set(rng.sample(range(count), rng.randint(1, count)))
        blocks.append(Block(start=at, observed=tuple(i not in masked for i in range(count))))
        at, take = at + count, size
    return blocks


def _physical_orders(blocks: Sequence[Block]) -> list[list[int]]:
    """Observed-first order of every block, by the function that decoding uses, in one call."""
    if not blocks:
        return []
    widest = max(len(block.observed) for block in blocks)
    observed_NB = torch.zeros(len(blocks), widest, dtype=torch.bool)
    valid_NB = torch.zeros(len(blocks), widest, dtype=torch.bool)
    for i, block in enumerate(blocks):
        observed_NB[i, : len(block.observed)] = torch.tensor(block.observed)
        valid_NB[i, : len(block.observed)] = True
    orders = observed_first(observed_NB, valid_NB).tolist()
    return [order[: len(block.observed)] for order, block in zip(orders, blocks, strict=True)]


def dual_stream(example: Example, blocks: Sequence[Block], *, eos: int, mask: int, weights: LossWeights) -> StreamRows:
    """Rows of both streams with targets and weights; masked rows are weighted 1/gamma of their block.

    Blocks may reach behind the answer: the tokens there are ``eos``.
    """
    clean = [*example.prompt, *example.answer]
    last, prompt = len(clean) - 1, len(example.prompt)
    ids, positions, limit, block_of = list(clean), list(range(last + 1)), list(range(1, last + 2)), [0] * (last + 1)
    target = [*clean[1:], IGNORE]
    # Row i predicts token i + 1: rows before the last prompt token predict the prompt.
    weight = [weights.prompt] * (prompt - 1) + [weights.answer] * (last + 1 - prompt) + [0.0]
    weight[last - 1] *= weights.end
    for number, (block, order) in enumerate(zip(blocks, _physical_orders(blocks), strict=True), 1):
        inverse_ratio = len(block.observed) / max(1, block.observed.count(False))
        for slot in order:
            position, seen = block.start + slot, block.observed[slot]
            token = clean[position] if position <= last else eos
            ids.append(token if seen else mask)
            positions.append(position)
            limit.append(block.start)
            block_of.append(number)
            target.append(IGNORE if seen else token)
            weight.append(0.0 if seen else weights.masked * inverse_ratio)
    return StreamRows(
        ids=tuple(ids), positions=tuple(positions), limit=tuple(limit), block=tuple(block_of),
        target=tuple(target), weight=tuple(weight),
    )  # fmt: skip
