"""Result lines of OpenAI's batch API from output rows: one line to a request, with all of its samples. Plain logic.

A request that was refused has the form of an HTTP error: ``response`` with status 400 and the error in its body. One
that failed while it was being answered has no response, and the line's own ``error``. So the API does, see
https://github.com/openai/openai-openapi/issues/302. Ids follow from run and row, and no line has a time: exports of one
output are equal byte for byte.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

CHAT = "/v1/chat/completions"
REFUSALS = frozenset({"CapacityError", "ConfigError", "RequestError", "SourceError", "TemplateRenderError"})
"""Classes of errors that say that the request cannot be answered as it is."""

_NAMED = re.compile(r"(?:body\.)?([A-Za-z_]\w*)[\w.]*=")
_TOO_LONG = "prompt + max_tokens="
_LEAST = -9999.0
"""The API's log-probability of a token that is very unlikely; JSON has no infinity."""

Decode = Callable[[int], str]
"""The text of a token."""


def request_ids(run: str, row_id: str) -> Mapping[str, str]:
    """The ids of a request's line, its HTTP request and its completion, by their prefixes."""
    digest = hashlib.blake2b(f"{run}\x1f{row_id}".encode(), digest_size=16).hexdigest()
    return {prefix: f"{prefix}{digest}" for prefix in ("batch_req_", "req_", "chatcmpl-", "cmpl-")}


def response_line(samples: Sequence[Mapping[str, Any]], url: str, run: str, decode: Decode) -> str:
    """The line of a request that was answered.

    Args:
        samples: its output rows under the names of the result columns, in sample order.
        url: its endpoint.
        run: text that differs between runs.
        decode: gives the texts of tokens; called for rows with log-probabilities.
    """
    first, chat = samples[0], url == CHAT
    ids = request_ids(run, first["row_id"])
    completion = sum(sample["completion_tokens"] for sample in samples)
    body = {
        "id": ids["chatcmpl-" if chat else "cmpl-"],
        "object": "chat.completion" if chat else "text_completion",
        "created": 0,
        "model": first["model"],
        "choices": [(_chat_choice if chat else _choice)(sample, decode) for sample in samples],
        "usage": {
            "prompt_tokens": first["prompt_tokens"],
            "completion_tokens": completion,
            "total_tokens": first["prompt_tokens"] + completion,
        },
    }
    return _line(ids, first["row_id"], _response(ids, 200, body), None)


def failed_line(row_id: str, url: str | None, error_class: str, message: str, run: str) -> str:
    """The line of a request that failed."""
    ids = request_ids(run, row_id)
    if error_class not in REFUSALS:
        return _line(ids, row_id, None, {"code": error_class, "message": message})
    named = _NAMED.match(message)
    param, code = named and named[1], error_class
    if message.startswith(_TOO_LONG):
        param, code = "messages" if url == CHAT else "prompt", "context_length_exceeded"
    error = {"message": message, "type": "invalid_request_error", "param": param, "code": code}
    return _line(ids, row_id, _response(ids, 400, {"error": error}), None)


def _response(ids: Mapping[str, str], status: int, body: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"status_code": status, "request_id": ids["req_"], "body": body}


def _line(ids: Mapping[str, str], row_id: str, response: Any, error: Any) -> str:
    line = {"id": ids["batch_req_"], "custom_id": row_id, "response": response, "error": error}
    return json.dumps(line, ensure_ascii=False, allow_nan=False)


def _chat_choice(sample: Mapping[str, Any], decode: Decode) -> Mapping[str, Any]:
    asked = sample["logprobs"] is not None
    return {
        "index": sample["sample_index"],
        "message": {"role": "assistant", "content": sample["text"], "refusal": None},
        "logprobs": {"content": _chat_logprobs(sample, decode), "refusal": None} if asked else None,
        "finish_reason": sample["finish_reason"],
    }


def _chat_logprobs(sample: Mapping[str, Any], decode: Decode) -> list[Mapping[str, Any]]:
    return [
        {**_token(token, nats, decode), "top_logprobs": [_token(*pair, decode) for pair in top]}
        for token, nats, top in _tokens(sample)
    ]


def _token(token: int, nats: float, decode: Decode) -> Mapping[str, Any]:
    """A token as text; its bytes, unless they are no whole characters."""
    text = decode(token)
    return {"token": text, "logprob": nats, "bytes": None if "\ufffd" in text else list(text.encode())}


def _choice(sample: Mapping[str, Any], decode: Decode) -> Mapping[str, Any]:
    return {
        "index": sample["sample_index"],
        "text": sample["text"],
        "logprobs": None if sample["logprobs"] is None else _logprobs(sample, decode),
        "finish_reason": sample["finish_reason"],
    }


def _logprobs(sample: Mapping[str, Any], decode: Decode) -> Mapping[str, Any]:
    """Columns of tokens, and where the text of each begins."""
    texts = [decode(token) for token, _, _ in _tokens(sample)]
    return {
        "tokens": texts,
        "token_logprobs": [nats for _, nats, _ in _tokens(sample)],
        "top_logprobs": None
        if sample["top_logprobs"] is None
        else [{decode(token): nats for token, nats in reversed(top)} for _, _, top in _tokens(sample)],
        "text_offset": list(itertools.accumulate(map(len, texts), initial=0))[:-1],
    }


def _tokens(sample: Mapping[str, Any]) -> list[tuple[int, float, list[tuple[int, float]]]]:
    """Each token with its log-probability and those of the most likely ones."""
    own = sample["logprobs"]
    tops = sample["top_logprobs"] or [()] * len(own)
    pairs = [[(entry["token_id"], max(entry["logprob"], _LEAST)) for entry in top] for top in tops]
    return list(zip(sample["token_ids"], (max(nats, _LEAST) for nats in own), pairs, strict=True))
