"""StructuredOutputs: the form of a generation: JSON, a match of a regex, a choice, a text of a grammar. A leaf."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from wedlm_core.checks import is_flag, is_text
from wedlm_core.errors import RequestError, explain
from wedlm_core.option_names import known_fields_only

KINDS = ("json", "regex", "choice", "grammar", "json_object")
"""The fields of :class:`StructuredOutputs`; exactly one of these is given."""

MOST_CHARACTERS = 256 * 1024
"""Of a schema, regex, grammar, or of all choices: the time to compile grows with them."""

_HINTS = {
    "disable_fallback": "There is one backend and no fallback",
    "disable_any_whitespace": "Separators are fixed unless whitespace_pattern is given",
    "disable_additional_properties": 'Set "additionalProperties": false in the schema',
    "structural_tag": "Use grammar, which can hold JSON schemas, or after for reasoning models",
    "json_schema": "Use json",
    "schema": "Use json",
    "backend": "There is one backend, llguidance",
}
_LONGEST_TAG = 256
_LONGEST_SEPARATOR = 16


@known_fields_only(RequestError, _HINTS)
@dataclass(frozen=True, kw_only=True)
class StructuredOutputs:
    """Exactly one of ``json``, ``regex``, ``choice``, ``grammar`` and ``json_object``. Names follow vLLM.

    At each position the model's distribution is restricted to the tokens that may follow those before it. The output
    ends where it is complete. A generation that reaches ``max_tokens`` before has ``finish_reason="length"``.

    Attributes:
        json: a JSON schema: a mapping, its JSON text, or a pydantic model class; kept as JSON text. A keyword that
            would not be enforced is an error.
        regex: in the syntax of Rust's ``regex`` crate, without look-around and back-references; the whole output
            matches it.
        choice: the output is one of these texts.
        grammar: a context-free grammar in Lark's syntax, as llguidance documents it, or in GBNF.
        json_object: True for any JSON object.
        after: a text, such as ``</think>``; the output is free up to it, and the constraint begins after its first
            occurrence.
        separators: of items, and of keys and values, of JSON, as in ``json.dumps``.
        whitespace_pattern: a regex of the whitespace between the parts of JSON, in place of ``separators``. Fixed
            separators are drafted without any cost; free ones are the model's choice.

    Raises:
        RequestError: none or several are given, or one is malformed; the message names value, rule and remedy.
    """

    json: Any = None
    regex: str | None = None
    choice: Sequence[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    after: str | None = None
    separators: Sequence[str] = (", ", ": ")
    whitespace_pattern: str | None = None

    def __post_init__(self) -> None:
        """Normalise and check every field."""
        if self.json_object is False:
            object.__setattr__(self, "json_object", None)
        given = [name for name in KINDS if getattr(self, name) is not None]
        _require(
            len(given) == 1, "", ", ".join(given) or None, f"exactly one of {', '.join(KINDS)}", "Give one of these."
        )
        _require(
            self.json_object is None or is_flag(self.json_object),
            "json_object", self.json_object, "true or false", "Pass a bool; a schema goes into json.",
        )  # fmt: skip
        for name in ("regex", "grammar", "whitespace_pattern"):
            value = getattr(self, name)
            fits = is_text(value) and (value.strip() if name == "grammar" else value) != ""
            _require(value is None or fits, name, value, "Unicode text that is not empty", "Pass a string.")
        _require(
            self.after is None or (is_text(self.after) and 1 <= len(self.after) <= _LONGEST_TAG),
            "after", self.after, f"a text of 1 to {_LONGEST_TAG} characters", 'Pass a string such as "</think>".',
        )  # fmt: skip
        if self.json is not None:
            object.__setattr__(self, "json", _schema_text(self.json))
        if self.choice is not None:
            object.__setattr__(self, "choice", self._choices())
        self._check_separators()
        size = sum(len(text) for text in (self.choice or (self.json or self.regex or self.grammar or "",)))
        if size > MOST_CHARACTERS:
            _too_large(given[0], f"{size} characters")

    def _choices(self) -> tuple[str, ...]:
        listed = self.choice
        fits = isinstance(listed, Sequence) and not isinstance(listed, (str, bytes)) and len(listed) > 0
        _require(fits and all(is_text(c) and c for c in listed or ()), "choice", listed,
                 "at least one text, none of them empty", "Pass a list of strings.")  # fmt: skip
        return tuple(dict.fromkeys(listed or ()))

    def _check_separators(self) -> None:
        pair = self.separators
        fits = (
            isinstance(pair, Sequence)
            and not isinstance(pair, (str, bytes))
            and len(pair) == 2
            and all(is_text(s) and len(s) <= _LONGEST_SEPARATOR for s in pair)
            and (pair[0].strip(" \t\r\n"), pair[1].strip(" \t\r\n")) == (",", ":")
        )
        _require(fits, "separators", pair, "a comma and a colon, each with whitespace around it or none",
                 'Pass (", ", ": ").')  # fmt: skip
        object.__setattr__(self, "separators", tuple(pair))

    @property
    def kind(self) -> str:
        """Which of :data:`KINDS` is given."""
        return next(name for name in KINDS if getattr(self, name) is not None)

    @property
    def is_json(self) -> bool:
        """Whether the output after ``after`` is JSON."""
        return self.kind in ("json", "json_object")

    @property
    def schema(self) -> Mapping[str, Any] | None:
        """The JSON schema; ``{"type": "object"}`` for ``json_object``; None if it is not JSON."""
        if self.json_object:
            return {"type": "object"}
        return json.loads(self.json) if self.json is not None else None

    def as_dict(self) -> dict[str, Any]:
        """The fields that are not at their defaults, as JSON has them."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in values.items()
            if value != getattr(type(self), name, None)
        }


def _require(ok: bool, name: str, value: object, rule: str, remedy: str) -> None:
    if not ok:
        raise RequestError(explain(f"structured_outputs.{name}".rstrip("."), value, rule, remedy))


def _schema_text(schema: Any) -> str:
    """A schema as JSON text with the order of its keys kept: it is the order of the output's fields."""
    if isinstance(schema, type) and hasattr(schema, "model_json_schema"):
        schema = schema.model_json_schema()
    if isinstance(schema, str):
        try:
            schema = json.loads(schema)
        except (ValueError, RecursionError) as error:
            _require(False, "json", schema, f"not JSON ({error})", "Pass a JSON schema as a mapping or as JSON text.")
    _require(isinstance(schema, Mapping), "json", schema, "a JSON schema is an object",
             'Pass a mapping such as {"type": "object", "properties": {...}}, or a pydantic model class.')  # fmt: skip
    encoder = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    text = ""
    try:
        for piece in encoder.iterencode(schema):
            text += piece
            if len(text) > MOST_CHARACTERS:  # objects that share parts are small in memory and may be endless as text
                break
        text.encode()  # half a surrogate pair is no text that an output could have
    except (TypeError, ValueError, RecursionError) as error:
        _require(False, "json", schema, f"cannot be written as JSON ({error})", "Use JSON's own types only.")
    if len(text) > MOST_CHARACTERS:
        _too_large("json", f"more than {MOST_CHARACTERS} characters")
    return text


def _too_large(name: str, size: str) -> None:
    _require(False, name, size, f"at most {MOST_CHARACTERS} characters",
             "Make it smaller: a free string in place of a long enumeration, for example.")  # fmt: skip
