"""Examples of one's own: packing, epochs, held-out ones, and a continued run."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import numpy as np
import pytest
import torch

from testing.engine.models import random_decoder
from wedlm_core.training.data import Packing, TrainingData
from wedlm_core.training.examples import ExampleFile, SpecialIds, write_examples
from wedlm_core.training.recipe import Recipe, parse_recipe
from wedlm_core.training.trainer import Trainer

SPECIAL = SpecialIds(eos=1, mask=2)


def recipe(matrices: str = "adamw", **run: object) -> Recipe:
    data = {"rows": 2, "length": 48, "masking": {"block_sizes": [4, 8], "max_tail": 3}, "loss": {"prompt": 0.0}}
    return parse_recipe({"data": data, "optim": {"warmup_steps": 2, "matrices": matrices}, "run": {"steps": 6, **run}})


def written(folder: Path, count: int = 24) -> Path:
    """Examples whose first token is their number, from 100 on; every fourth is held out."""
    rng = random.Random(3)
    folder.mkdir()
    write_examples(folder, (
        ([100 + i, *(rng.randrange(3, 90) for _ in range(rng.randint(0, 6)))],
         [*(rng.randrange(3, 90) for _ in range(rng.randint(1, 9))), SPECIAL.eos], i % 4 == 0)
        for i in range(count)
    ))  # fmt: skip
    return folder


def test_examples_come_back_as_they_were_written(tmp_path: Path) -> None:
    write_examples(tmp_path, [([5, 6], [7, 1], False), ([8], [1], True), ([9], [2, 1], False)])
    train, held_out = (ExampleFile(tmp_path, held_out=own) for own in (False, True))
    assert [(one.prompt, one.answer) for one in (train[0], train[1])] == [((5, 6), (7, 1)), ((9,), (2, 1))]
    assert [(held_out[i].prompt, held_out[i].answer) for i in range(len(held_out))] == [((8,), (1,))]


@pytest.mark.parametrize(("rows", "length"), [(1, 10), (3, 12), (2, 40)])
def test_every_epoch_has_every_example_once_and_no_row_is_too_long(rows: int, length: int) -> None:
    sizes_N = np.random.default_rng(1).integers(1, 11, 57)
    packing = Packing(sizes_N, rows=rows, length=length, seed=4)
    batches = [packing.batch(index) for index in range(packing.batches_of(3))]
    assert all(sum(sizes_N[line]) <= length for batch in batches for line in batch)
    order = [number for batch in batches for number in sorted(itertools.chain.from_iterable(batch))]
    assert len(order) >= 3 * 57
    assert all(count in (3, 4) for count in np.bincount(order))
    # Within a batch the order is free, so epochs are told apart by whole batches only.
    assert len(set(order[:57])) >= 57 - max(sum(map(len, batch)) for batch in batches)
    assert packing.batch(1) == batches[1], "an earlier batch is found again"
    assert Packing(sizes_N, rows=rows, length=length, seed=5).batch(0) != batches[0]


def test_what_is_held_out_is_never_trained_on_and_answers_alone_have_a_loss(tmp_path: Path) -> None:
    data = TrainingData(written(tmp_path / "own"), SPECIAL, recipe())
    seen = set()
    for index in range(data.batches_of(2)):
        batch = data.batch(index)
        seen |= set(batch.ids[batch.ids >= 100].tolist())
        assert not batch.weight[(batch.target >= 100) | (batch.target == -1)].any(), "prompts and padding have no loss"
    assert seen == {100 + i for i in range(24) if i % 4}


@pytest.mark.parametrize("matrices", ["muon", "adamw"])
def test_a_continued_run_ends_bit_for_bit_like_a_whole_one(tmp_path: Path, matrices: str) -> None:
    folder = written(tmp_path / "own")

    def trainer(name: str) -> Trainer:
        model = random_decoder(qwen3=True, seed=0).requires_grad_(True)
        made = recipe(matrices, validate_every=2)
        return Trainer(model, TrainingData(folder, SPECIAL, made), made, tmp_path / name, lambda line: None)

    whole, first, second = trainer("whole"), trainer("parts"), trainer("parts")
    whole.train()
    first.train(until_step=3)
    torch.manual_seed(12345)  # a new process would not have this state
    random.seed(9)
    assert second.resume()
    second.train()
    for name, weight in whole.model.named_parameters():
        assert torch.equal(weight, second.model.get_parameter(name)), name
    curves = [(tmp_path / name / "validation.csv").read_text() for name in ("whole", "parts")]
    assert curves[0] == curves[1]
    assert curves[0].startswith("step,next_token,masked\n2,")
