"""What the device keeps of requests: every parameter in its column, and no filter that the host's bound overlooks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from wedlm_core.config import EngineConfig
from wedlm_core.config.streaming import StreamingSwitches
from wedlm_core.decoding.adjustments import Adjustment
from wedlm_core.decoding.filters import Filter
from wedlm_core.decoding.parameters import OPTIONAL, PARAMETERS
from wedlm_core.decoding.strategies import decoding_of
from wedlm_core.engine.forward.device_state import DeviceState
from wedlm_core.types import Request, SamplingParams, Strategy

SLOTS = 4


def plain_with(params: SamplingParams, one: Filter | Adjustment) -> SamplingParams:
    given: dict[str, Any] = {one.field: one.example}
    return replace(params, **given)


def state_with(params: dict[int, SamplingParams]) -> tuple[DeviceState, list[Request]]:
    """Slots set up for requests of these parameters."""
    config = EngineConfig(max_num_seqs=SLOTS, max_window=4, page_size=4, max_model_len=32, num_pages=8)
    decoding = decoding_of(Strategy.VERIFIED, StreamingSwitches())
    state = DeviceState(config, [decoding], 0, 32, torch.device("cpu"))
    requests = [
        Request(request_id=str(slot), prompt_token_ids=(1, 2, 3), params=p, seed=100 + slot)
        for slot, p in params.items()
    ]
    state.setup(requests, list(params), [0] * len(params), [[] for _ in params])
    return state, requests


@pytest.mark.parametrize("one", OPTIONAL, ids=lambda one: one.field)
def test_a_slot_with_one_filter_or_adjustment_counts_whichever_it_is(one: Filter | Adjustment) -> None:
    plain = SamplingParams(temperature=1.0)
    state, _ = state_with({0: plain, 2: plain_with(plain, one), 3: plain})
    assert state.uses_optional(np.arange(SLOTS)).tolist() == [False, False, True, False]
    assert state.sampled.tolist() == [True, False, True, True]


def test_every_parameter_is_in_its_slot_and_nowhere_else() -> None:
    own = SamplingParams(
        max_tokens=9, temperature=0.5, top_p=0.25, top_k=3, entropy_threshold=0.75, position_penalty=2.0
    )
    state, requests = state_with({1: own, 3: replace(own, max_tokens=5)})
    for parameter in PARAMETERS:
        expected = torch.full((SLOTS,), parameter.unused, dtype=parameter.dtype)
        for slot, request in zip((1, 3), requests, strict=True):
            expected[slot] = parameter.of(request)
        assert torch.equal(state.columns[parameter.field], expected), parameter.field
    assert state.params.limit_S.tolist() == [0, 9, 0, 5]
    assert state.params.threshold_S.tolist() == [0, 0.75, 0, 0.75]
