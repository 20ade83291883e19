"""Batches of packed rows, and both streams of the documents in them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from wedlm_core.training.examples import Example, SpecialIds
from wedlm_core.training.masking import IGNORE, StreamRows, dual_stream, plan_blocks
from wedlm_core.training.recipe import DataRecipe


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Packed documents as tensors ``[B, T]``, int64 (``weight``: float32). The fields are those of ``StreamRows``."""

    ids: Tensor
    positions: Tensor
    limit: Tensor
    block: Tensor
    target: Tensor
    weight: Tensor
    document: Tensor

    def to(self, device: torch.device) -> Batch:
        """The same batch on ``device``."""
        return Batch(**{name: tensor.to(device) for name, tensor in vars(self).items()})


def pack(lines: Sequence[Sequence[StreamRows]], length: int, pad: int) -> Batch:
    """The documents of each row of a batch as tensors, filled up to ``length`` tokens a row."""
    free = [length - sum(len(document.ids) for document in line) for line in lines]

    def rectangle(name: str, fill: float, dtype: torch.dtype) -> Tensor:
        padded = []
        for line, left in zip(lines, free, strict=True):
            padded.append([value for document in line for value in getattr(document, name)] + [fill] * left)
        return torch.tensor(padded, dtype=dtype)

    owners = [
        [i for i, document in enumerate(line) for _ in document.ids] + [-1] * left
        for line, left in zip(lines, free, strict=True)
    ]
    return Batch(
        ids=rectangle("ids", pad, torch.int64),
        positions=rectangle("positions", 0, torch.int64),
        limit=rectangle("limit", 0, torch.int64),
        block=rectangle("block", 0, torch.int64),
        target=rectangle("target", IGNORE, torch.int64),
        weight=rectangle("weight", 0.0, torch.float32),
        document=torch.tensor(owners, dtype=torch.int64),
    )


def streams_of(rng: random.Random, example: Example, special: SpecialIds, config: DataRecipe) -> StreamRows:
    """Both streams of an example. A long one keeps a random choice of its blocks, as many as fit in a row."""
    region = len(example.answer) + rng.randint(0, config.masking.max_tail)
    blocks = plan_blocks(rng, len(example.prompt), region, config.masking)
    room = config.length - len(example.prompt) - len(example.answer)
    rng.shuffle(blocks)
    kept, used = [], 0
    for block in blocks:
        if used + len(block.observed) <= room:
            kept.append(block)
            used += len(block.observed)
    return dual_stream(example, kept, eos=special.eos, mask=special.mask, weights=config.loss)
