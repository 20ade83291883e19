"""Training checkpoints: model, optimisers, step (the data position) and generators. A resumed run is bit-exact."""

from __future__ import annotations

import os
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

from wedlm_core.errors import WeightsError, explain, first_line
from wedlm_core.training.sharding import WHOLE


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Progress of a run: optimiser steps done (they determine the next batches) and seconds spent."""

    step: int
    seconds: float


def save_checkpoint(
    path: Path, model: nn.Module, optimisers: list[torch.optim.Optimizer], progress: Progress, recipe: dict[str, Any]
) -> None:
    """Write atomically: a reader sees the complete old file or the complete new one.

    Every rank calls it, and rank 0 writes the whole state, so that another number of processes can read it.
    """
    model_state, optimiser_state = get_state_dict(model, optimisers, options=WHOLE)
    if not model_state:
        return
    state = {
        "model": model_state,
        "optimisers": optimiser_state,
        "step": progress.step,
        "seconds": progress.seconds,
        "torch_rng": torch.get_rng_state(),
        "cuda_rng": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        "python_rng": random.getstate(),
        "recipe": recipe,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + f".{os.getpid()}.partial")
    torch.save(state, partial)
    os.replace(partial, path)


def load_checkpoint(path: Path, model: nn.Module, optimisers: list[torch.optim.Optimizer]) -> Progress:
    """Restore the model and the optimisers in place. Only tensors and plain values are read, never code.

    Raises:
        RuntimeError: the checkpoint is of another model.
        WeightsError: it is damaged, or holds more than tensors and plain values.
    """
    try:
        # Mapped: each process of a machine reads its part, and none has all of it in memory.
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except OSError:
        raise
    except Exception as error:  # a damaged file may raise anything
        reason = f"not a checkpoint of tensors and plain values ({first_line(error)})"
        raise WeightsError(explain("checkpoint", str(path), reason, "Begin again, or take an older one.")) from error
    set_state_dict(
        model, optimisers, model_state_dict=state["model"], optim_state_dict=state["optimisers"], options=WHOLE
    )
    torch.set_rng_state(state["torch_rng"])
    if state["cuda_rng"]:
        torch.cuda.set_rng_state_all(state["cuda_rng"])
    random.setstate(state["python_rng"])
    return Progress(step=state["step"], seconds=state["seconds"])
