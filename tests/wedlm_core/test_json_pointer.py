"""References of JSON schemas lead to the part that they name, and where there is none, to any value."""

from __future__ import annotations

from typing import Any

import pytest

from wedlm_core.json_pointer import schema_at

SCHEMA: dict[str, Any] = {"$defs": {"a b": {"type": "null"}, "x/y~": [1, {"z": 2}]}, "type": "object"}


@pytest.mark.parametrize(
    ("reference", "part"),
    [
        ("#", SCHEMA),
        ("#/type", "object"),
        ("#/$defs/a%20b", {"type": "null"}),
        ("#/$defs/x~1y~0/1/z", 2),
        ("#/$defs/none", True),
        ("#/$defs/x~1y~0/2", True),
        ("#/type/0", True),
        ("https://example.com/schema", True),
    ],
)
def test_a_reference_leads_to_its_part(reference: str, part: Any) -> None:
    assert schema_at(SCHEMA, reference) == part
