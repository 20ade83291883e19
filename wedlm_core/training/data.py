"""The batches of a run: examples in an order by seed and epoch. A batch is a function of seed and index."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from wedlm_core.model.decoder import Decoder
from wedlm_core.training.batches import Batch, pack, streams_of
from wedlm_core.training.examples import ExampleFile, SpecialIds
from wedlm_core.training.loss import dual_stream_loss
from wedlm_core.training.recipe import Recipe

_VALIDATED = 4
"""Batches of held-out examples that a validation computes the loss of."""


class Packing:
    """The batches of a run, cut from an endless stream of epochs; a function of sizes and seed. One order is in memory.

    A batch ends before the first example that fits in none of its rows, so each epoch has every example once. Batches
    are cut in order: for an earlier batch, cutting begins again.

    Args:
        sizes_N: tokens to reserve for each example, each at most ``length``; one example at least.
        rows, length: of a batch.
        seed: of the order.
    """

    def __init__(self, sizes_N: npt.NDArray[np.int64], *, rows: int, length: int, seed: int) -> None:
        self._sizes_N, self._rows, self._length, self._seed = sizes_N, rows, length, seed
        self._next, self._batches = 0, self._cut()

    def batch(self, index: int) -> list[list[int]]:
        """For each row of batch ``index`` the numbers of its examples."""
        if index < self._next:
            self._next, self._batches = 0, self._cut()
        skipped, self._next = index - self._next, index + 1
        return next(itertools.islice(self._batches, skipped, None))

    def batches_of(self, epochs: int) -> int:
        """The number of batches that hold the first epochs; the last one may begin the next epoch."""
        held = itertools.accumulate(sum(map(len, lines)) for lines in self._cut())
        return next(batches for batches, examples in enumerate(held, 1) if examples >= epochs * len(self._sizes_N))

    def _cut(self) -> Iterator[list[list[int]]]:
        lines, free = self._empty()
        for number in self._order():
            size = int(self._sizes_N[number])
            place = next((i for i, left in enumerate(free) if left >= size), None)
            if place is None:
                yield lines
                (lines, free), place = self._empty(), 0
            lines[place].append(number)
            free[place] -= size

    def _empty(self) -> tuple[list[list[int]], list[int]]:
        return [[] for _ in range(self._rows)], [self._length] * self._rows

    def _order(self) -> Iterator[int]:
        for epoch in itertools.count():
            yield from map(int, np.random.default_rng([self._seed, epoch]).permutation(len(self._sizes_N)))


class TrainingData:
    """Examples in a folder: batches to train on, and both losses of those that are held out.

    Args:
        folder: see :mod:`wedlm_core.training.examples`.
        special: ids that training writes.
        recipe: of the run.
    """

    def __init__(self, folder: Path, special: SpecialIds, recipe: Recipe) -> None:
        self._special, self._seed, self._config = special, recipe.run.seed, recipe.data
        self._train, self._held_out = (ExampleFile(folder, held_out=own) for own in (False, True))
        self._packings = {own: self._packing(own) for own in (self._train, self._held_out) if len(own)}

    def batch(self, index: int) -> Batch:
        """Micro-batch ``index`` of the run."""
        return self._batch(self._train, index)

    def batches_of(self, epochs: int) -> int:
        """See :meth:`Packing.batches_of`."""
        return self._packings[self._train].batches_of(epochs)

    @torch.no_grad()
    def validate(self, model: Decoder) -> dict[str, float]:
        """Mean losses, in nats per weighted token, of the same few held-out batches; every rank calls it."""
        if self._held_out not in self._packings:
            return {}
        batches = (self._batch(self._held_out, index).to(model.device) for index in range(_VALIDATED))
        found = [dual_stream_loss(model, batch) for batch in batches]
        return {name: sum(float(getattr(one, name)) for one in found) / _VALIDATED for name in ("next_token", "masked")}

    def _packing(self, examples: ExampleFile) -> Packing:
        config, spans_N4 = self._config, examples.spans_N4
        sizes_N = np.minimum(config.length, spans_N4[:, 1] + 2 * spans_N4[:, 2] + config.masking.max_tail)
        return Packing(sizes_N, rows=config.rows, length=config.length, seed=self._seed)

    def _batch(self, examples: ExampleFile, index: int) -> Batch:
        rng = random.Random(f"{self._seed}/{index}")
        lines = self._packings[examples].batch(index)
        made = [[streams_of(rng, examples[number], self._special, self._config) for number in line] for line in lines]
        return pack(made, self._config.length, self._special.eos)
