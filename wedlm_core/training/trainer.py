"""The training loop: from batches to checkpoints and loss curves, in one process or several."""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from wedlm_core.model.decoder import Decoder
from wedlm_core.training.data import TrainingData
from wedlm_core.training.loss import LossParts, dual_stream_loss
from wedlm_core.training.optim import build_optimisers, learning_rate_factor, set_learning_rate
from wedlm_core.training.recipe import Recipe
from wedlm_core.training.sharding import shard, whole
from wedlm_core.training.training_state import Progress, load_checkpoint, save_checkpoint

CHECKPOINT = "checkpoint.pt"
CURVE = "curve.csv"
VALIDATION = "validation.csv"
CURVE_COLUMNS = ("step", "seconds", "lr_factor", "loss", "next_token", "masked", "grad_norm", "rows_per_second")


def _append(path: Path, columns: tuple[str, ...], values: tuple[object, ...]) -> None:
    new = not path.exists()
    with path.open("a", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        if new:
            writer.writerow(columns)
        writer.writerow(values)


def _keep_until(path: Path, step: int) -> None:
    """Drop the lines of a curve that an interrupted run logged after its last checkpoint."""
    if not path.exists():
        return
    head, *lines = path.read_text(encoding="utf-8").splitlines()
    kept = [line for line in lines if int(line.split(",", 1)[0]) <= step]
    path.write_text("\n".join([head, *kept]) + "\n", encoding="utf-8")


class Trainer:
    """Trains ``model`` by ``recipe`` and writes into ``folder``.

    If a process group is initialised, each rank has its own micro-batches: in step s of R ranks with accumulation A,
    a rank has A micro-batches from number ``s*R*A + rank*A`` on. So R ranks equal one process that accumulates R*A.
    Gradients are averaged over micro-batches and ranks, and the model is sharded over the ranks.

    Args:
        model: decoder on the device to train on, in float32; equal on all ranks.
        data: the batches.
        recipe: all other settings.
        folder: holds the checkpoint, ``curve.csv`` and ``validation.csv``; rank 0 writes them.
        log: called with progress lines.
    """

    def __init__(
        self, model: Decoder, data: TrainingData, recipe: Recipe, folder: Path, log: Callable[[str], None] = print
    ) -> None:
        self.model, self.data, self.recipe, self.folder, self.log = model, data, recipe, folder, log
        grouped = dist.is_available() and dist.is_initialized()
        self.rank, self.world = (dist.get_rank(), dist.get_world_size()) if grouped else (0, 1)
        self.device = model.device
        if self.world > 1:
            shard(model)
        self.optimisers = build_optimisers(model, recipe.optim)
        self.forward = torch.compile(model, dynamic=False) if recipe.run.compile else None
        self.step, self.seconds = 0, 0.0

    def resume(self) -> bool:
        """Continue from the folder's checkpoint; False if there is none."""
        path = self.folder / CHECKPOINT
        if not path.is_file():
            return False
        progress = load_checkpoint(path, self.model, self.optimisers)
        self.step, self.seconds = progress.step, progress.seconds
        if self.rank == 0:
            _keep_until(self.folder / CURVE, self.step)
            _keep_until(self.folder / VALIDATION, self.step)
        return True

    def save(self) -> None:
        """Write the checkpoint; every rank calls it."""
        progress = Progress(step=self.step, seconds=self.seconds)
        save_checkpoint(
            self.folder / CHECKPOINT, self.model, self.optimisers, progress, dataclasses.asdict(self.recipe)
        )

    @property
    def progress(self) -> float:
        """Share of the run that is done, by steps or by minutes, whichever is larger."""
        run = self.recipe.run
        by_steps = self.step / run.steps
        return by_steps if run.max_minutes is None else max(by_steps, self.seconds / 60 / run.max_minutes)

    def train(self, until_step: int | None = None) -> None:
        """Train to the end of the recipe (or to ``until_step``); log and save periodically."""
        run = self.recipe.run
        torch.set_num_threads(run.threads)
        if self.rank == 0:
            self.folder.mkdir(parents=True, exist_ok=True)
        rows = self.recipe.data.rows * self.recipe.data.length * self.recipe.optim.accumulate * self.world
        while self.progress < 1.0 and self.step != until_step:
            started = time.monotonic()
            factor = learning_rate_factor(self.step, self._agreed(self.progress), self.recipe.optim)
            set_learning_rate(self.optimisers, factor)
            parts, norm = self.update()
            self.step += 1
            elapsed = time.monotonic() - started
            self.seconds = self._agreed(self.seconds + elapsed)
            if self.rank == 0 and (self.step % run.log_every == 0 or self.step == 1):
                self._log(factor, parts, norm, rows / elapsed)
            if self.step % run.checkpoint_every == 0:
                self.save()
            if run.validate_every and self.step % run.validate_every == 0:
                self._validate()
        self.save()

    def update(self) -> tuple[LossParts, float]:
        """Run one optimiser step; return the last micro-batch's losses and the gradient norm before clipping."""
        accumulate = self.recipe.optim.accumulate
        first = (self.step * self.world + self.rank) * accumulate
        for optimiser in self.optimisers:
            optimiser.zero_grad(set_to_none=True)
        for index in range(first, first + accumulate):
            batch = self.data.batch(index).to(self.device)
            with self._precision():
                parts = dual_stream_loss(self.model, batch, self.forward)
            (parts.total / accumulate).backward()
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.recipe.optim.clip_norm)
        for optimiser in self.optimisers:
            optimiser.step()
        return parts, float(whole(norm))

    def _precision(self) -> contextlib.AbstractContextManager[object]:
        wanted = self.recipe.run.bf16
        if wanted or (wanted is None and self.device.type == "cuda"):
            return torch.autocast(self.device.type, dtype=torch.bfloat16)
        return contextlib.nullcontext()

    def _agreed(self, value: float) -> float:
        """Rank 0's value on all ranks: with different clocks they would run different numbers of steps."""
        if self.world == 1:
            return value
        tensor: Tensor = torch.tensor(value, dtype=torch.float64, device=self.device)
        dist.broadcast(tensor, 0)
        return float(tensor)

    def _log(self, factor: float, parts: LossParts, norm: float, speed: float) -> None:
        losses = (float(parts.total.detach()), float(parts.next_token), float(parts.masked))
        values = (self.step, self.seconds, factor, *losses, norm, speed)
        _append(self.folder / CURVE, CURVE_COLUMNS, tuple(round(v, 5) for v in values))
        left = self.seconds * (1 / self.progress - 1) / 60
        self.log(
            f"step {self.step} of {self.recipe.run.steps}, {self.seconds / 60:.1f} min, about {left:.1f} left, "
            f"lr x{factor:.3f} next-token {losses[1]:.4f} masked {losses[2]:.4f} norm {norm:.2f} {speed:.0f} tokens/s"
        )

    def _validate(self) -> None:
        found = self.data.validate(self.model)
        if self.rank == 0 and found:
            _append(self.folder / VALIDATION, ("step", *found), (self.step, *(round(v, 4) for v in found.values())))
            self.log(f"step {self.step} validation " + " ".join(f"{name} {v:.3f}" for name, v in found.items()))
