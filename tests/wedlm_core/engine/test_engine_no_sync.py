"""An asynchronous step uses no operation whose result's shape or value the host has to ask the device for.

On a CPU nothing is waited for, but the operations that would wait on a GPU can be seen: this finds them on every
machine. ``test_engine_gpu.py`` has CUDA itself check.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from testing.engine.engines import COST, loaded, requests_of
from testing.engine.features import FEATURES
from wedlm_core.config import EngineConfig
from wedlm_core.engine import Engine
from wedlm_core.engine.forward.async_launch import AsyncLaunch
from wedlm_core.engine.forward.pack_gpu import DeviceBatch
from wedlm_core.types import SamplingParams

UNORDERED: dict[str, Any] = {"min_p": 0.01, "min_tokens": 3, "logit_bias": {7: 1.0}}
STRATEGIES = ("verified", "reference", "streaming", "autoregressive", "blockwise")
WAITING = ("_local_scalar_dense", "nonzero", "masked_select", "unique", "is_nonzero", "equal", "bincount")


class NoWaiting(TorchDispatchMode):
    """Raises on operations that wait for the device."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.__name__.split(".")[0].lstrip("_")
        assert name not in {w.lstrip("_") for w in WAITING}, f"{func} waits for the device"
        if name in ("index", "index_put"):
            assert all(i is None or i.dtype != torch.bool for i in args[1]), f"{func} counts its flags"
        if name == "repeat_interleave":
            assert (kwargs or {}).get("output_size") is not None, f"{func} sums its counts"
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("operation", "waits"),
    [
        (lambda x: x.sum().item(), True),
        (lambda x: x[x > 0], True),
        (lambda x: torch.nonzero(x), True),
        (lambda x: x[torch.tensor([0])], False),
        (lambda x: torch.where(x > 0, x, 0), False),
    ],
)
def test_the_detector(operation: Any, waits: bool) -> None:
    if not waits:
        with NoWaiting():
            operation(torch.ones(3))
        return
    with NoWaiting(), pytest.raises(AssertionError):
        operation(torch.ones(3))


@pytest.mark.parametrize("window", [4, "auto"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_no_step_waits(agreeing_folder: Path, strategy: str, window: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """From planning to accounting, admission and chunked prefill included; the decoder is left to the backends."""
    plain = AsyncLaunch._run_model

    def unwatched(self: AsyncLaunch, batch: DeviceBatch) -> torch.Tensor:
        with _disable_current_modes():
            return plain(self, batch)

    monkeypatch.setattr(AsyncLaunch, "_run_model", unwatched)
    config = EngineConfig(
        max_window=16, page_size=4, num_pages=200, prefill_chunk=5, overlap=True,
        step_cost=COST,
    )  # fmt: skip
    engine = Engine(*loaded(agreeing_folder), config)
    params = SamplingParams(
        max_tokens=9, temperature=0.8, strategy=strategy, window_size=window, 
        **(FEATURES["all"] if strategy in ("verified", "autoregressive") else UNORDERED),
    )  # fmt: skip
    finished = 0
    for request in requests_of([list(range(2, 3 + 4 * i)) for i in range(6)], params):
        engine.add(request)
        with NoWaiting():
            finished += len(engine.step())
    while engine.has_work():
        with NoWaiting():
            finished += len(engine.step())
    assert finished == 6
