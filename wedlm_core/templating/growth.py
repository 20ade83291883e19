"""Estimate the size of an operation's result before it is computed, and refuse what is too large."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from wedlm_core.templating.limits import Meter, TemplateLimitError
from wedlm_core.templating.sizes import check, extent, text_length

__all__ = ["OPERATORS", "apply", "check_method", "check_printf", "check_replaced", "joined", "nested_chars"]

OPERATORS: Mapping[str, Callable[[Any, Any], Any]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv, "//": operator.floordiv,
    "%": operator.mod, "**": operator.pow,
}  # fmt: skip
"""The operators of templates; all are intercepted."""

_SPEC = re.compile(r"%(?:%|(\([^()]*\))?[#0\- +]*(\*|[0-9]+)?(?:\.(\*|[0-9]+)?)?)")
_NUMBER_CHARS = 400
"""An upper bound of the characters of a printed float."""


def apply(sign: str, left: Any, right: Any, meter: Meter) -> Any:
    """``left sign right``.

    Raises:
        TemplateLimitError: the result would be too large.
    """
    meter.step()
    if sign == "*":
        _check_product(left, right, meter)
    elif sign == "**" and isinstance(left, int) and isinstance(right, int):
        _check_int(abs(right) * left.bit_length() if abs(left) > 1 else 1, meter)
    elif sign == "%" and isinstance(left, (str, bytes)):
        check_printf(left, right, meter)
    return check(OPERATORS[sign](left, right), meter)


def _check_product(left: Any, right: Any, meter: Meter) -> None:
    if isinstance(left, int) and isinstance(right, int):
        _check_int(left.bit_length() + right.bit_length(), meter)
    for times, value in ((left, right), (right, left)):
        if isinstance(times, int) and isinstance(value, (str, bytes, list, tuple)):
            meter.fits(text_length(value, meter) * times)


def _check_int(bits: int, meter: Meter) -> None:
    if bits > meter.limits.int_bits:
        raise TemplateLimitError(
            f"the template makes a number of {bits} bits, and {meter.limits.int_bits} is the most. Use smaller numbers"
        )


def check_printf(text: str | bytes, values: Any, meter: Meter) -> None:
    """Raise TemplateLimitError if ``text % values`` would be too large."""
    form = text.decode("latin-1") if isinstance(text, bytes) else str(text)
    fields = chars = 0
    for match in _SPEC.finditer(form):
        if match.group() == "%%":
            continue
        if form[match.end() : match.end() + 1] == "(":
            raise TemplateLimitError("a key of a format has parentheses. Rename it")
        if "*" in match.groups():
            raise TemplateLimitError("the width in a format is '*'. Write it as a number")
        fields += 1
        chars += _NUMBER_CHARS + sum(_int(width, meter) for width in match.groups()[1:] if width)
        meter.fits(chars)
    if isinstance(values, tuple):
        chars += text_length(values, meter)
    else:
        parts = values.values() if isinstance(values, Mapping) else (values,)
        chars += fields * max((text_length(part, meter) for part in parts), default=0)
    meter.fits(chars + len(form))


def _int(digits: str, meter: Meter) -> int:
    """The number; for too many digits, a number that is over every limit."""
    return int(digits) if len(digits) < 12 else meter.limits.value_chars + 1


def joined(separator: Any, items: Any, meter: Meter) -> list[Any]:
    """The items as a list, after a check that the joined text fits."""
    parts = list(items)
    chars = len(separator) * max(0, len(parts) - 1)
    for part in parts:
        chars += text_length(part, meter)
        meter.fits(chars)
    return parts


def check_replaced(text: Any, old: Any, new: Any, count: Any, meter: Meter) -> None:
    """Raise TemplateLimitError if ``text.replace(old, new, count)`` would be too large."""
    found = text.count(old)
    times = found if count is None or count < 0 else min(found, count)
    meter.fits(len(text) + times * (len(new) - len(old)))


def check_method(receiver: Any, name: str, args: Sequence[Any], kwargs: Mapping[str, Any], meter: Meter) -> Any:
    """The arguments for a method of a text or number; TemplateLimitError if the result would be too large."""
    if name in _PADDED:
        meter.fits(_argument(args, kwargs, 0, "width", 0))
    elif name == "expandtabs":
        tabs = receiver.count("\t" if isinstance(receiver, str) else b"\t")
        meter.fits(len(receiver) + tabs * _argument(args, kwargs, 0, "tabsize", 8))
    elif name == "replace" and len(args) >= 2:
        check_replaced(receiver, args[0], args[1], _argument(args, kwargs, 2, "count", None), meter)
    elif name == "join" and len(args) == 1:
        return (joined(receiver, args[0], meter),)
    elif name == "translate" and args and isinstance(args[0], Mapping):
        longest = max((len(to) for to in args[0].values() if isinstance(to, str)), default=1)
        meter.fits(len(receiver) * max(1, longest))
    elif name == "to_bytes":
        meter.fits(_argument(args, kwargs, 0, "length", 1))
    elif name == "striptags":
        meter.fits_slow(len(receiver), name)
    return args


_PADDED = ("center", "ljust", "rjust", "zfill")


def _argument(args: Sequence[Any], kwargs: Mapping[str, Any], place: int, name: str, default: Any) -> Any:
    return args[place] if len(args) > place else kwargs.get(name, default)


def nested_chars(value: Any, indent: int, meter: Meter) -> int:
    """The approximate length of a value as JSON with ``indent`` characters per level."""
    size = extent(value, meter)
    return size.chars + size.items * size.depth * indent
