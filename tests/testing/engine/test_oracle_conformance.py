"""The slow reference decoder and its position selection reproduce every conformance case."""

from __future__ import annotations

from typing import Any

import pytest

from testing.engine.cases import assert_steps_equal, case, case_ids, decoder, needs_cases, params_of, selection_cases
from testing.engine.oracle import positions_to_fill, reference
from wedlm_core.types import FinishReason

pytestmark = needs_cases

REASONS = {"stop_token": FinishReason.STOP, "length": FinishReason.LENGTH}


@pytest.mark.sweep(6)
@pytest.mark.parametrize("name", case_ids())
def test_oracle_reproduces_the_case(name: str) -> None:
    expected = case(name)
    model = decoder(expected["model"])
    for number, sequence in enumerate(expected["sequences"]):
        params = params_of(sequence["params"], expected["window_size"])
        result = reference(model, sequence["prompt_token_ids"], params, expected["mask_token_id"])
        assert list(result.token_ids) == sequence["output_token_ids"]
        assert result.finish_reason == REASONS[sequence["finish_reason"]]
        assert_steps_equal(result.steps, sequence["steps"], f"{name}, sequence {number}")


@pytest.mark.parametrize("raw", selection_cases())
def test_plain_selection_reproduces_the_case(raw: dict[str, Any]) -> None:
    found = positions_to_fill(raw["entropy"], raw["remaining_mask_indices"], raw["threshold"], raw["penalty"])
    assert found == raw["fill"]
