"""The language of ``keep``: its forms, their meaning, and mistakes told from expressions."""

from __future__ import annotations

from fractions import Fraction

import pytest

from pipeline.errors import ConfigError
from pipeline.selection.candidates import Keep, parse_keep


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (None, Keep()),
        ("best 50%", Keep(share=Fraction(1, 2))),
        ("  Best 12.5 percent ", Keep(share=Fraction(1, 8))),
        ("best 100%", Keep(share=Fraction(1))),
        ("best 1_000", Keep(number=1000)),
        ("best 1 per row", Keep(number=1, per_row=True)),
        ("best 2 PER ROW where a > 1", Keep(number=2, per_row=True, where="a > 1")),
        ("best 5% where a = 'stop'\n and b", Keep(share=Fraction(1, 20), where="a = 'stop'\n and b")),
        ("best_of > 1", Keep(where="best_of > 1")),
        ("best = 1", Keep(where="best = 1")),
        ("best.score > 1", Keep(where="best.score > 1")),
        (" a and b ", Keep(where="a and b")),
    ],
)  # fmt: skip
def test_what_is_understood(text: str | None, wanted: Keep) -> None:
    assert parse_keep(text) == wanted


@pytest.mark.parametrize(
    "text",
    ["best", "best half", "best 0%", "best 101%", "best 0", "best 1.5", "best -1", "best 50% per row", "best 1 of row",
     "best 5 where", "best 1..2", "best 50%where", "best 5 rows"],
)  # fmt: skip
def test_what_begins_with_best_and_is_not_understood_is_refused_with_examples(text: str) -> None:
    with pytest.raises(ConfigError, match='"best N per row"'):
        parse_keep(text)


def test_a_share_is_rounded_up_exactly() -> None:
    assert [parse_keep("best 50%").most(n) for n in (0, 1, 2, 3)] == [0, 1, 1, 2]
    assert parse_keep("best 10%").most(30) == 3, "0.1 has no exact binary value"
    assert parse_keep("best 33.3333333333%").most(3 * 10**12) == 10**12 - 1, "all digits count"
    assert parse_keep("best 7").most(3) == 7
    assert Keep(where="a").most(3) == 3
