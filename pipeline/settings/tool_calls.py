"""Calls of tools in generated texts, in the form of Hermes and Qwen, as a typed column.

A call is ``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``. The closing tag may be missing at the end of a
text, where a stop string cut it off.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from pipeline.codec import FinishReason, RequestError, WeDLMError, explain, read_json_at
from pipeline.errors import ConfigError

TOOL_CALLS = "tool_calls"
"""The column."""
TOOL_CALLS_FIELD = pa.field(
    TOOL_CALLS, pa.list_(pa.struct([("id", pa.string()), ("name", pa.string()), ("arguments", pa.string())]))
)
"""Arguments are JSON text, as the model wrote it. Null where no tool was offered to the row, or calls are not read."""
OPEN, CLOSE = "<tool_call>", "</tool_call>"
_SPACE = re.compile(r"[ \t\r\n]*")
_NAME = re.compile(r"[A-Za-z0-9_.:/-]{1,128}")
MODES_OF_TOOLS = ("auto", "none", "required")


@dataclass(frozen=True)
class Call:
    """A call: the name of a tool, its arguments as JSON text, and the place of the call in the text."""

    name: str
    arguments: str
    start: int
    end: int


def read_calls(text: str, names: Collection[str], *, cut: bool = False) -> tuple[list[Call], Counter[str]]:
    """The calls in a text, and counts of what looks like one by the reasons of ``parsing.UNPARSED``.

    Args:
        text: a generation.
        names: of the tools that may be called.
        cut: whether it was cut at ``max_tokens``.
    """
    calls: list[Call] = []
    faults: Counter[str] = Counter()
    place = text.find(OPEN)
    while place >= 0:
        try:
            call = _call(text, place)
        except (ValueError, RecursionError):
            following = text.find(OPEN, place + len(OPEN))
            faults["length" if cut and following < 0 and CLOSE not in text[place:] else "call"] += 1
            place = following
            continue
        if call.name in names:
            calls.append(call)
        else:
            faults["tool"] += 1
        place = text.find(OPEN, call.end)
    return calls, faults


def _call(text: str, start: int) -> Call:
    """The call whose opening tag stands at a place.

    Raises:
        ValueError, RecursionError: there is none.
    """
    members, end = _members(text, start + len(OPEN))
    name, arguments = members["name"][0] if "name" in members else None, members.get("arguments", (None, ""))
    if not isinstance(name, str) or not isinstance(arguments[0], Mapping):
        raise ValueError("a call has a name, and arguments that are an object")
    end = _skipped(text, end)
    if end < len(text):
        end = _after(text, end, CLOSE)
    return Call(name, arguments[1], start, end)


def _members(text: str, place: int) -> tuple[dict[str, tuple[Any, str]], int]:
    """The members of the JSON object at a place, each with its value and the value's text; and the object's end."""
    found: dict[str, tuple[Any, str]] = {}
    place = _skipped(text, _after(text, place, "{"))
    while found or not text.startswith("}", place):
        name, place = read_json_at(text, place)
        if not isinstance(name, str) or name in found:
            raise ValueError("names are texts, each once")
        start = _skipped(text, _after(text, place, ":"))
        value, place = read_json_at(text, start)
        found[name] = value, text[start:place]
        place = _skipped(text, place)
        if text.startswith("}", place):
            break
        place = _skipped(text, _after(text, place, ","))
    return found, place + 1


def _skipped(text: str, place: int) -> int:
    """The place after whitespace."""
    found = _SPACE.match(text, place)
    return place if found is None else found.end()


def _after(text: str, place: int, wanted: str) -> int:
    """The place after whitespace and ``wanted``."""
    place = _skipped(text, place)
    if not text.startswith(wanted, place):
        raise ValueError(f"{wanted} is missing")
    return place + len(wanted)


def call_id(row_id: str, sample: int, place: int) -> str:
    """The id of a call: the same whenever the row is generated."""
    digest = hashlib.blake2b(f"{row_id}\x1f{sample}\x1f{place}".encode(), digest_size=12).hexdigest()
    return f"call_{digest}"


def calls_column(
    texts: Sequence[str | None], offered: Sequence[Collection[str] | None], keys: Sequence[tuple[str, int]]
) -> pa.Array:
    """The column :data:`TOOL_CALLS`.

    Args:
        texts: of the generations; None of a failed row.
        offered: names of the tools that each may call; None: its calls are not read.
        keys: row id and number of the sample of each.
    """
    found = [
        None
        if text is None or names is None
        else [
            {"id": call_id(*key, place), "name": call.name, "arguments": call.arguments}
            for place, call in enumerate(read_calls(text, names)[0])
        ]
        for text, names, key in zip(texts, offered, keys, strict=True)
    ]
    return pa.array(found, TOOL_CALLS_FIELD.type)


def calls_faults(
    texts: Sequence[str | None], calls: Sequence[Sequence[Mapping[str, str]] | None], reasons: Sequence[str]
) -> Counter[str]:
    """How many generations have something that looks like a call and is none in the column, by reason."""
    counts: Counter[str] = Counter()
    for text, own, reason in zip(texts, calls, reasons, strict=True):
        if text is not None and own is not None:
            names = {call["name"] for call in own}
            counts.update(set(read_calls(text, names, cut=reason == FinishReason.LENGTH.value)[1]))
    return counts


def content_of(text: str, calls: Sequence[Mapping[str, str]]) -> str | None:
    """A text without the calls that its column has; None where nothing is left."""
    names, parts, place = {call["name"] for call in calls}, [], 0
    for call in read_calls(text, names)[0]:
        parts.append(text[place : call.start])
        place = call.end
    return "".join((*parts, text[place:])).strip() or None


def tool_choice_of(name: str, given: Any) -> str | Mapping[str, str]:
    """A choice of tools: "auto", "none", "required", or ``{"name": ...}``.

    Raises:
        RequestError: it is another value.
    """
    if given in MODES_OF_TOOLS and isinstance(given, str):
        return given
    inside = given.get("function", given) if isinstance(given, Mapping) else None
    wanted = inside.get("name") if isinstance(inside, Mapping) else None
    if isinstance(wanted, str) and wanted and set(given) <= {"type", "function", "name"}:
        return {"name": wanted}
    raise RequestError(
        explain(name, given, f"one of {list(MODES_OF_TOOLS)}, or the name of a tool", 'Write {"name": "f"}.')
    )


def functions_of(name: str, tools: Any) -> dict[str, Mapping[str, Any]]:
    """Name of each tool -> its description.

    Raises:
        RequestError: one has no name, another one's, or parameters that are no schema of an object.
    """
    found: dict[str, Mapping[str, Any]] = {}
    if not isinstance(tools, Sequence) or isinstance(tools, (str, bytes)):
        raise RequestError(explain(name, tools, "a list of tools", 'Write [{"name": ..., "parameters": {...}}].'))
    for tool in tools:
        inside = tool.get("function", tool) if isinstance(tool, Mapping) else None
        own = inside if isinstance(inside, Mapping) else {}
        called = own.get("name")
        if not isinstance(called, str) or not _NAME.fullmatch(called) or called in found:
            rule = "each has a name of its own, of 1 to 128 letters, digits and _ . : / -"
            raise RequestError(explain(f"{name}.name", called, rule, "Name it."))
        schema = own.get("parameters") or {}
        if not isinstance(schema, Mapping) or schema.get("type", "object") != "object":
            rule = "a JSON schema of an object"
            raise RequestError(explain(f"{name}.{called}.parameters", schema, rule, 'Write {"type": "object"}.'))
        found[called] = own
    return found


def checked_tools(tools: Any, choice: Any) -> tuple[list[Mapping[str, Any]], str | Mapping[str, str] | None]:
    """The settings ``tools`` and ``tool_choice``.

    Raises:
        ConfigError: one is bad, or the choice names none of the tools.
    """
    try:
        known = functions_of("tools", tools)
        if choice is None:
            return list(tools), None
        choice = tool_choice_of("tool_choice", choice)
        if known and not isinstance(choice, str) and choice["name"] not in known:
            raise RequestError(explain("tool_choice", choice["name"], f"one of {list(known)}", "Name one of these."))
    except WeDLMError as error:
        raise ConfigError(str(error)) from error
    return list(tools), choice
