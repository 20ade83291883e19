"""The trainer: accumulation, schedule, curve, time budget, precision."""

import dataclasses
import math
from pathlib import Path

import pytest
import torch

from testing.engine.models import random_decoder
from wedlm_core.training.data import TrainingData
from wedlm_core.training.examples import SpecialIds, write_examples
from wedlm_core.training.loss import dual_stream_loss
from wedlm_core.training.optim import learning_rate_factor
from wedlm_core.training.recipe import OptimRecipe, Recipe, parse_recipe
from wedlm_core.training.trainer import Trainer


def recipe(*, accumulate: int = 1, **run: object) -> Recipe:
    data = {"rows": 2, "length": 64, "masking": {"block_sizes": [8, 16]}}
    optim = {"warmup_steps": 2, "accumulate": accumulate}
    return parse_recipe({"data": data, "optim": optim, "run": {"steps": 6, "log_every": 1, **run}})


def trainer(folder: Path, made: Recipe) -> Trainer:
    """A run on examples whose answer repeats the prompt's token."""
    if not (folder / "data").exists():
        (folder / "data").mkdir(parents=True)
        write_examples(folder / "data", (([i], [*[i] * (i % 7 + 3), 1], False) for i in range(3, 60)))
    model = random_decoder(qwen3=True, seed=0).requires_grad_(True)
    data = TrainingData(folder / "data", SpecialIds(eos=1, mask=2), made)
    return Trainer(model, data, made, folder, lambda line: None)


def test_a_resumed_curve_has_each_step_once(tmp_path):
    made = recipe()
    run = trainer(tmp_path, made)
    run.train(until_step=3)
    with (tmp_path / "curve.csv").open("a") as file:
        file.write("4,9.0,1,1,1,1,1,1\n")  # logged, then killed before the next checkpoint
    second = trainer(tmp_path, made)
    assert second.resume()
    second.train()
    steps = [line.split(",")[0] for line in (tmp_path / "curve.csv").read_text().splitlines()[1:]]
    assert steps == ["1", "2", "3", "4", "5", "6"]


def test_training_lowers_the_loss_and_writes_the_curve(tmp_path):
    made = recipe(steps=40)
    run = trainer(tmp_path, made)
    run.train()
    lines = (tmp_path / "curve.csv").read_text().splitlines()
    columns = lines[0].split(",")
    first, last = (dict(zip(columns, map(float, lines[i].split(",")), strict=True)) for i in (1, -1))
    assert (first["step"], last["step"]) == (1, 40)
    assert last["next_token"] < first["next_token"] - 1
    assert last["masked"] < first["masked"] - 1


def test_accumulated_micro_batches_give_the_mean_gradient(tmp_path):
    made = recipe(accumulate=3)
    run = trainer(tmp_path, made)
    gradients = []
    for index in range(3):
        run.model.zero_grad()
        dual_stream_loss(run.model, run.data.batch(index)).total.backward()
        gradients.append(run.model.embed.weight.grad.clone())
    made_big = dataclasses.replace(made, optim=dataclasses.replace(made.optim, clip_norm=1e9))
    again = trainer(tmp_path, made_big)
    again.update()
    torch.testing.assert_close(again.model.embed.weight.grad, torch.stack(gradients).mean(0), rtol=1e-4, atol=1e-6)


def test_the_schedule_warms_up_and_comes_down():
    optim = OptimRecipe(warmup_steps=10, final_share=0.1)
    factors = [learning_rate_factor(step, step / 100, optim) for step in range(101)]
    assert factors[0] == pytest.approx(0.1 * 1.0, abs=0.01)
    assert max(factors) == max(factors[9:12])
    assert factors[10:] == sorted(factors[10:], reverse=True)
    assert factors[-1] == pytest.approx(0.1)
    half = learning_rate_factor(50, 0.5, optim)
    assert half == pytest.approx(0.1 + 0.9 * (1 + math.cos(math.pi / 2)) / 2)


def test_minutes_end_a_run_before_its_steps(tmp_path):
    run = trainer(tmp_path, recipe(steps=10**6, max_minutes=0.02))
    run.train()
    assert 0 < run.step < 10**6
    assert run.progress >= 1


def test_bf16_autocast_trains(tmp_path):
    run = trainer(tmp_path, recipe(bf16=True, steps=2))
    run.train()
    assert all(torch.isfinite(p).all() for p in run.model.parameters())
    assert all(p.dtype == torch.float32 for p in run.model.parameters())
