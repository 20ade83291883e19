"""Every field of ``SamplingParams`` is on the device or known to be the host's; none can be forgotten."""

from __future__ import annotations

import math
from dataclasses import make_dataclass

import pytest
import torch

from wedlm_core.decoding import parameters
from wedlm_core.decoding.filters import FILTERS
from wedlm_core.decoding.parameters import OPTIONAL, PARAMETERS
from wedlm_core.errors import IntegrityError
from wedlm_core.types import Request, SamplingParams


def test_a_field_in_no_table_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    wider = make_dataclass("Wider", [("new_field", float, 0.0)], bases=(SamplingParams,), frozen=True, kw_only=True)
    monkeypatch.setattr(parameters, "SamplingParams", wider)
    with pytest.raises(IntegrityError, match="new_field"):
        parameters._check_all_fields()


@pytest.mark.parametrize("table", ["PARAMETERS", "HOST_FIELDS"])
def test_a_table_with_a_field_too_few_is_an_error(table: str, monkeypatch: pytest.MonkeyPatch) -> None:
    parameters._check_all_fields()
    monkeypatch.setattr(parameters, table, type(getattr(parameters, table))(list(getattr(parameters, table))[1:]))
    with pytest.raises(IntegrityError, match="no table"):
        parameters._check_all_fields()


def test_columns_hold_what_the_request_says() -> None:
    params = SamplingParams(
        max_tokens=9, temperature=0.5, top_p=0.25, top_k=3, seed=4, entropy_threshold=None, position_penalty=0.125
    )
    request = Request(request_id="a", prompt_token_ids=(1,), params=params, seed=77)
    found = {p.field: p.of(request) for p in PARAMETERS}
    assert (found["max_tokens"], found["temperature"], found["top_p"], found["top_k"]) == (9, 0.5, 0.25, 3)
    assert (found["entropy_threshold"], found["position_penalty"]) == (-math.inf, 0.125)
    assert found["seed"] == 77, "of the sample"


def test_a_request_that_asks_for_no_filter_uses_none() -> None:
    for one in OPTIONAL:
        assert getattr(SamplingParams(), one.field) == one.off
    for one in FILTERS:
        assert {p.field: p for p in PARAMETERS}[one.field].unused == one.off
        assert one.dtype in (torch.int64, torch.float32)
