"""The tools that a row may call, and the form of an output that has to call one."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pipeline.codec import RequestError, explain
from pipeline.config import RunConfig
from pipeline.settings.tool_calls import CLOSE, OPEN, functions_of

_NOTHING: Mapping[str, Any] = {"properties": {}, "additionalProperties": False}
_SPACES = " ?"
"""Between parts of arguments: a space or none, so that an output ends."""


@dataclass(frozen=True, kw_only=True)
class Offer:
    """``names``: of the tools that a row may call. ``form``: fields of ``StructuredOutputs`` where it has to."""

    names: tuple[str, ...]
    form: Mapping[str, Any] | None = None


def offer(name: str, tools: Any, choice: str | Mapping[str, str], *, parallel: bool = True) -> Offer | None:
    """The tools that a row may call; None if it may call none.

    ``name``: where the tools stand, for messages; ``parallel``: whether several calls may be forced.

    Raises:
        RequestError: the tools are malformed, or the choice needs one that is not there.
    """
    known = {} if tools is None else functions_of(name, tools)
    if choice == "none" or (choice == "auto" and not known):
        return None
    if choice == "auto":
        return Offer(names=tuple(known))
    wanted = tuple(known) if isinstance(choice, str) else (choice["name"],)
    if not wanted or any(own not in known for own in wanted):
        raise RequestError(explain("tool_choice", choice, f"the tools are {list(known)}", "Offer it, or use auto."))
    several = parallel and choice == "required"
    return Offer(names=wanted, form=_form([(own, _parameters(known[own])) for own in wanted], several=several))


def _parameters(function: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema of a function's arguments; without one it takes none."""
    return {**(function.get("parameters") or _NOTHING), "type": "object"}


def _form(functions: Iterable[tuple[str, Mapping[str, Any]]], *, several: bool) -> Mapping[str, Any]:
    """A grammar of one call, or of one and more."""
    lines, calls, end = [], [], json.dumps(f"}}\n{CLOSE}")
    for number, (name, schema) in enumerate(functions):
        begin = json.dumps(f'{OPEN}\n{{"name": "{name}", "arguments": ')
        lines.append(f"call_{number}: {begin} arguments_{number} {end}")
        lines.append(f"arguments_{number}: %json {json.dumps(schema)}")
        calls.append(f"call_{number}")
    start = 'start: call ("\\n" call)*' if several else "start: call"
    return {"grammar": "\n".join((start, f"call: {' | '.join(calls)}", *lines)), "whitespace_pattern": _SPACES}


def with_form(params: Mapping[str, Any] | None, own: Offer, prompt: Any, config: RunConfig) -> Mapping[str, Any] | None:
    """A row's parameters, with the form of a forced call.

    Where the prompt opens the reasoning, the call comes after it.

    Raises:
        RequestError: the row, or the run, asks for another form.
    """
    if own.form is None:
        return params
    if (params or {}).get("structured_outputs") or config.sampling.structure is not None:
        rule = "a forced call of a tool is a form of its own"
        raise RequestError(explain("structured_outputs", "(given)", rule, 'Leave it out, or use tool_choice="auto".'))
    tags = config.reasoning
    opened = tags is not None and isinstance(prompt, str) and prompt.rstrip().endswith(tags.open)
    after = {"after": tags.close} if opened and tags is not None else {}
    return {**(params or {}), "structured_outputs": {**own.form, **after}}
