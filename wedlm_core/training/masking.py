"""The two training streams: clean memory rows and masked, reordered prediction rows (arXiv 2512.22737, section 4)."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from wedlm_core.ordering import observed_first
from wedlm_core.training.examples import Example

IGNORE = -1
"""The target of a row without a loss."""


@dataclass(frozen=True, kw_only=True)
class MaskingConfig:
    """How prediction blocks are drawn.

    Attributes:
        block_sizes: one is drawn for each document; repeat a size to make it more likely.
        full_share: probability that a whole block is masked (gamma 1). With random block offsets such a block looks
            like a decode forward: masks after a clean prefix.
        max_tail: most end-of-sequence tokens that are trained after the end.
    """

    block_sizes: tuple[int, ...] = (16,)
    full_share: float = 0.65
    max_tail: int = 8


@dataclass(frozen=True, kw_only=True)
class LossWeights:
    """Weights of the loss terms: next-token loss on answers, prompts and end tokens; and masked loss."""

    answer: float = 1.0
    prompt: float = 0.1
    end: float = 2.0
    masked: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Block:
    """A block of the prediction stream: logical positions ``start .. start + len(observed) - 1``."""

    start: int
    observed: tuple[bool, ...]


@dataclass(frozen=True, kw_only=True)
class StreamRows:
    """Rows of one document in physical order: the memory stream, then the blocks. All tuples have the same length.

    Attributes:
        ids, positions: input token and logical position of each row.
        limit: a row attends to the memory rows of its document at positions below this.
        block: 0 for memory rows, else the number of the block, from 1.
        target: id that the row should predict, or IGNORE.
        weight: weight of the row's loss.
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
    """The observed-first order of every block, in one call of the function that decoding uses."""
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
    """Rows of both streams with targets and weights; a masked row has the weight 1/gamma of its block.

    Blocks may extend past the answer; the tokens there are ``eos``.
    """
    clean = [*example.prompt, *example.answer]
    last, prompt = len(clean) - 1, len(example.prompt)
    ids, positions, limit, block_of = list(clean), list(range(last + 1)), list(range(1, last + 2)), [0] * (last + 1)
    target = [*clean[1:], IGNORE]
    # Row i predicts token i + 1, so rows before the last prompt token predict prompt tokens.
    weight = [weights.prompt] * (prompt - 1) + [weights.answer] * (last + 1 - prompt) + [0.0]
    weight[last - 1] *= weights.end
    for number, (block, order) in enumerate(zip(blocks, _physical_orders(blocks), strict=True), 1):
        inverse_ratio = len(block.observed) / max(1, block.observed.count(False))
        for offset in order:
            position, seen = block.start + offset, block.observed[offset]
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
