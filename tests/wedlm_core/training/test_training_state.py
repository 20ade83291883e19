"""Training checkpoints are read without running code, and damaged ones are refused."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from testing.engine.models import random_decoder
from testing.engine.refusals import assert_refused
from wedlm_core.errors import WeightsError
from wedlm_core.training.training_state import Progress, load_checkpoint, save_checkpoint


class Evil:
    """Creates a folder when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (os.mkdir, (str(self.path),))


def test_a_checkpoint_that_holds_code_is_refused_and_its_code_does_not_run(tmp_path: Path) -> None:
    model = random_decoder(qwen3=True, seed=0).requires_grad_(True)
    optimisers: list[torch.optim.Optimizer] = [torch.optim.AdamW(model.parameters())]
    save_checkpoint(tmp_path / "c.pt", model, optimisers, Progress(step=3, seconds=1.0), {"a": [1, 2.5, "x", None]})
    assert load_checkpoint(tmp_path / "c.pt", model, optimisers) == Progress(step=3, seconds=1.0)
    state = torch.load(tmp_path / "c.pt", weights_only=True)
    torch.save({**state, "recipe": Evil(tmp_path / "executed")}, tmp_path / "c.pt")
    assert_refused(lambda: load_checkpoint(tmp_path / "c.pt", model, optimisers), "^checkpoint=.*c.pt", (WeightsError,))
    assert not (tmp_path / "executed").exists()
    (tmp_path / "c.pt").write_bytes(b"half a file")
    assert_refused(lambda: load_checkpoint(tmp_path / "c.pt", model, optimisers), "^checkpoint=", (WeightsError,))
