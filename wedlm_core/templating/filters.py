"""Jinja filters and tests that count their cost and refuse beforehand a result that would be too large."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sized
from typing import Any

from wedlm_core.templating.growth import check_printf, check_replaced, joined, nested_chars
from wedlm_core.templating.limits import ITEM_CHARS, Meter, TemplateLimitError, current
from wedlm_core.templating.sizes import check, is_container, text_length

__all__ = ["bounded_filters", "counted_tests"]

_MAX_PARTS = 100_000
_MAX_DIGITS = 400
_ITEMS_PER_STEP = 16
"""Number of items that a filter reads in the time of one template step."""


def counted_tests(tests: Mapping[str, Any]) -> dict[str, Any]:
    """The same tests; each use counts as a step."""

    def counted(test: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(test)
        def use(*args: Any, **kwargs: Any) -> Any:
            current().step()
            return test(*args, **kwargs)

        return use

    return {name: counted(test) for name, test in tests.items()}


def bounded_filters(filters: Mapping[str, Any]) -> dict[str, Any]:
    """The same filters within limits: each use counts as a step, and its result is measured."""
    return {name: _bounded(filter_, _BEFORE.get(name, _sequence)) for name, filter_ in filters.items()}


def _bounded(filter_: Callable[..., Any], before: Callable[[Meter, Any, list[Any], dict[str, Any]], Any]) -> Any:
    # Some filters take the environment or the context before the value.
    skipped = 1 if getattr(filter_, "jinja_pass_arg", None) is not None else 0

    @functools.wraps(filter_)
    def use(*args: Any, **kwargs: Any) -> Any:
        meter = current()
        meter.step()
        if len(args) > skipped:
            meter.look_at(args[skipped])
            own = list(args[skipped + 1 :])
            value = before(meter, args[skipped], own, kwargs)
            args = (*args[:skipped], value, *own)
        return check(filter_(*args, **kwargs), meter)

    return use


def _argument(args: list[Any], kwargs: Mapping[str, Any], place: int, name: str, default: Any) -> Any:
    return args[place] if len(args) > place else kwargs.get(name, default)


def _text(meter: Meter, value: Any, args: list[Any], kwargs: Mapping[str, Any]) -> Any:
    """No check needed: the result is about as long as the value."""
    return value


def _sequence(meter: Meter, value: Any, args: list[Any], kwargs: Mapping[str, Any]) -> Any:
    """The filter reads every item; the items of a text are its characters."""
    if isinstance(value, str):
        meter.fits(len(value) * ITEM_CHARS)
    if isinstance(value, Sized):
        meter.step(len(value) // _ITEMS_PER_STEP)
    return value


def _slow(name: str) -> Callable[[Meter, Any, list[Any], dict[str, Any]], Any]:
    def before(meter: Meter, value: Any, args: list[Any], kwargs: Mapping[str, Any]) -> Any:
        meter.fits_slow(text_length(value, meter), f"the filter {name}")
        return value

    return before


def _center(meter: Meter, value: Any, args: list[Any], kwargs: Mapping[str, Any]) -> Any:
    meter.fits(_argument(args, kwargs, 0, "width", 80))
    return value


def _indent(meter: Meter, value: Any, args: list[Any], kwargs: Mapping[str, Any]) -> Any:
    width = _argument(args, kwargs, 0, "width", 4)
    lines = len(value.splitlines()) + 1 if isinstance(value, str) else 1
    meter.fits(text_length(value, meter) + lines * (len(width) if isinstance(width, str) else width))
    return value


def _format(meter: Meter, value: Any, args: list[Any], kwargs: Mapping[str, Any]) -> Any:
    check_printf(str(value), kwargs or tuple(args), meter)
    return value


def _replace(meter: Meter, value: Any, args: list[Any], kwargs: Mapping[str, Any]) -> Any:
    old, new = (str(_argument(args, kwargs, i, name, "")) for i, name in enumerate(("old", "new")))
    meter.fits(text_length(value, meter))
    check_replaced(str(value), old, new, _argument(args, kwargs, 2, "count", None), meter)
    return value


def _join(meter: Meter, value: Any, args: list[Any], kwargs: Mapping[str, Any]) -> Any:
    return joined(str(_argument(args, kwargs, 0, "d", "")), value, meter)


def _wordwrap(meter: Meter, value: Any, args: list[Any], kwargs: Mapping[str, Any]) -> Any:
    meter.fits_slow(text_length(value, meter), "the filter wordwrap")
    wrap = _argument(args, kwargs, 2, "wrapstring", None) or "\n"
    meter.fits((len(value) + 1) * len(wrap))
    return value


def _parts(name: str) -> Callable[[Meter, Any, list[Any], dict[str, Any]], Any]:
    def before(meter: Meter, value: Any, args: list[Any], kwargs: Mapping[str, Any]) -> Any:
        count = _argument(args, kwargs, 0, name, 1)
        if isinstance(count, int) and count > _MAX_PARTS:
            raise TemplateLimitError(f"{name}={count}: {_MAX_PARTS} is the most. Lower it")
        return _sequence(meter, value, args, kwargs)

    return before


def _round(meter: Meter, value: Any, args: list[Any], kwargs: Mapping[str, Any]) -> Any:
    digits = _argument(args, kwargs, 0, "precision", 0)
    if isinstance(digits, int) and abs(digits) > _MAX_DIGITS:
        raise TemplateLimitError(f"precision={digits}: {_MAX_DIGITS} digits are the most. Lower it")
    return value


def _sum(meter: Meter, value: Any, args: list[Any], kwargs: Mapping[str, Any]) -> Any:
    start = _argument(args, kwargs, 1, "start", 0)
    if isinstance(start, (str, bytes)) or is_container(start):
        raise TemplateLimitError("the filter sum adds numbers only. Loop over the lists, or join the texts")
    return _sequence(meter, value, args, kwargs)


def _tojson(meter: Meter, value: Any, args: list[Any], kwargs: Mapping[str, Any]) -> Any:
    settings = [*args, *kwargs.values()]
    indent = max((s for s in settings if isinstance(s, int)), default=0)
    longest = max((len(s) for s in settings if isinstance(s, str)), default=0)
    longest = max([longest, *(len(t) for s in settings if isinstance(s, (list, tuple)) for t in s)])
    meter.fits(nested_chars(value, max(indent, longest), meter))
    return value


_BEFORE: Mapping[str, Callable[[Meter, Any, list[Any], dict[str, Any]], Any]] = {
    **dict.fromkeys(
        ("abs", "attr", "capitalize", "count", "d", "default", "e", "escape", "filesizeformat", "first", "float",
         "forceescape", "int", "length", "lower", "safe", "string", "trim", "truncate", "upper", "urlencode",
         "last"), _text
    ),
    **{name: _slow(name) for name in ("pprint", "striptags", "urlize", "xmlattr")},
    "center": _center, "indent": _indent, "format": _format, "replace": _replace, "join": _join,
    "wordwrap": _wordwrap, "batch": _parts("linecount"), "slice": _parts("slices"), "round": _round, "sum": _sum,
    "tojson": _tojson,
}  # fmt: skip
"""The check before each filter; filters that are not listed are treated as reading every item."""
