"""Values of ``format`` that the backend and validators agree on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_LEAP_YEAR = "([0-9]{2}(0[48]|[2468][048]|[13579][26])|(0[48]|[2468][048]|[13579][26])00)"
_YEAR = "(000[1-9]|00[1-9][0-9]|0[1-9][0-9]{2}|[1-9][0-9]{3})"
_DAY = {"pattern": f"^({_YEAR}-(0[13-9]|1[0-2])|{_YEAR}-02-([01]|2[0-8])|{_LEAP_YEAR}-02-29)"}
_SECOND = {"pattern": "^[^:]*:[^:]*:[0-5]"}  # no leap second: validators take it at the end of a day in UTC only
_INSIDE = "[a-zA-Z0-9-]"
_END = "[a-zA-Z0-9]"
_LABEL = f"({_END}({_INSIDE}?{_END})?|{_END}{_INSIDE}({_END}{_INSIDE}*{_END}|-{_END}({_INSIDE}*{_END})?))"
_LABELS = {
    "pattern": rf"^{_LABEL}(\.{_LABEL})*$"
}  # no hyphens in places 3 and 4: whether Punycode is right is no regex
_INT32 = {"minimum": -(2**31), "maximum": 2**31 - 1}

_RULES: Mapping[str, tuple[Mapping[str, Any], ...]] = {
    "date-time": ({"format": "date-time"}, _DAY, _SECOND),
    "time": ({"format": "time"}, _SECOND),
    "date": ({"format": "date"}, _DAY),
    "hostname": ({"format": "hostname"}, _LABELS, {"maxLength": 253}),
    **{name: ({"format": name},) for name in ("duration", "email", "ipv4", "ipv6", "uuid", "uri")},
    "int32": (_INT32,),
    "int64": ({"minimum": -(2**53), "maximum": 2**53},),
    "float": (),
    "double": (),
}
FORMATS = frozenset(_RULES)
"""Values of ``format`` that an output obeys."""


def format_rules(name: str) -> tuple[Mapping[str, Any], ...]:
    """The schemas that together stand for a format. The first one has the format itself, if the backend knows it."""
    return _RULES[name]
