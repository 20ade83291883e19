"""Packed training batches. A batch is a pure function of (seed, index), so one integer is the data position."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from wedlm_core.training import corpus
from wedlm_core.training.examples import Vocabulary
from wedlm_core.training.masking import IGNORE, LossWeights, MaskingConfig, StreamRows, dual_stream, plan_blocks

_MISSES = 4
"""A batch is complete after this many documents in a row fit nowhere."""


@dataclass(frozen=True, kw_only=True)
class BatchConfig:
    """Shape and content of a batch: ``rows`` packed rows of ``length`` tokens, both streams together."""

    rows: int
    length: int
    chat_share: float
    families: Mapping[str, float]
    masking: MaskingConfig
    weights: LossWeights


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


def pack(documents: Iterator[StreamRows], rows: int, length: int, pad: int) -> Batch:
    """Pack documents first-fit into ``rows`` rows of ``length``, until several documents in a row fit nowhere."""
    content: list[list[StreamRows]] = [[] for _ in range(rows)]
    free = [length] * rows
    misses = 0
    for document in documents:
        size = len(document.ids)
        place = next((i for i, left in enumerate(free) if left >= size), None)
        if place is None:
            misses += 1
            if misses == _MISSES:
                break
            continue
        content[place].append(document)
        free[place] -= size

    def rectangle(name: str, fill: float, dtype: torch.dtype) -> Tensor:
        lines = []
        for line, left in zip(content, free, strict=True):
            lines.append([value for document in line for value in getattr(document, name)] + [fill] * left)
        return torch.tensor(lines, dtype=dtype)

    owners = [
        [i for i, document in enumerate(line) for _ in document.ids] + [-1] * left
        for line, left in zip(content, free, strict=True)
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


def _documents(rng: random.Random, vocabulary: Vocabulary, config: BatchConfig, seed: int) -> Iterator[StreamRows]:
    for problem in corpus.stream(seed, "train", config.families):
        example = vocabulary.example(problem.prompt, problem.answer, chat=rng.random() < config.chat_share)
        region = len(example.answer) + rng.randint(0, config.masking.max_tail)
        blocks = plan_blocks(rng, len(example.prompt), region, config.masking)
        room = config.length - len(example.prompt) - len(example.answer)
        # A long document keeps a random choice of its blocks, as many as fit in a row.
        rng.shuffle(blocks)
        kept, used = [], 0
        for block in blocks:
            if used + len(block.observed) <= room:
                kept.append(block)
                used += len(block.observed)
        yield dual_stream(example, kept, eos=vocabulary.eos, mask=vocabulary.mask, weights=config.weights)


def make_batch(seed: int, index: int, vocabulary: Vocabulary, config: BatchConfig) -> Batch:
    """Batch ``index`` of the run with ``seed``: the same on every machine and after every restart."""
    rng = random.Random(f"{seed}/{index}")
    documents = _documents(rng, vocabulary, config, rng.getrandbits(48))
    return pack(documents, config.rows, config.length, vocabulary.pad)
