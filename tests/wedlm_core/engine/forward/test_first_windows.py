"""First windows of new sequences in slots that others have left."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from wedlm_core.config import EngineConfig
from wedlm_core.decoding.strategies import decoding_of
from wedlm_core.decoding.window_state import Window, empty_windows
from wedlm_core.engine.forward import first_windows
from wedlm_core.engine.forward.device_state import DeviceState
from wedlm_core.types import Request, SamplingParams, Strategy

SLOTS, MASK = 5, 77
STRATEGIES = (Strategy.VERIFIED, Strategy.REFERENCE, Strategy.STREAMING, Strategy.AUTOREGRESSIVE)
KINDS = [
    SamplingParams(max_tokens=3),
    SamplingParams(temperature=1.0, entropy_threshold=0.5),
    SamplingParams(max_tokens=50, position_penalty=0.1),
]


def used_state(seed: int) -> DeviceState:
    """A state whose slots hold whatever sequences left there; of one seed they are equal."""
    config = EngineConfig(max_num_seqs=SLOTS, max_window=4, page_size=4, max_model_len=32, num_pages=8)
    decodings = [decoding_of(strategy, config) for strategy in STRATEGIES]
    state = DeviceState(config, decodings, MASK, 32, torch.device("cpu"))
    rng = np.random.default_rng(seed)
    for tensor in written(state).values():
        tensor.copy_(torch.from_numpy(rng.integers(0, 2 if tensor.dtype == torch.bool else 90, tensor.shape)))
    state._host_windows_3S[:] = rng.integers(0, 5, (3, SLOTS))
    state.suppresses[:] = rng.random(SLOTS) < 0.5
    return state


def written(state: DeviceState) -> dict[str, torch.Tensor]:
    windows = {field.name: getattr(state.windows, field.name) for field in fields(Window)}
    own = {"context": state.context_S, "seed": state.columns["seed"], "suppress": state.suppress_S}
    return {**windows, **own, "tokens": state.tokens_SL}


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_first_windows_are_those_of_the_decoding_whatever_was_in_the_slot(seed: int) -> None:
    rng, state = np.random.default_rng(seed), used_state(seed)
    slots = rng.permutation(SLOTS)[: rng.integers(1, SLOTS + 1)].tolist()
    prompts = [tuple(rng.integers(0, 20, rng.integers(1, 9)).tolist()) for _ in slots]
    requests = [
        Request(request_id=str(n), prompt_token_ids=p, params=KINDS[rng.integers(3)], seed=int(rng.integers(2**62)))
        for n, p in enumerate(prompts)
    ]
    groups = rng.integers(0, len(STRATEGIES), len(slots)).tolist()
    state.setup(requests, slots, groups, [()] * len(slots))
    np.testing.assert_array_equal(state.suppresses[slots], state.suppress_S.numpy()[slots])
    check_windows(state, requests, slots, groups)


def check_windows(state: DeviceState, requests: list[Request], slots: list[int], groups: list[int]) -> None:
    """The windows are those that the decodings make of empty ones."""
    for request, slot, number in zip(requests, slots, groups, strict=True):
        decoding, at = state.decodings[number], torch.tensor([slot])
        width = state.windows.token_SL.shape[1]
        fresh, found = empty_windows(1, width, torch.device("cpu")), state.windows.gather(at, width)
        fresh.token_SL.fill_(MASK)
        if decoding.head:
            fresh.head_S.fill_(request.prompt_token_ids[-1])
        planned = torch.from_numpy(state._host_windows_3S[:, [slot]])
        columns = {
            "entropy_threshold": torch.tensor([-torch.inf if (t := request.params.entropy_threshold) is None else t]),
            "position_penalty": torch.tensor([request.params.position_penalty]),
            "max_tokens": torch.tensor([request.params.max_tokens]),
        }
        decoding.refill(fresh, first_windows.window_params(planned, columns, torch.tensor([[-1]])), MASK)
        for field in fields(Window):
            assert torch.equal(getattr(found, field.name), getattr(fresh, field.name)), field.name
        length = len(request.prompt_token_ids)
        assert state.context_S[slot] == length - decoding.head
        assert state.columns["seed"][slot] == request.seed
        assert tuple(state.tokens_SL[slot, :length].tolist()) == request.prompt_token_ids
