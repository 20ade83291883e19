"""JSON as it was written: reads every number without loss, marks values that are no JSON, and writes them back."""

from __future__ import annotations

import itertools
import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time
from decimal import Decimal, InvalidOperation
from typing import Any, NoReturn

_SHORT = 15
"""A fraction of this many characters or fewer is equal to the shortest text of its 64-bit float."""
_MOST_DIGITS = 4000
"""Python reads longer integers only if its limit is raised."""
_HALF_PAIR = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Misfit:
    """A value that no column holds.

    Attributes:
        reason: why.
        text: the value as it was written, or the start of it.
        pairs: keys and values of an object that names a key twice; else empty.
    """

    reason: str
    text: str
    pairs: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class Written:
    """A JSON number that is no 64-bit float.

    Attributes:
        text: the number as it was written.
    """

    text: str


class MinusZero(float):
    """The number ``-0``, which a column of fractions holds: a float writes itself as ``-0.0``."""

    __slots__ = ()

    def __new__(cls) -> MinusZero:
        """The one value."""
        return super().__new__(cls, -0.0)

    def __getnewargs__(self) -> tuple[()]:  # type: ignore[override]
        return ()

    def __repr__(self) -> str:
        return "-0"


class Row(dict[str, Any]):
    """A row of a text file with a :class:`Misfit` in a cell; in place of any part of a cell the whole cell is one.

    Attributes:
        raw: the text of the row.
    """

    def __init__(self, cells: Mapping[str, Any], raw: str) -> None:
        super().__init__(cells)
        self.raw = raw


class JsonReader:
    """Reads JSON texts, one at a time.

    A :class:`Written` stands for each number that Python would round, and a :class:`Misfit` for NaN, for an infinity,
    and for an object that names a key twice.
    """

    def __init__(self) -> None:
        self._has_misfit = False
        self._decoder = json.JSONDecoder(
            parse_int=_integer, parse_float=_fraction, parse_constant=self._constant, object_pairs_hook=self._object
        )

    def read(self, text: str) -> Any:
        """The value of JSON text; an object with misfits is a :class:`Row`, in which a key that occurs twice is one.

        Raises:
            ValueError: the text is not JSON.
            RecursionError: it is nested too deeply.
        """
        self._has_misfit = False
        value = self._decoder.decode(text)
        if self._has_misfit and isinstance(value, Misfit) and value.pairs:
            counts = Counter(name for name, _ in value.pairs)
            value = {name: cell if counts[name] == 1 else _twice(name, value.pairs) for name, cell in value.pairs}
        if self._has_misfit and isinstance(value, dict):
            return Row({name: _first_misfit(cell) or cell for name, cell in value.items()}, text.strip("\r\n"))
        return value

    def _constant(self, text: str) -> Misfit:
        self._has_misfit = True
        return Misfit(f"{text} is not JSON", text)

    def _object(self, pairs: list[tuple[str, Any]]) -> Any:
        found = dict(pairs)
        if len(found) == len(pairs):
            return found
        self._has_misfit = True
        ((twice, _),) = Counter(name for name, _ in pairs).most_common(1)
        return _twice(twice, pairs)


def _twice(name: str, pairs: Sequence[tuple[str, Any]]) -> Misfit:
    return Misfit(f"the key {name!r} occurs twice in an object", repr(pairs), tuple(pairs))


def _integer(text: str) -> Any:
    if text == "-0":
        return MinusZero()
    return int(text) if len(text) < _MOST_DIGITS else Written(text)


def _fraction(text: str) -> Any:
    value = float(text)
    if repr(value) == text or (len(text) <= _SHORT and "e" not in text.lower()):
        return value
    return value if math.isfinite(value) and _is_equal(value, text) else Written(text)


def _is_equal(value: float, text: str) -> bool:
    """Whether a text is a float's: the shortest one that Python and JavaScript write, or C's 17 digits."""
    try:
        return Decimal(text) in (Decimal(repr(value)), Decimal(f"{value:.17g}"))
    except InvalidOperation:  # an exponent that no decimal has
        return False


def _first_misfit(value: Any) -> Misfit | None:
    """The first misfit inside a value; None if it has none."""
    if isinstance(value, Misfit):
        return value
    inner: Iterator[Any] = iter(())
    if isinstance(value, Mapping):
        inner = iter(value.values())
    elif isinstance(value, (list, tuple)):
        inner = iter(value)
    return next(filter(None, map(_first_misfit, inner)), None)


def write_json(value: Any) -> str:
    """JSON text of a value: each number as it was written, dates and times as in ISO 8601.

    Raises:
        TypeError: JSON has no such value.
        ValueError: NaN, an infinity, or a value that holds itself.
    """
    text = _written(value)
    # Half a surrogate pair has no encoding, but JSON has an escape for it.
    return text if text.isascii() else _HALF_PAIR.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def is_null(value: Any) -> bool:
    """Whether a value is None, or NaT or NA, which pandas writes for it and Arrow does not take."""
    return value is None or type(value).__name__ in ("NaTType", "NAType")


def has_half_pair(value: Any) -> bool:
    """Whether half of a surrogate pair stands in a text, or in one inside a list or an object."""
    if isinstance(value, Mapping):
        return any(map(has_half_pair, itertools.chain(value, value.values())))
    if isinstance(value, (list, tuple)):
        return any(map(has_half_pair, value))
    return isinstance(value, str) and not value.isascii() and _HALF_PAIR.search(value) is not None


def _written(value: Any) -> str:
    try:
        text = _dumps(value)
        if "-0.0" not in text or not isinstance(value, (Mapping, list, tuple, MinusZero)):
            return text
    except TypeError:
        pass
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_dumps(str(name))}: {_written(item)}" for name, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_written, value)) + "]"
    return _scalar(value)


def _scalar(value: Any) -> str:
    if isinstance(value, Written):
        return value.text
    if isinstance(value, MinusZero):
        return repr(value)
    if is_null(value):
        return "null"
    if isinstance(value, Decimal) and value.is_finite():
        return str(value)
    if isinstance(value, (datetime, date, time)):
        return _dumps(value.isoformat())
    if hasattr(value, "tolist"):  # arrays and scalars of NumPy
        return _written(value.tolist())
    return _no_json(value)


def _no_json(value: Any) -> NoReturn:
    raise TypeError(f"a {type(value).__name__} has no JSON")


def _dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)
