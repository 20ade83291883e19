"""Reads a value, such as a score, a verdict or an object, out of each generated text, into a column of its own."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.codec import FinishReason, StructuredOutputs, WeDLMError, explain
from pipeline.errors import ConfigError
from pipeline.settings.typed_json import JSON_TEXT, JsonType, json_type, read_json

_IN_FILES = ("json", "grammar", "regex")
_MOST_BYTES = 4 * 2**20
_SHAPE = "Write {json: {file: schema.json}}, or the schema itself."


def loaded(given: Any, name: str) -> Any:
    """``structured_outputs`` with the content of the files that it names; other values are left as they are.

    Args:
        given: fields of ``StructuredOutputs``; in place of a schema, grammar or regex ``{"file": path}``.
        name: of the setting, for messages.

    Raises:
        ConfigError: a file cannot be read, or a schema has a key that is no text.
    """
    if not isinstance(given, Mapping):
        return given
    own = dict(given)
    for kind in _IN_FILES:
        if kind in own:
            own[kind] = loaded_schema(own[kind], f"{name}.{kind}")
    return own


def loaded_schema(given: Any, name: str) -> Any:
    """A schema or grammar, or the content of the file that it names. See :func:`loaded`."""
    if isinstance(given, Mapping) and set(given) == {"file"}:
        return _structured_read(given["file"], name)
    _check_keys(given, name)
    return given


def _structured_read(path: Any, name: str) -> str:
    if not isinstance(path, (str, os.PathLike)) or not os.fspath(path):
        raise ConfigError(explain(f"{name}.file", path, "a path", _SHAPE))
    try:
        with Path(path).open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
        text = data.decode("utf-8-sig")
    except (OSError, ValueError) as error:
        raise ConfigError(explain(f"{name}.file", str(path), f"cannot be read ({error})", _SHAPE)) from error
    if len(data) > _MOST_BYTES:
        raise ConfigError(explain(f"{name}.file", str(path), f"at most {_MOST_BYTES} bytes", "Make it smaller."))
    return text


def _check_keys(schema: Any, name: str) -> None:
    """Refuse keys that YAML reads as something else than text: ``yes``, ``on``, ``1``, ``2024-01-01``."""
    todo, seen = [schema], set()
    while todo:
        part = todo.pop()
        if not isinstance(part, (Mapping, list, tuple)) or id(part) in seen:
            continue
        seen.add(id(part))
        if isinstance(part, Mapping):
            odd = [key for key in part if not isinstance(key, str)]
            if odd:
                raise ConfigError(explain(name, odd[0], "keys are text, and YAML reads this one as something else",
                                          "Quote it."))  # fmt: skip
        inside: Sequence[Any] = list(part.values()) if isinstance(part, Mapping) else part
        todo.extend(inside)


PARSED = "parsed"
"""The column that a run with one JSON schema has by itself."""
UNPARSED = {
    "length": "cut at max_tokens",
    "invalid": "no JSON of this form",
    "range": "a value that its type cannot hold",
    "call": "with a call that is no JSON of a name and arguments",
    "tool": "with a call of a tool that was not offered",
    "alone": "without an answer after it",
}
"""Why a value of JSON, or a part of it, is null -> in words."""

_TYPES: Mapping[str, tuple[pa.DataType, Callable[[str], Any]]] = {
    "string": (pa.string(), str),
    "int64": (pa.int64(), int),
    "float64": (pa.float64(), float),
}
_TOKEN = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\((?!\?)", re.DOTALL)
"""An escaped character, a class of characters, or the beginning of a group that captures."""
_MOST_INT = 2**63


@dataclass(frozen=True, kw_only=True)
class Parse:
    """A value to read from a text. One of ``pattern``, ``choices`` and ``json`` is given.

    Attributes:
        pattern: regular expression (RE2's syntax, whose time is linear in the text). Its first match counts: its one
            group, or all of it without a group.
        choices: the choice that comes first in the text, as words of its own, in upper or lower case; the value is
            spelled as here.
        type: of the column: "string", "int64" or "float64". Text that cannot be read as this type is null.
        json: the whole text is JSON: of this schema (a mapping, its JSON text, a pydantic model class, or ``{"file":
            path}``), whose values become columns of Arrow's types (docs/guides/structured-output.md); or True, for
            JSON of any form, as JSON text. A generation that was cut at ``max_tokens`` is null.
        after: with ``json``: a text, such as ``</think>``, after whose first occurrence the JSON begins.

    Raises:
        ConfigError: a value is out of range; names it.
    """

    pattern: str | None = None
    choices: Sequence[str] | None = None
    type: Literal["string", "int64", "float64"] = "string"
    json: Any = None
    after: str | None = None

    def __post_init__(self) -> None:
        """Check the expression; fix the types of ``choices`` and ``json``."""
        if sum(given is not None for given in (self.pattern, self.choices, self.json)) != 1:
            raise ConfigError(explain("parse", self, "either a pattern or choices or json", "Give one of them."))
        if self.type not in _TYPES:
            raise ConfigError(explain("parse.type", self.type, f"one of {list(_TYPES)}", "Pick one of these."))
        if self.json is not None:
            self._check_json()
            return
        if self.after is not None:
            raise ConfigError(explain("parse.after", self.after, "says where json begins", "Leave it out."))
        if self.choices is not None:
            given = self.choices
            if isinstance(given, str) or not given or not all(isinstance(c, str) and c.strip() for c in given):
                remedy = 'Quote them: ["yes", "no"], as yes is true in YAML.'
                raise ConfigError(explain("parse.choices", given, "a list of texts", remedy))
            object.__setattr__(self, "choices", tuple(given))
        try:
            pc.extract_regex(pa.array([""]), self._expression)
        except (pa.ArrowException, TypeError, ValueError, re.error) as error:
            rule = f"a regular expression in RE2's syntax with one group at most ({error})"
            raise ConfigError(explain("parse.pattern", self.pattern, rule, "Correct it.")) from error

    def _check_json(self) -> None:
        if self.type != "string":
            raise ConfigError(explain("parse.type", self.type, "a schema has the types", "Leave it out."))
        given = {"json_object": True} if self.json is True else {"json": loaded_schema(self.json, "parse.json")}
        try:
            checked = StructuredOutputs(**given, after=self.after)
        except WeDLMError as error:
            raise ConfigError(str(error).replace("structured_outputs.", "parse.", 1)) from error
        object.__setattr__(self, "json", True if self.json is True else checked.json)

    def as_dict(self) -> dict[str, Any]:
        """The fields as plain values; of ``json`` and ``after`` those that are given, as earlier versions lack them."""
        plain = asdict(self)
        return {name: own for name, own in plain.items() if name not in ("json", "after") or own is not None}

    @cached_property
    def _json_type(self) -> JsonType:
        return JSON_TEXT if self.json is True else json_type(json.loads(self.json))

    @property
    def _expression(self) -> str:
        """With a single group, named ``value``."""
        if self.choices is not None:
            # The longest first: of "no" and "no idea" the text may have both at one place.
            words = "|".join(re.escape(choice) for choice in sorted(self.choices, key=len, reverse=True))
            return rf"(?i)(?:^|[^\pL\pN_])(?P<value>{words})(?:$|[^\pL\pN_])"
        if not isinstance(self.pattern, str):
            raise TypeError("it is no text")
        ends = [token.end() for token in _TOKEN.finditer(self.pattern) if token[0] == "("]
        if len(ends) > 1:
            raise ValueError("write the others as (?:...)")
        if not ends:
            return f"(?P<value>{self.pattern})"
        return f"{self.pattern[: ends[0]]}?P<value>{self.pattern[ends[0] :]}"

    def field(self, name: str) -> pa.Field:
        """The column of this name."""
        return pa.field(name, _TYPES[self.type][0] if self.json is None else self._json_type.arrow)

    def values(self, texts: pa.Array, finish_reasons: Sequence[str | None] | None = None) -> pa.Array:
        """The value of each text; null where there is none, or no text.

        Args:
            texts: the texts.
            finish_reasons: how each text ended; JSON that was cut has no value. None: no text was cut.
        """
        if self.json is not None:
            read = [value for value, _ in self._read_json(texts, finish_reasons)]
            return pa.array(read, self._json_type.arrow)
        kind, convert = _TYPES[self.type]
        found = pc.struct_field(pc.extract_regex(texts, self._expression), "value").to_pylist()
        written = {choice.lower(): choice for choice in reversed(self.choices or ())}
        return pa.array(
            [None if text is None else _read(written.get(text.lower(), text), convert) for text in found], kind
        )

    def faults(self, texts: pa.Array, finish_reasons: Sequence[str | None]) -> Counter[str]:
        """Counts of the texts without a whole JSON value, by the reasons of :data:`UNPARSED`."""
        if self.json is None:
            return Counter()
        return Counter(reason for _, reason in self._read_json(texts, finish_reasons) if reason is not None)

    def _read_json(
        self, texts: pa.Array | pa.ChunkedArray, finish_reasons: Sequence[str | None] | None
    ) -> Iterator[tuple[Any, str | None]]:
        """The value of each text, and why all or part of it is missing; nothing is missing where there is no text."""
        ends = [None] * len(texts) if finish_reasons is None else finish_reasons
        for text, end in zip(texts.to_pylist(), ends, strict=True):
            yield (None, None) if text is None else self._value(text, end)

    def _value(self, text: str, end: str | None) -> tuple[Any, str | None]:
        if end == FinishReason.LENGTH.value:
            return None, "length"
        _, found, behind = text.partition(self.after) if self.after is not None else ("", "yes", text)
        try:
            value = read_json(behind if found else "")
        except ValueError:
            return None, "invalid"
        lost: list[Any] = []
        return self._json_type.convert(value, lost), "range" if lost else None


def _read(text: str, convert: Callable[[str], Any]) -> Any:
    try:
        value = convert(text)
    except ValueError:
        return None
    return None if isinstance(value, int) and not -_MOST_INT <= value < _MOST_INT else value


def parse_settings(given: object) -> dict[str, Parse]:
    """The columns to parse, from a mapping of names to settings.

    Raises:
        ConfigError: it is none, or one of them is bad; names it.
    """
    if not isinstance(given, Mapping):
        raise ConfigError(explain("parse", given, "a mapping of column names", "Write {score: {pattern: ...}}."))
    found: dict[str, Parse] = {}
    for name, own in given.items():
        if not isinstance(name, str) or not name:
            raise ConfigError(explain("parse", name, "names of columns are text", "Quote it."))
        try:
            found[name] = own if isinstance(own, Parse) else Parse(**own)
        except TypeError as error:
            rule = f"fields are pattern, choices, type, json and after ({error})"
            raise ConfigError(explain(f"parse.{name}", own, rule, "Write {pattern: ..., type: int64}.")) from error
        except ConfigError as error:
            raise ConfigError(f"{name}: {error}") from error
    return found


def parsed_columns(
    parse: Mapping[str, Parse], structured: StructuredOutputs | None, *, per_row: bool
) -> dict[str, Parse]:
    """Every column of a run that is read out of its texts.

    Args:
        parse: those that the settings name.
        structured: the form of all outputs. If it is JSON there is a column :data:`PARSED` of the schema's type,
            unless ``parse`` has one of this name.
        per_row: whether rows may have schemas of their own, so that there is no such column.
    """
    if per_row or structured is None or not structured.is_json or PARSED in parse:
        return dict(parse)
    schema = True if structured.json is None else structured.json
    return {PARSED: Parse(json=schema, after=structured.after), **parse}


def describe_unparsed(unparsed: Mapping[str, int], samples: int) -> str:
    """Counts by ``column:reason``, in words."""
    columns: dict[str, list[str]] = {}
    for key, count in sorted(unparsed.items()):
        column, _, reason = key.rpartition(":")
        columns.setdefault(column, []).append(f"{count} {UNPARSED.get(reason, reason)}")
    return "; ".join(f"{column}: of {samples} generations {', '.join(parts)}" for column, parts in columns.items())
