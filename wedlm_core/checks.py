"""What a value may be: the few questions that every configuration asks. A leaf: imports no torch."""

from __future__ import annotations

import math
from typing import TypeGuard

__all__ = ["MOST", "is_flag", "is_number", "is_text", "is_whole"]

MOST = 2**31 - 1
"""No count or id is larger: tensors and tables of all kinds hold it."""


def is_whole(value: object, least: int = 0, most: int = MOST) -> bool:
    """Whether ``value`` is an integer in ``[least, most]``; a bool is none."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def is_number(value: object, least: float = -math.inf, most: float = math.inf) -> bool:
    """Whether ``value`` is a finite integer or float in ``[least, most]``; a bool is none, nor what no float holds."""
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(value) and least <= value <= most
    except OverflowError:
        return False


def is_flag(value: object) -> bool:
    """Whether ``value`` is true or false; 1 and ``"true"`` are neither."""
    return isinstance(value, bool)


def is_text(value: object) -> TypeGuard[str]:
    """Whether ``value`` is a string that can be written as UTF-8: half a surrogate pair cannot."""
    if not isinstance(value, str):
        return False
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
