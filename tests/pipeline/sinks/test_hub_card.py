"""The card of a dataset repository: its YAML is read back, whatever columns and settings are called."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest
import yaml

from pipeline.sinks.hub_card import CardFacts, RowStatistics, card_text, mark_of

FACTS = CardFacts(
    repo="me/rows", digest="abc123", license=None, model="tiny", settings={"temperature": 0.0}, format="parquet",
    schema=pa.schema([("text", pa.string())]), statistics=RowStatistics(rows=5, inputs=5), version="1",
)  # fmt: skip


def front(text: str) -> dict[str, object]:
    return yaml.safe_load(text.split("---\n")[1])  # type: ignore[no-any-return]


def test_names_that_would_end_a_cell_do_not() -> None:
    schema = pa.schema([("a|b", pa.int32()), ("c`d\ne", pa.struct([(f"f{i}", pa.int64()) for i in range(40)]))])
    text = card_text(replace(FACTS, schema=schema, settings={"stop": "x|y\n---"}))
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    assert rows[0] == r"| `a\|b` | `int32` |"
    assert rows[1].startswith("| `c'd e` | `struct<f0: int64")
    assert all(len(row) < 120 for row in rows)
    assert front(text)["tags"] == ["synthetic", "wedlm-batch"]


@pytest.mark.parametrize(("rows", "size"), [(0, "n<1K"), (999, "n<1K"), (1000, "1K<n<10K"), (10**9, "n>1B")])
def test_the_size_is_the_hubs_category(rows: int, size: str) -> None:
    text = card_text(replace(FACTS, statistics=RowStatistics(rows=rows)))
    assert front(text)["size_categories"] == [size]


def test_a_card_is_known_by_its_mark() -> None:
    assert mark_of(card_text(FACTS)) == "abc123"
    assert mark_of("# somebody's") is None


def test_what_was_not_generated_is_not_divided_by() -> None:
    text = card_text(replace(FACTS, statistics=RowStatistics(rows=2, failed=2, inputs=2, finish_reasons={"error": 2})))
    assert "| generations | 0 |" in text
    assert "per generation" not in text
    assert "Failed rows have" in text
