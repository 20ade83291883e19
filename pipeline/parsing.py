"""Reads a value, such as a score or a verdict, out of each generated text, into a column of its own."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.codec import explain
from pipeline.errors import ConfigError

__all__ = ["Parse", "parse_settings"]

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
    """What to read out of a text. One of ``pattern`` and ``choices`` is given.

    Attributes:
        pattern: regular expression (RE2's syntax, whose time is linear in the text). Its first match counts: what its
            one group matched, or all of it if it has none.
        choices: the one that comes first in the text, as words of their own, in upper or lower case; as it is
            written here.
        type: of the column: "string", "int64" or "float64". What cannot be read as such is null.

    Raises:
        ConfigError: a value is out of range; names it.
    """

    pattern: str | None = None
    choices: Sequence[str] | None = None
    type: Literal["string", "int64", "float64"] = "string"

    def __post_init__(self) -> None:
        """Check the expression; fix the type of ``choices``."""
        if (self.pattern is None) == (self.choices is None):
            raise ConfigError(explain("parse", self, "either a pattern or choices", "Give one of them."))
        if self.type not in _TYPES:
            raise ConfigError(explain("parse.type", self.type, f"one of {list(_TYPES)}", "Pick one of these."))
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
        return pa.field(name, _TYPES[self.type][0])

    def values(self, texts: pa.Array) -> pa.Array:
        """The value of each text; null where there is none, or no text."""
        kind, convert = _TYPES[self.type]
        found = pc.struct_field(pc.extract_regex(texts, self._expression), "value").to_pylist()
        written = {choice.lower(): choice for choice in reversed(self.choices or ())}
        return pa.array(
            [None if text is None else _read(written.get(text.lower(), text), convert) for text in found], kind
        )


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
            rule = f"fields are pattern, choices and type ({error})"
            raise ConfigError(explain(f"parse.{name}", own, rule, "Write {pattern: ..., type: int64}.")) from error
        except ConfigError as error:
            raise ConfigError(f"{name}: {error}") from error
    return found
