"""Cells of text columns of values of any kind are in a prompt as they were written."""

from __future__ import annotations

import pyarrow as pa
import pytest

from pipeline.prompts.cells import structured_values
from pipeline.settings.template import PromptTemplate


@pytest.mark.parametrize("number", ["0.5", "-7", "1e400", "0.12345678901234567890123", "1e-400"])
def test_a_number_inside_an_object_has_its_digits_in_a_prompt(number: str) -> None:
    (cell,) = structured_values(pa.chunked_array([[f'{{"n": {number}}}']]))
    assert PromptTemplate("{{ c.n }}").render({"c": cell}) == number
