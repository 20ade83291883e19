"""Lines of OpenAI batches, and result lines as the official client's types."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


def chat_line(custom_id: str, text: str = "Count from 3 to 9.", **body: Any) -> dict[str, Any]:
    """A line for the chat endpoint, with one message."""
    body = {"model": "tiny", "messages": [{"role": "user", "content": text}], **body}
    return {"custom_id": custom_id, "method": "POST", "url": CHAT, "body": body}


def completion_line(custom_id: str, prompt: Any = "Count from 3 to 9.", **body: Any) -> dict[str, Any]:
    """A line for the endpoint of completions."""
    body = {"model": "tiny", "prompt": prompt, **body}
    return {"custom_id": custom_id, "method": "POST", "url": COMPLETIONS, "body": body}


def write_batch(path: Path, lines: Iterable[Any]) -> Path:
    """A batch file; a line that is text is written as it is."""
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


def parsed_results(path: Path, urls: Mapping[str, str]) -> dict[str, Any]:
    """Custom id -> the completion, by the client's own types, or the error of each line of a result file.

    Nothing is coerced, and no field may be one that the client does not know.

    Args:
        path: a file of answers or of errors.
        urls: custom id -> endpoint of its request.
    """
    from openai.types import Completion
    from openai.types.chat import ChatCompletion
    from openai.types.shared import ErrorObject

    found: dict[str, Any] = {}
    for text in path.read_text(encoding="utf-8").splitlines():
        line = json.loads(text)
        assert set(line) == {"id", "custom_id", "response", "error"}
        assert line["id"].startswith("batch_req_")
        assert (line["response"] is None) != (line["error"] is None)
        assert line["custom_id"] not in found, "each request has one line"
        if line["response"] is None:
            assert set(line["error"]) == {"code", "message"}
            found[line["custom_id"]] = line["error"]
            continue
        assert set(line["response"]) == {"status_code", "request_id", "body"}
        body = line["response"]["body"]
        if line["response"]["status_code"] == 200:
            kind: type[BaseModel] = ChatCompletion if urls[line["custom_id"]] == CHAT else Completion
        else:
            assert set(body) == {"error"}
            kind, body = ErrorObject, body["error"]
        found[line["custom_id"]] = _strictly(kind, body)
    return found


def _strictly(kind: type[BaseModel], body: Any) -> BaseModel:
    parsed = kind.model_validate_json(json.dumps(body), strict=True)
    assert not (unknown := list(_unknown(parsed))), f"{kind.__name__} has no {unknown}"
    return parsed


def _unknown(value: Any) -> Iterable[str]:
    """Names of fields that a model took although it does not declare them."""
    if isinstance(value, BaseModel):
        yield from value.model_extra or ()
        value = list(vars(value).values())
    if isinstance(value, list):
        for item in value:
            yield from _unknown(item)
