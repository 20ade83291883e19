"""``export``: the published rows of an output as result lines of OpenAI's batch API.

A line answers a request, with all of its samples. A request that was refused has the form of an HTTP error:
``response`` with status 400 and the error in its body. One that failed while it was being answered has no response, and
the line's own ``error``. So the API does, see https://github.com/openai/openai-openapi/issues/302. Ids follow from run
and row, and no line has a time: exports of one output are equal byte for byte.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import os
import posixpath
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import groupby
from typing import Any, BinaryIO

from pipeline import layout
from pipeline.codec import redact
from pipeline.commands.read import OutputTable, read
from pipeline.commit.run_record import RunState
from pipeline.config import RunConfig
from pipeline.errors import ConfigError, DamagedError, OutputError
from pipeline.prompts.model_files import resolved_model
from pipeline.settings.tool_calls import content_of
from pipeline.sources.formats.openai_batch import OpenAIBatchSource
from pipeline.storage.open import open_storage
from pipeline.storage.urls import is_url, plain_name

EXPORT_FORMATS = ("openai-batch",)
_SCRATCH = ".wedlm-export-{}"
"""Folder of the unfinished file of a name, in the folder of that file."""
_RESULTS = ("row_id", "sample_index", "text", "token_ids", "finish_reason", "prompt_tokens", "completion_tokens",
            "reasoning", "tool_calls", "model", "logprobs", "top_logprobs")  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Exported:
    """The files written.

    Attributes:
        to, errors_to: the files; credentials in URLs are masked.
        lines, failed: number of lines in each.
    """

    to: str
    errors_to: str
    lines: int
    failed: int


def export(
    output: str | os.PathLike[str],
    to: str | os.PathLike[str],
    *,
    format: str = "openai-batch",
    errors_to: str | os.PathLike[str] | None = None,
    model: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    to_storage_options: Mapping[str, Any] | None = None,
) -> Exported:
    """Write the published rows of an OpenAI batch as result lines; each file appears whole, or not at all.

    The answers appear first. An export that is killed in between leaves the errors of the export before, so until the
    next export a request may be in both files. It is always in one of them.

    The lines are in input order, and the same for every export of the output. Memory holds some rows at a time.

    Args:
        output: the folder or URL of a run over an OpenAI batch.
        to: file or URL of the answered requests.
        format: "openai-batch".
        errors_to: file or URL of the failed requests; None puts it next to ``to``, with ``_errors`` in its name. It is
            written even if it is empty.
        model: where the model is now, if not where the run had it; needed for log-probabilities only, whose tokens have
            texts.
        storage_options: keyword arguments of the output's file system.
        to_storage_options: keyword arguments of the file system of ``to``; None takes ``storage_options``.

    Raises:
        ConfigError: the name is not one of a file, or the format is not known.
        OutputError: nothing is published there, or the run was over plain rows.
        DamagedError: a published file is missing or not as it was published.
    """
    if format not in EXPORT_FORMATS:
        raise ConfigError(f"format={format!r}: one of {list(EXPORT_FORMATS)}. Pick one of these.")
    answers = plain_name(to)
    failures = _errors_beside(answers) if errors_to is None else plain_name(errors_to)
    if failures == answers:
        raise ConfigError(f"errors_to={failures!r}: this is the file of the answers. Name another one.")
    lines = result_lines(output, model=model, storage_options=storage_options)
    options = storage_options if to_storage_options is None else to_storage_options
    counts = {failures: 0, answers: 0}  # the stack closes the last one first
    with ExitStack() as stack:
        files = {name: stack.enter_context(_created(name, options)) for name in counts}
        for _, failed, line in lines:
            name = failures if failed else answers
            files[name].write(line.encode() + b"\n")
            counts[name] += 1
    return Exported(
        to=redact(answers), errors_to=redact(failures), lines=counts[answers], failed=counts[failures]
    )  # fmt: skip


def result_lines(
    output: str | os.PathLike[str],
    *,
    committed: bool = False,
    model: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Iterator[tuple[str, bool, str]]:
    """The ``custom_id`` of each request, whether it failed, and its line; in input order.

    Args:
        output: the folder or URL of a run over an OpenAI batch.
        committed: also of committed rows that are not published yet.
        model: see :func:`export`.
        storage_options: keyword arguments of the output's file system.

    Raises:
        OutputError, DamagedError: see :func:`export`.
    """
    lines = _Lines(_batch_run(output, storage_options), model, storage_options or {})
    rows, letters = (
        read(output, table=table, committed=committed, storage_options=storage_options)
        for table in ("rows", "dead_letters")
    )  # fmt: skip
    return lines.of(rows, letters)


def _batch_run(output: str | os.PathLike[str], options: Mapping[str, Any] | None) -> RunState:
    state = RunState.load_begun(open_storage(output, layout.SCRATCH, options))
    if state.fingerprint.get("input_format") != OpenAIBatchSource.input_format:
        raise OutputError(
            f"{plain_name(output)}: its input was no OpenAI batch, so its rows answer no requests. The published files "
            "are plain tables that any reader opens."
        )
    return state


def _errors_beside(name: str) -> str:
    stem, suffix = posixpath.splitext(name)
    return f"{stem}_errors{suffix}"


@contextmanager
def _created(name: str, options: Mapping[str, Any] | None) -> Iterator[BinaryIO]:
    """A new file under a path or URL, which appears when the block ends normally."""
    folder, _, file = name.rpartition("/")
    if not file or (not is_url(name) and os.path.isdir(name)):
        raise ConfigError(f"to={name!r}: a folder. Name a file in it.")
    scratch = _SCRATCH.format(file)
    storage = open_storage(folder or ("/" if name.startswith("/") else "."), scratch, options)
    storage.delete(scratch)  # of an export that was killed
    try:
        with storage.create(file) as opened:
            yield opened
    finally:
        storage.delete(scratch)


class _Lines:
    """The lines of an output's rows."""

    def __init__(self, state: RunState, model: str | None, options: Mapping[str, Any]) -> None:
        self._run = state.fingerprint_hash
        self._prefix = state.fingerprint["column_prefix"]
        self._model = model or str(state.fingerprint["model"]).rpartition("@")[0]
        self._options = options

    def of(self, rows: OutputTable, letters: OutputTable) -> Iterator[tuple[str, bool, str]]:
        """The id of each request, whether it failed, and its line; requests in input order.

        Raises:
            DamagedError: a failed row has no dead letter.
        """
        waiting = iter(letters)
        for row_id, group in groupby(rows, key=lambda row: row[f"{self._prefix}row_id"]):
            samples = [self._named(row) for row in group]
            url = samples[0]["url"]
            if samples[0]["finish_reason"] != "error":
                yield row_id, False, response_line(samples, url, self._run, self._decode)
                continue
            letter = next(waiting, None)
            if letter is None or letter[f"{self._prefix}row_id"] != row_id:
                raise DamagedError(f"the failed row {row_id!r} has no dead letter", "`wedlm-batch verify` says more.")
            error_class, message = (letter[f"{self._prefix}{name}"] for name in ("error_class", "error"))
            yield row_id, True, failed_line(row_id, url, error_class, message, self._run)

    def _named(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """A row under the names of the result columns, with its endpoint."""
        return {**{name: row.get(f"{self._prefix}{name}") for name in _RESULTS}, "url": row.get("url")}

    @functools.cached_property
    def _tokenizer(self) -> Any:
        config = RunConfig(input="-", output=".", model=self._model, storage_options=self._options)
        return resolved_model(config).tokenizer

    @functools.cached_property
    def _decode(self) -> Any:
        return functools.lru_cache(maxsize=2**16)(lambda token: self._tokenizer.decode([token], False))


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
    asked, reasoning = sample["logprobs"] is not None, sample.get("reasoning")
    apart: dict[str, Any] = {} if reasoning is None else {"reasoning_content": reasoning}
    calls, content, ended = sample.get("tool_calls"), sample["text"], sample["finish_reason"]
    if calls:
        content, ended = content_of(content, calls), "tool_calls" if ended == "stop" else ended
        apart["tool_calls"] = [
            {"id": own["id"], "type": "function", "function": {"name": own["name"], "arguments": own["arguments"]}}
            for own in calls
        ]
    return {
        "index": sample["sample_index"],
        "message": {"role": "assistant", "content": content, "refusal": None, **apart},
        "logprobs": {"content": _chat_logprobs(sample, decode), "refusal": None} if asked else None,
        "finish_reason": ended,
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
        # Tokens of the reasoning are in none of the texts.
        "text_offset": None
        if sample.get("reasoning") is not None
        else list(itertools.accumulate(map(len, texts), initial=0))[:-1],
    }


def _tokens(sample: Mapping[str, Any]) -> list[tuple[int, float, list[tuple[int, float]]]]:
    """Each token with its log-probability and those of the most likely ones."""
    own = sample["logprobs"]
    tops = sample["top_logprobs"] or [()] * len(own)
    pairs = [[(entry["token_id"], max(entry["logprob"], _LEAST)) for entry in top] for top in tops]
    return list(zip(sample["token_ids"], (max(nats, _LEAST) for nats in own), pairs, strict=True))
