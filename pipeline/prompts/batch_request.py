"""The prompt and the sampling parameters of a line of an OpenAI batch."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from pipeline.codec import Failure, RequestError, SamplingParams, explain
from pipeline.plan.job import Job
from pipeline.prompts.conversation import conversation
from pipeline.prompts.limited_process import UnstartedError
from pipeline.prompts.prompt import ChatCells, chat_prompt, checked_ids, marked, no_value, noted
from pipeline.prompts.structures import of_response_format
from pipeline.prompts.tools import Offer, offer, with_form
from pipeline.settings.tool_calls import tool_choice_of
from pipeline.sources.formats.openai_batch import BATCH_COLUMNS

SAMPLED = frozenset(field.name for field in fields(SamplingParams)) - {"logprobs", "structured_outputs"}
"""Parameters that go to the engine under their own names."""

IGNORED = frozenset({
    "metadata", "parallel_tool_calls", "prediction", "prompt_cache_key", "prompt_cache_options",
    "prompt_cache_retention", "safety_identifier", "service_tier", "store", "user",
})  # fmt: skip
"""Parameters that do not change the answer: they bear on billing, storage, caching or tracing, or on tools where there
are none."""


@dataclass(frozen=True, kw_only=True)
class _Refused:
    """A parameter that is not honoured. ``harmless``: its values that change nothing."""

    rule: str
    remedy: str
    harmless: tuple[Any, ...] = ()


_NO_TOOLS = _Refused(
    rule="this run does not read calls of tools out of answers",
    remedy='Leave it out, or set tool_choice="auto" for the run.',
    harmless=([], "none", "auto"),
)
_OLD_TOOLS = _Refused(
    rule="the API has tools and tool_choice in its place", remedy="Use these.", harmless=([], "none", "auto")
)
_TEXT_ONLY = _Refused(rule="answers are text", remedy="Leave it out.", harmless=(["text"],))
_NOT_HERE = _Refused(rule="models are not asked to do this here", remedy="Leave it out, or say it in the prompt.")

REFUSED: Mapping[str, _Refused] = {
    "stream": _Refused(rule="a batch has whole answers", remedy="Leave it out.", harmless=(False,)),
    "stream_options": _Refused(rule="a batch has whole answers", remedy="Leave it out."),
    "guided_decoding_backend": _Refused(rule="there is one backend", remedy="Leave it out.", harmless=("auto",)),
    "tools": _NO_TOOLS,
    "tool_choice": _NO_TOOLS,
    "functions": _OLD_TOOLS,
    "function_call": _OLD_TOOLS,
    "modalities": _TEXT_ONLY,
    "audio": _TEXT_ONLY,
    "reasoning_effort": _NOT_HERE,
    "verbosity": _NOT_HERE,
    "web_search_options": _NOT_HERE,
    "moderation": _NOT_HERE,
    "echo": _Refused(rule="an answer does not repeat its prompt", remedy="Leave it out.", harmless=(False,)),
    "suffix": _Refused(rule="text is generated after a prompt, not around one", remedy="Leave it out.", harmless=("",)),
}
"""Parameters that are refused, unless their value changes nothing."""

_GUIDED = {"guided_json": "json", "guided_regex": "regex", "guided_choice": "choice", "guided_grammar": "grammar"}
"""vLLM's earlier names -> those of ``StructuredOutputs``."""
_WHITESPACE = "guided_whitespace_pattern"
STRUCTURED = frozenset({"response_format", "structured_outputs", *_GUIDED, _WHITESPACE})
"""Parameters for the form of the answer."""
_CHAT_ONLY = frozenset({"max_completion_tokens", "top_logprobs"})
_COMPLETIONS_ONLY = frozenset({"best_of"})


def body_params(body: Mapping[str, Any], *, chat: bool, own: frozenset[str]) -> dict[str, Any]:
    """The sampling parameters of a body; their values are checked where requests are made.

    ``own``: names in it that hold model, messages or prompt.

    Raises:
        RequestError: a parameter is not honoured or not known, or two contradict each other.
    """
    given = {name: value for name, value in body.items() if value is not None and name not in own}
    for name, value in given.items():
        _check_known(name, value, chat=chat)
    params = {name: value for name, value in given.items() if name in SAMPLED}
    params |= _structure(given) | _max_tokens(given) | (_chat_logprobs(given) if chat else _logprobs(given))
    best = given.get("best_of")
    if best is not None and best != given.get("n", 1):
        raise RequestError(explain("body.best_of", best, "answers are not ranked: it is n", "Leave it out."))
    return params


def _check_known(name: str, value: Any, *, chat: bool) -> None:
    refused = REFUSED.get(name)
    if refused is not None and value not in refused.harmless:
        raise RequestError(explain(f"body.{name}", value, refused.rule, refused.remedy))
    known = {*SAMPLED, *IGNORED, *REFUSED, *STRUCTURED, "logprobs", *(_CHAT_ONLY if chat else _COMPLETIONS_ONLY)}
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        remedy = f"Did you mean {near[0]!r}?" if near else "Leave it out."
        raise RequestError(explain(f"body.{name}", value, "no parameter of this endpoint", remedy))


def _structure(given: Mapping[str, Any]) -> dict[str, Any]:
    """The form of the answer, under whichever name; at most one of them."""
    names = sorted(STRUCTURED & given.keys() - {_WHITESPACE})
    whitespace = given.get(_WHITESPACE)
    if len(names) > 1:
        raise RequestError(
            explain(f"body.{names[1]}", given[names[1]], f"{names[0]} is there too", "Give one of them.")
        )
    if not names:
        if whitespace is not None:
            rule = "it is about JSON, and no schema is given"
            raise RequestError(explain(f"body.{_WHITESPACE}", whitespace, rule, "Leave it out."))
        return {}
    (name,) = names
    value = given[name]
    if name == "response_format":
        fields_ = of_response_format(f"body.{name}", value)
    elif name in _GUIDED:
        fields_ = {_GUIDED[name]: value}
    elif isinstance(value, Mapping) and value:
        fields_ = value
    else:
        rule = "an object of fields of StructuredOutputs"
        raise RequestError(explain(f"body.{name}", value, rule, 'Write {"json": {...}}.'))
    own = {} if whitespace is None or not fields_ else {"whitespace_pattern": whitespace}
    return {"structured_outputs": {**fields_, **own}}


def _max_tokens(given: Mapping[str, Any]) -> dict[str, Any]:
    new, old = given.get("max_completion_tokens"), given.get("max_tokens")
    if new is not None and old is not None and new != old:
        rule = f"it contradicts max_tokens={old}"
        raise RequestError(explain("body.max_completion_tokens", new, rule, "Give one of the two."))
    return {} if new is None else {"max_tokens": new}


def _chat_logprobs(given: Mapping[str, Any]) -> dict[str, Any]:
    """A flag, and a number of most likely tokens."""
    wanted, tops = given.get("logprobs", False), given.get("top_logprobs", 0)
    if not isinstance(wanted, bool):
        raise RequestError(explain("body.logprobs", wanted, "true or false for a chat", "Use top_logprobs: 5."))
    if not isinstance(tops, int) or isinstance(tops, bool):
        raise RequestError(explain("body.top_logprobs", tops, "an integer of 0 or more", "Give a count."))
    if tops and not wanted:
        raise RequestError(explain("body.top_logprobs", tops, "logprobs is not true", "Set logprobs: true."))
    return {"logprobs": tops or True} if wanted else {}


def _logprobs(given: Mapping[str, Any]) -> dict[str, Any]:
    """A number of most likely tokens; 0 asks for those of the chosen tokens alone."""
    if "logprobs" not in given:
        return {}
    tops = given["logprobs"]
    if not isinstance(tops, int) or isinstance(tops, bool):
        raise RequestError(explain("body.logprobs", tops, "an integer of 0 or more for completions", "Give a count."))
    return {"logprobs": tops or True}


CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
_ENDPOINTS = (CHAT, COMPLETIONS)
_ANY = "*"
_IN_CHAT = frozenset({"model", "messages", "chat_template_kwargs"})
_TOOLS = frozenset({"tools", "tool_choice", "parallel_tool_calls"})
_IN_COMPLETIONS = frozenset({"model", "prompt"})


@dataclass(frozen=True, kw_only=True)
class RowRequest:
    """The request of a line.

    Attributes:
        prompt: text to encode, token ids, or why there is none.
        params: its sampling parameters, by their names here; None of a failed row.
        offered: names of the tools that it may call; None: its calls are not read.
    """

    prompt: str | list[int] | Failure
    params: Mapping[str, Any] | None = None
    offered: Sequence[str] | None = None


def row_request(line: Sequence[Any], job: Job) -> RowRequest:
    """The request of a line, or the failure of its row."""
    try:
        return _request(dict(zip(BATCH_COLUMNS.names, line, strict=True)), job)
    except UnstartedError:  # no fault of the row
        raise
    except Exception as error:  # whatever is wrong with one row must not end the run
        return RowRequest(prompt=Failure.of(error))


def _request(line: Mapping[str, Any], job: Job) -> RowRequest:
    for name, value in line.items():
        if isinstance(value, Exception):
            raise no_value(name, value)
    if not line["custom_id"]:
        raise RequestError(explain("custom_id", line["custom_id"], "each line has one", "Give it one."))
    if line["method"] != "POST":
        raise RequestError(explain("method", line["method"], "POST", 'Write "POST".'))
    if line["url"] not in _ENDPOINTS:
        raise RequestError(explain("url", line["url"], f"one of {list(_ENDPOINTS)}", "Move the line to another batch."))
    body, chat = _body(line["body"]), line["url"] == CHAT
    _check_model(body.get("model"), job)
    with_tools = chat and job.config.tool_choice is not None
    own = _IN_CHAT | (_TOOLS if with_tools else frozenset()) if chat else _IN_COMPLETIONS
    params = body_params(body, chat=chat, own=own)
    prompt = _chat(body, job) if chat else marked("body.prompt", _prompt(body.get("prompt")), job.config)
    offered = _offer(body, job) if with_tools else None
    if offered is None:
        return RowRequest(prompt=prompt, params=params)
    return RowRequest(
        prompt=prompt, params=with_form(params, offered, prompt, job.config), offered=offered.names
    )  # fmt: skip


def _offer(body: Mapping[str, Any], job: Job) -> Offer | None:
    """The tools that a chat may call; the run's ``tool_choice`` where the body has tools and no choice."""
    tools, choice = body.get("tools") or None, body.get("tool_choice")
    if choice is not None:
        choice = tool_choice_of("body.tool_choice", choice)
    else:
        choice = (job.config.tool_choice or "none") if tools else "none"
    return offer("body.tools", tools, choice, parallel=body.get("parallel_tool_calls") is not False)


def _body(text: str | None) -> Mapping[str, Any]:
    try:
        body = json.loads(text or "null")
    except (ValueError, RecursionError):
        body = text
    if not isinstance(body, Mapping):
        raise RequestError(explain("body", body, "an object of model, prompt and parameters", "Write one."))
    return body


def _check_model(name: Any, job: Job) -> None:
    """Refuse a line that asks for another model than the run's."""
    config = job.config
    known = (config.model, config.model_name, *config.served_model_names)
    if name is not None and name not in known and _ANY not in config.served_model_names:
        raise RequestError(
            explain("body.model", name, f"this run's model is {config.model_name!r}",
                    f"Allow this name: served_model_names=[{str(name)!r}].")
        )  # fmt: skip


def _chat(body: Mapping[str, Any], job: Job) -> str:
    messages = [
        {**message, "role": "system"} if message.get("role") == "developer" else message
        for message in marked("body.messages", conversation("body.messages", body.get("messages")), job.config)
    ]
    tools = None if job.config.tool_choice is None else body.get("tools") or None
    text = chat_prompt(messages, job, ChatCells(tools=tools, variables=body.get("chat_template_kwargs")))
    given = (message.get("content") or message.get("tool_calls") for message in messages)
    return noted(text, *given, chat=True)


def _prompt(value: Any) -> str | list[int]:
    """Text or token ids, alone or as the only one of a list."""
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], str | list):
        value = value[0]
    if isinstance(value, str) and value:
        return noted(value, value, chat=False)
    if isinstance(value, list) and value and isinstance(value[0], str | list):
        rule = f"one prompt to a line, here are {len(value)}"
        raise RequestError(explain("body.prompt", value, rule, "Give each a line, with a custom_id of its own."))
    if isinstance(value, list):
        return checked_ids("body.prompt", value)
    raise RequestError(explain("body.prompt", value, "text that is not empty, or token ids", "Fill it in."))
