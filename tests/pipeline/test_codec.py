"""Every sampling parameter reaches the pipeline: its column, the hash of parameters and the run's fingerprint."""

from __future__ import annotations

from copy import copy
from dataclasses import fields
from typing import Any

import numpy as np
import pytest

from pipeline.codec import (
    SamplingParams,
    StructuredOutputs,
    param_fault,
    param_of_text,
    params_hash,
    params_of_row,
    read_json,
)
from pipeline.config import RunConfig
from pipeline.fingerprint import fingerprint_fields
from pipeline.prompts.conversation import listed
from pipeline.prompts.structures import of_cell
from wedlm_core.errors import RequestError

NAMES = [f.name for f in fields(SamplingParams)]


def changed(name: str) -> SamplingParams:
    """Parameters with one changed, whatever its type is."""
    params = copy(SamplingParams())
    object.__setattr__(params, name, StructuredOutputs(regex="a") if name == "structured_outputs" else "another")
    return params


@pytest.mark.parametrize("name", NAMES)
def test_another_parameter_is_another_hash_and_another_run(name: str) -> None:
    # The seed has a column of its own.
    assert (params_hash(changed(name)) == params_hash(SamplingParams())) == (name == "seed")
    ours, plain = RunConfig(input="x", output="y", sampling=changed(name)), RunConfig(input="x", output="y")
    assert fingerprint_fields(ours) != fingerprint_fields(plain)


@pytest.mark.parametrize("name", NAMES)
def test_every_parameter_may_have_a_column(name: str) -> None:
    assert RunConfig(input="x", output="y", sampling_columns={name: "c"}).sampling_columns == {name: "c"}
    assert params_of_row(SamplingParams(), {name: None}) == SamplingParams()
    with pytest.raises(RequestError, match=name):
        params_of_row(SamplingParams(), {name: object()})


def test_parameters_of_earlier_versions_keep_their_hash_and_fingerprint() -> None:
    """An output that was begun before there were penalties goes on."""
    assert params_hash(SamplingParams()) == "24f997f017557c81"
    assert params_hash(SamplingParams(temperature=0.5, top_k=3, logprobs=True, stop="a")) == "4a6bff4e0d80b1fe"
    names = fingerprint_fields(RunConfig(input="x", output="y"))
    assert not {"sampling.min_p", "sampling.bad_words", "chat_template_kwargs"} & set(names)
    assert "sampling.min_p" in fingerprint_fields(RunConfig(input="x", output="y", sampling=SamplingParams(min_p=0.1)))


def test_the_number_of_most_likely_tokens_is_not_taken_for_a_flag() -> None:
    """1 == True in Python."""
    one, flag = SamplingParams(logprobs=1), SamplingParams(logprobs=True)
    assert params_hash(flag) != params_hash(one) != params_hash(SamplingParams(logprobs=2))
    fingerprints = [fingerprint_fields(RunConfig(input="x", output="y", sampling=p)) for p in (one, flag)]
    assert fingerprints[0] != fingerprints[1]


@pytest.mark.parametrize("bias", [{"7": 2, "9": None}, [(7, 2.0)], [[7, 2.0]], '{"7": 2.0}'], ids=str)
def test_a_bias_may_be_a_struct_a_map_or_json_text(bias: Any) -> None:
    assert params_of_row(SamplingParams(), {"logit_bias": bias}).bias_pairs == ((7, 2.0),)


@pytest.mark.parametrize("bias", ["{", "[7]", '{"a": 1}', [7], {"7": "x"}], ids=str)
def test_a_bias_that_is_none_is_refused_by_name(bias: Any) -> None:
    with pytest.raises(RequestError, match=r"^logit_bias="):
        params_of_row(SamplingParams(), {"logit_bias": bias})


@pytest.mark.parametrize("name", ["max_tokens", "top_k", "seed", "n", "window_size"])
def test_whole_floats_are_integers_where_the_parameter_takes_integers(name: str) -> None:
    found = getattr(params_of_row(SamplingParams(), {name: 4.0}), name)
    assert (found, type(found)) == (4, int)
    with pytest.raises(RequestError, match=name):
        params_of_row(SamplingParams(), {name: 4.5})


@pytest.mark.parametrize("name", ["temperature", "entropy_threshold", "position_penalty"])
def test_whole_floats_stay_floats_elsewhere(name: str) -> None:
    assert type(getattr(params_of_row(SamplingParams(), {name: 1.0}), name)) is float


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("max_tokens", "48", 48), ("temperature", "0.7", 0.7), ("seed", "7", 7), ("temperature", "", None),
        ("window_size", "auto", "auto"), ("ignore_eos", "true", True), ("stop", "7", "7"),
        ("stop", '["a", "b"]', ["a", "b"]),
        ("stop", "[1]", "[1]"), ("stop", "[]", []), ("stop", "", None), ("max_tokens", "many", "many"),
    ],
)  # fmt: skip
def test_a_parameter_in_a_column_of_values_of_any_kind_is_the_value_of_its_text(
    name: str, text: str, value: Any
) -> None:
    assert param_of_text(name, text) == value


@pytest.mark.parametrize(
    ("name", "fine", "faulty"),
    [
        ("stop", ["x", "5", ["x"], []], [5, [1], True, {"a": 1}, '["x"]', ""]),
        ("bad_words", ["x", ["y"]], [5, [["y"]]]),
        ("strategy", ["verified"], [5]),
        ("max_tokens", [2, 2.0, 2.7, True, [2], 2**70], ["2", "true", "", "[2]"]),
        ("window_size", ["auto", 8], ["8"]),
        ("ignore_eos", [True, 1], ["true"]),
        ("stop_token_ids", [[5], np.array([5, 6])], ["[5]"]),
        ("logit_bias", [{"5": 1}, '{"5": 1}'], []),
        ("structured_outputs", [{"type": "integer"}, '{"type": "integer"}'], []),
    ],
)
def test_a_parameter_among_values_of_any_kind_has_its_own_kind_or_a_fault(
    name: str, fine: list[Any], faulty: list[Any]
) -> None:
    assert [param_fault(name, value) for value in fine] == [None] * len(fine)
    for value in faulty:
        fault = param_fault(name, value)
        assert fault is not None
        assert fault.startswith(f"{name}={value!r}: ")


@pytest.mark.parametrize(
    "text", ['{"type": "integer", "type": "string"}', '[{"a": {"b": 1, "b": 1}}]', "[NaN]", "Infinity"]
)
def test_json_in_a_cell_that_would_lose_a_value_is_none(text: str) -> None:
    with pytest.raises(ValueError, match=r"occurs twice|is no number"):
        read_json(text)
    for refuse in (lambda: of_cell("m", text), lambda: listed("m", text)):
        with pytest.raises(RequestError, match=r"not JSON .*(occurs twice|is no number)"):
            refuse()
    with pytest.raises(RequestError, match="logit_bias"):
        params_of_row(SamplingParams(), {"logit_bias": text})
