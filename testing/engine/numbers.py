"""Number types of panels, for tests: kernels that no engine on this CPU uses are compiled by slow tests alone."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from wedlm_core.kernels.cpu.panel_products import numbers_here, numeric_kind

_KINDS = (("float32",), ("bfloat16",), ("int8", "int16"))


def used_here() -> list[str]:
    """The numbers that engines use on this CPU: the fastest for each type of weights."""
    found = ([one for one in numbers_here() if numeric_kind(one) in kinds] for kinds in _KINDS)
    return [some[0] for some in found if some]


def marked(numbers: Iterable[str]) -> list[Any]:
    """Values for ``pytest.mark.parametrize``: numbers that engines on this CPU use, and others as slow cases."""
    return [one if one in used_here() else pytest.param(one, marks=pytest.mark.slow) for one in numbers]
