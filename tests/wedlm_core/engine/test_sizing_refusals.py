"""A pool, or slots, that no memory holds are refused at once, before a page of them is made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from testing.engine.engines import loaded
from testing.engine.refusals import assert_refused
from wedlm_core.config import EngineConfig
from wedlm_core.engine import Engine
from wedlm_core.engine.forward.device_state import DeviceState
from wedlm_core.engine.sizing import check_room, state_bytes
from wedlm_core.errors import ConfigError


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"num_pages": 2**31 - 1}, "^num_pages=2147483647: the KV pool takes .* GiB, and cpu has"),
        ({"kv_cache_bytes": 1 << 48}, "^kv_cache_bytes=281474976710656: the KV pool takes 262144.0 GiB"),
    ],
)
def test_what_no_memory_holds_is_refused_before_it_is_allocated(
    agreeing_folder: Path, fields: dict[str, Any], words: str
) -> None:
    model, tokenizer = loaded(agreeing_folder)
    Engine(model, tokenizer)  # the engine's kernels are compiled
    assert_refused(lambda: Engine(model, tokenizer, EngineConfig(**fields)), words, (ConfigError,))


def test_slots_that_no_memory_holds_are_refused() -> None:
    config = EngineConfig(max_num_seqs=1 << 14)
    words = "^max_num_seqs, positions='16384, 4194304': the state of so many sequences takes 5.* GiB, and cpu has"
    assert_refused(lambda: check_room(config, 512 << 20, 1 << 22, torch.device("cpu")), words, (ConfigError,))
    check_room(config, 512 << 20, 1024, torch.device("cpu"))


def test_the_bytes_that_slots_are_said_to_take_are_those_they_take() -> None:
    config = EngineConfig(max_num_seqs=8, max_window=32, page_size=16)
    state = DeviceState(config, [], 0, 4000, torch.device("cpu"))
    tensors = [state.tokens_SL, state.pages_SP, state.device_pages_SP, *vars(state.windows).values()]
    real = sum(t.numel() * t.element_size() for t in tensors)
    assert state_bytes(config, 4000) == pytest.approx(real, rel=0.01)
