"""Parameters of a request's body: each is honoured, known to be harmless, or refused with value, rule and remedy."""

from __future__ import annotations

from typing import Any, get_type_hints

import pytest

from pipeline.codec import RequestError, SamplingParams, params_of_row
from pipeline.prompts.batch_request import IGNORED, REFUSED, SAMPLED, STRUCTURED, body_params

OWN = frozenset({"model", "messages", "prompt"})


def params(chat: bool = True, **body: Any) -> dict[str, Any]:
    return body_params(body, chat=chat, own=OWN)


def test_what_the_engine_knows_goes_to_it_under_its_own_name() -> None:
    given = {"max_tokens": 5, "temperature": 0.5, "top_p": 0.9, "seed": 3, "stop": ["a"], "n": 2, "top_k": 4,
             "presence_penalty": 1, "frequency_penalty": -1, "logit_bias": {"5": 7},
             "strategy": "autoregressive"}  # fmt: skip
    assert params(**given) == given
    made = params_of_row(SamplingParams(), params(**given))
    assert (made.n, made.stop, made.logit_bias, made.strategy) == (2, ("a",), ((5, 7.0),), "autoregressive")


def test_two_names_for_the_number_of_tokens() -> None:
    assert params(max_completion_tokens=7) == {"max_tokens": 7}
    assert params(max_completion_tokens=7, max_tokens=7) == {"max_tokens": 7}
    with pytest.raises(RequestError, match=r"body\.max_completion_tokens=7: it contradicts max_tokens=9. Give one"):
        params(max_completion_tokens=7, max_tokens=9)
    with pytest.raises(RequestError, match=r"body\.max_completion_tokens=7: no parameter of this endpoint"):
        params(chat=False, max_completion_tokens=7)


@pytest.mark.parametrize(
    ("chat", "body", "wanted"),
    [
        (True, {"logprobs": True}, True),
        (True, {"logprobs": True, "top_logprobs": 0}, True),
        (True, {"logprobs": True, "top_logprobs": 3}, 3),
        (True, {"logprobs": False}, None),
        (True, {}, None),
        (False, {"logprobs": 0}, True),
        (False, {"logprobs": 4}, 4),
        (False, {}, None),
    ],
)
def test_log_probabilities_are_asked_for_in_two_ways(chat: bool, body: dict[str, Any], wanted: Any) -> None:
    assert params(chat=chat, **body).get("logprobs") is wanted or params(chat=chat, **body).get("logprobs") == wanted


SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


@pytest.mark.parametrize(
    ("body", "fields"),
    [
        ({"response_format": {"type": "text"}}, {}),
        ({"response_format": {"type": "json_object"}}, {"json_object": True}),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}},
            {"json": SCHEMA},
        ),
        ({"guided_json": SCHEMA}, {"json": SCHEMA}),
        ({"guided_json": SCHEMA, "guided_whitespace_pattern": " ?"}, {"json": SCHEMA, "whitespace_pattern": " ?"}),
        ({"guided_regex": "a"}, {"regex": "a"}),
        ({"guided_choice": ["a", "b"]}, {"choice": ["a", "b"]}),
        ({"guided_grammar": "start: x"}, {"grammar": "start: x"}),
        ({"structured_outputs": {"regex": "a"}}, {"regex": "a"}),
    ],
)
def test_what_the_answer_has_to_be_has_several_names(body: dict[str, Any], fields: dict[str, Any]) -> None:
    for chat in (True, False):
        assert params(chat=chat, **body) == {"structured_outputs": fields}
    made = params_of_row(SamplingParams(structured_outputs={"regex": "b"}), params(**body))
    assert (made.structure is None) == (fields == {}), "text is free text, whatever the run asks for"


@pytest.mark.parametrize(
    ("chat", "body", "words"),
    [
        (True, {"top_logprobs": 3}, "body.top_logprobs=3: logprobs is not true"),
        (True, {"logprobs": 3}, "body.logprobs=3: true or false for a chat"),
        (True, {"logprobs": True, "top_logprobs": "3"}, "body.top_logprobs='3': an integer"),
        (False, {"logprobs": True}, "body.logprobs=True: an integer"),
        (True, {"stream": True}, "body.stream=True: a batch has whole answers"),
        (True, {"response_format": "json"}, "body.response_format='json': an object whose type is one of"),
        (True, {"response_format": {"type": "xml"}}, "body.response_format=.*one of"),
        (True, {"response_format": {"type": "json_schema"}}, "body.response_format.json_schema=None"),
        (True, {"response_format": {"type": "text"}, "guided_json": {}}, "body.response_format=.*guided_json is there"),
        (True, {"structured_outputs": {}}, r"body.structured_outputs=\{\}: an object of fields"),
        (True, {"guided_whitespace_pattern": " "}, "body.guided_whitespace_pattern=' ': it is about JSON"),
        (True, {"guided_decoding_backend": "outlines"}, "body.guided_decoding_backend=.*one backend"),
        (True, {"tools": [{"type": "function"}]}, "body.tools=.*tool_choice"),
        (True, {"tool_choice": "required"}, "body.tool_choice='required'"),
        (True, {"reasoning_effort": "high"}, "body.reasoning_effort='high'"),
        (False, {"echo": True}, "body.echo=True"),
        (False, {"suffix": "x"}, "body.suffix='x'"),
        (False, {"best_of": 3, "n": 2}, "body.best_of=3: answers are not ranked"),
        (True, {"temprature": 1}, "body.temprature=1: no parameter of this endpoint. Did you mean 'temperature'"),
        (True, {"zzz": 1}, "body.zzz=1: no parameter of this endpoint. Leave it out"),
    ],
)
def test_what_is_not_honoured_is_refused_with_value_rule_and_remedy(
    chat: bool, body: dict[str, Any], words: str
) -> None:
    with pytest.raises(RequestError, match=words):
        params(chat=chat, **body)


def test_what_asks_for_nothing_is_taken() -> None:
    assert params(stream=False, tools=[], tool_choice="auto", echo=False) == {}
    assert params(chat=False, best_of=2, n=2) == {"n": 2}
    assert params(**dict.fromkeys(REFUSED)) == {}, "null is as good as absent"
    assert params(**dict.fromkeys(IGNORED, "x")) == {}


def test_every_parameter_of_the_official_client_is_decided_upon() -> None:
    from openai.types import completion_create_params
    from openai.types.chat import completion_create_params as chat_create_params

    decided = {*SAMPLED, *IGNORED, *REFUSED, *STRUCTURED, "logprobs", *OWN}
    for module, name, extra in (
        (chat_create_params, "CompletionCreateParamsBase", {"max_completion_tokens", "top_logprobs"}),
        (completion_create_params, "CompletionCreateParamsBase", {"best_of"}),
    ):
        known = set(get_type_hints(getattr(module, name)))
        assert len(known) > 10
        assert known <= decided | extra, f"not decided: {known - decided - extra}"
    assert not (IGNORED & REFUSED.keys()) | (SAMPLED & REFUSED.keys()) | (SAMPLED & IGNORED)
