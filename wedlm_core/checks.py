"""Type and range checks that the configurations share. Imports no torch."""

from __future__ import annotations

import math
from typing import TypeGuard

MAX_INT = 2**31 - 1
"""Upper bound of counts and ids: the largest int32."""


def is_whole(value: object, least: int = 0, most: int = MAX_INT) -> bool:
    """Whether ``value`` is an integer in ``[least, most]``. A bool does not count as an integer."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def is_number(value: object, least: float = -math.inf, most: float = math.inf) -> bool:
    """Whether ``value`` is a finite int or float in ``[least, most]``; not a bool, not an int beyond floats."""
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(value) and least <= value <= most
    except OverflowError:
        return False


def is_flag(value: object) -> bool:
    """Whether ``value`` is a bool. 1 and ``"true"`` are not."""
    return isinstance(value, bool)


def is_text(value: object) -> TypeGuard[str]:
    """Whether ``value`` is a string that can be encoded as UTF-8, so one without lone surrogates."""
    if not isinstance(value, str):
        return False
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
