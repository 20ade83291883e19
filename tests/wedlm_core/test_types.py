"""Sampling parameters: no field goes unchecked."""

from __future__ import annotations

from dataclasses import fields

import pytest

from wedlm_core.errors import RequestError
from wedlm_core.types import SamplingParams


@pytest.mark.parametrize("name", [f.name for f in fields(SamplingParams)])
def test_every_field_refuses_what_it_cannot_mean(name: str) -> None:
    with pytest.raises(RequestError, match=name):
        SamplingParams(**{name: object()})
