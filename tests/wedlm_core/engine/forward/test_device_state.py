"""The device's columns of requests: every parameter in its column, and no filter that the host's bound overlooks."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from wedlm_core.config import EngineConfig
from wedlm_core.config.engine_config import StreamingSwitches
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


def blank_state() -> DeviceState:
    config = EngineConfig(max_num_seqs=SLOTS, max_window=4, page_size=4, max_model_len=32, num_pages=8)
    decoding = decoding_of(Strategy.VERIFIED, StreamingSwitches())
    return DeviceState(config, [decoding], 0, 32, torch.device("cpu"))


def state_with(params: dict[int, SamplingParams]) -> tuple[DeviceState, list[Request]]:
    """Slots set up for requests of these parameters."""
    state = blank_state()
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
    assert state.optional.any(axis=1).tolist() == [False, False, True, False]
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


PLAIN = SamplingParams(temperature=1.0)
OTHER = {one.field: one.example for one in OPTIONAL} | {
    "max_tokens": 9, "temperature": 0.5, "entropy_threshold": 0.75, "position_penalty": 2.0, "logprobs": 3,
}  # fmt: skip


def test_parameters_that_differ_in_what_the_host_reads_are_not_written_again(monkeypatch: pytest.MonkeyPatch) -> None:
    written = list[tuple[int, ...]]()

    def note(state: DeviceState, requests: list[Request], slots_S: np.ndarray, stop_ids: list[tuple[int, ...]]) -> None:
        written.append(tuple(slots_S.tolist()))

    monkeypatch.setattr(DeviceState, "_set_params", note)
    state = blank_state()
    for stop, ids in ((("a",), (3,)), (("b",), (3,)), (("b",), (4,)), (("c",), (4,))):
        params = [replace(PLAIN, stop=stop), replace(PLAIN, max_tokens=5, stop=stop)]
        requests = [Request(request_id="0", prompt_token_ids=(1, 2), params=one, seed=5) for one in params]
        state.setup(requests, [3, 1], [0, 0], [ids, (3,)])
    assert written == [(3, 1), (3,)]


KINDS = [
    SamplingParams(),
    SamplingParams(temperature=1.0, top_p=0.5, max_tokens=9),
    SamplingParams(temperature=1.0, logprobs=3, stop_token_ids=(5,)),
    SamplingParams(presence_penalty=0.5, logit_bias={7: 2.0}),
    *(SamplingParams(**{"temperature": 1.0, name: value}) for name, value in OTHER.items()),
]
assert {p.field for p in PARAMETERS if not p.own} <= OTHER.keys(), "each value differs from the usual one once"


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_a_slot_is_what_its_last_request_makes_it_whoever_had_it_before(seed: int) -> None:
    rng, number = np.random.default_rng(seed), 0
    state, last = blank_state(), dict[int, tuple[Request, list[int]]]()
    for _ in range(8):
        slots, new = rng.permutation(SLOTS)[: rng.choice([1, 1, 2, SLOTS])].tolist(), []
        for slot in slots:
            again, number = slot in last and rng.random() < 0.7, number + 1
            params = last[slot][0].params if again else KINDS[rng.integers(len(KINDS))]
            # Parameters that are alike are seldom the same object twice, and then too.
            params = params if rng.random() < 0.8 else replace(params)
            prompt = tuple(rng.integers(0, 20, rng.integers(1, 6)).tolist())
            request = Request(request_id=str(number), prompt_token_ids=prompt, params=params, seed=number)
            last[slot] = request, last[slot][1] if again and rng.random() < 0.8 else [2, 3][: rng.integers(0, 3)]
            new.append(last[slot])
        if rng.random() < 0.3:  # first others come, with the same parameters or any, and are interrupted
            kinds = [replace(new[0][0], params=KINDS[rng.integers(len(KINDS))]), new[0][0]]
            others = [(kinds[rng.integers(2)], [2, 3][: rng.integers(0, 3)]) for _ in slots]
            interrupt(state, others, slots, rng)
        state.setup([one for one, _ in new], slots, [0] * len(slots), [ids for _, ids in new], bad_of(new))
    fresh = blank_state()
    own = list(last.values())
    fresh.setup([one for one, _ in own], [*last], [0] * len(own), [ids for _, ids in own], bad_of(own))
    slots_S = np.array([*last])
    for name, column in fresh.columns.items():
        if name in {one.field for one in OPTIONAL}:
            using_S = fresh.optional[slots_S].any(axis=1)  # the columns of others are read by no one
            assert torch.equal(state.columns[name][slots_S[using_S]], column[slots_S[using_S]]), name
        else:
            assert torch.equal(state.columns[name][slots_S], column[slots_S]), name
    for name in ("uses", "tops", "_adjusted"):
        np.testing.assert_array_equal(getattr(state, name)[slots_S], getattr(fresh, name)[slots_S], err_msg=name)
    assert torch.equal(state.params.stop_SK[slots_S], fresh.params.stop_SK[slots_S])
    adjusted_S = slots_S[fresh._adjusted[slots_S]]
    for name in ("prompt_S", "uses_S"):
        found, wanted = getattr(state.adjustments, name), getattr(fresh.adjustments, name)
        assert torch.equal(found[adjusted_S], wanted[adjusted_S]), name


def interrupt(
    state: DeviceState, new: list[tuple[Request, list[int]]], slots: list[int], rng: np.random.Generator
) -> None:
    """Begin to set slots up, and be interrupted before or after a part of it, if it comes to that."""
    name, is_behind = ("_set_params", "_set_adjustments")[rng.integers(2)], rng.random() < 0.5
    part = getattr(state, name)

    def interrupted(*args: Any) -> None:
        if is_behind:
            part(*args)
        raise KeyboardInterrupt

    with suppress(KeyboardInterrupt), mock.patch.object(state, name, interrupted):
        state.setup([one for one, _ in new], slots, [0] * len(slots), [ids for _, ids in new], bad_of(new))


def bad_of(new: list[tuple[Request, list[int]]]) -> list[list[list[int]]]:
    return [[[7, 8]] if request.params.bad_words else [] for request, _ in new]
