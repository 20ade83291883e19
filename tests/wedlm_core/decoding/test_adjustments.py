"""Adjusted rows among others: as the oracle says, by the device's columns of their slots."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from testing.engine.features import FEATURES, random_features
from testing.engine.oracle import History, adjusted
from wedlm_core.config import EngineConfig
from wedlm_core.decoding.strategies import decoding_of
from wedlm_core.engine.forward.device_state import DeviceState
from wedlm_core.kernels.cpu.adjusting import adjust_row, restore_row
from wedlm_core.kernels.cpu.sampling import scratch_of
from wedlm_core.types import Request, SamplingParams, Strategy

SLOTS, VOCABULARY, REACH = 6, 220, 40
WORDS = ((3,), (4, 5), (9, 9, 9))


def state_with(rng: random.Random, params: list[SamplingParams], prompts: list[list[int]]) -> DeviceState:
    """Slots of a device, set up twice: values left by others are not read."""
    config = EngineConfig(max_num_seqs=SLOTS, max_window=4, page_size=4, max_model_len=REACH, num_pages=8)
    state = DeviceState(config, [decoding_of(Strategy.VERIFIED, config)], 0, REACH, torch.device("cpu"))
    before = [SamplingParams(max_tokens=9, **random_features(rng, "verified", 9)) for _ in range(SLOTS)]
    for own in (before, params):
        requests = [
            Request(request_id=str(i), prompt_token_ids=tuple(prompt), params=p)
            for i, (p, prompt) in enumerate(zip(own, prompts, strict=True))
        ]
        words = [WORDS if p.bad_words else () for p in own]
        stops = [p.stop_token_ids or (7,) for p in own]
        state.setup(requests, list(range(SLOTS)), [0] * SLOTS, stops, words)
    return state


@pytest.mark.parametrize("name", [*FEATURES, "random"])
def test_rows_are_adjusted_as_the_oracle_says(name: str) -> None:
    rng = random.Random(name)
    for _ in range(6):
        fields: list[dict[str, Any]] = [
            {} if slot % 3 == 2 else FEATURES.get(name) or random_features(rng, "verified", 9) for slot in range(SLOTS)
        ]
        params = [SamplingParams(max_tokens=9, **{**f, "logit_bias": _small(f)}) for f in fields]
        prompts = [[rng.randrange(12) for _ in range(rng.randint(1, 6))] for _ in range(SLOTS)]
        outputs = [[rng.randrange(12) for _ in range(rng.randint(0, 12))] for _ in range(SLOTS)]
        state = state_with(rng, params, prompts)
        state.tokens_SL.copy_(torch.randint(0, VOCABULARY, state.tokens_SL.shape))
        for slot, (prompt, output) in enumerate(zip(prompts, outputs, strict=True)):
            known = torch.tensor([*prompt, *output])
            state.tokens_SL[slot, : len(known)] = known
            state.adjustments.known_S[slot] = len(known)
        rows = [(slot, rng.randint(0, len(outputs[slot]))) for slot in range(SLOTS) for _ in range(3)]
        logits_RV = torch.randn(len(rows), VOCABULARY, generator=torch.Generator().manual_seed(rng.randrange(999))) * 3
        found_RV, scratch, record = logits_RV.clone(), scratch_of(VOCABULARY).edits, state.adjustments_N.data_ptr()
        for row, (slot, place) in enumerate(rows):
            if state.adjustments.uses_S[slot]:
                count = adjust_row(found_RV.numpy(), row, slot, len(prompts[slot]) + place, record, scratch)
                kept_RV = found_RV.clone()
                restore_row(kept_RV.numpy(), row, scratch, count)
                assert torch.equal(kept_RV[row], logits_RV[row]), "what was changed is put back"
                assert not scratch.noted.any()
                assert not scratch.times.any()
        for row, (slot, place) in enumerate(rows):
            p = params[slot]
            history = History(stop_ids=p.stop_token_ids or (7,), bad_words=WORDS if p.bad_words else ())
            expected_V = adjusted(logits_RV[row], p, prompts[slot], outputs[slot][:place], history)
            torch.testing.assert_close(found_RV[row], expected_V, atol=1e-5, rtol=1e-6)
            if slot % 3 == 2:
                assert torch.equal(found_RV[row], logits_RV[row]), (
                    "a row without adjustments stays as it is, bit by bit"
                )


def _small(fields: dict[str, Any]) -> dict[int, float]:
    return {i: bias for i, bias in dict(fields.get("logit_bias", {})).items() if i < VOCABULARY}
