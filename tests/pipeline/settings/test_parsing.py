"""Values that are read out of texts."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from pipeline.errors import ConfigError
from pipeline.settings.parsing import Parse, parse_settings


def values(texts: list[str | None], **given: Any) -> list[Any]:
    return Parse(**given).values(pa.array(texts, pa.string())).to_pylist()


def test_the_group_of_the_first_match_counts_or_all_of_it_and_what_has_none_is_null() -> None:
    texts = ["Score: 4 of 5, Score: 1", "none", None, "Score: x"]
    assert values(texts, pattern=r"Score: (\d+)", type="int64") == [4, None, None, None]
    assert values(texts, pattern=r"[A-Z]\w+") == ["Score", None, None, "Score"]
    assert values(["(7)", "7"], pattern=r"\((\d)\)") == ["7", None], "an escaped parenthesis begins no group"
    assert values(["a]b(3"], pattern=r"[^]a](?:b|[(])+(\d)") == ["3"], "nor does one in a class"


def test_what_cannot_be_read_as_the_type_is_null() -> None:
    assert values(["1.5", "nan?", "99999999999999999999"], pattern=r"[\d.]+", type="float64") == [1.5, None, 1e20]
    assert values(["1.5", "12", "99999999999999999999"], pattern=r"[\d.]+", type="int64") == [None, 12, None]


def test_a_choice_is_a_word_of_its_own_in_any_case_and_the_longest_of_those_at_one_place() -> None:
    texts = ["YES.", "yesterday", "well, no idea", "No.", None, "é no", "nö"]
    assert values(texts, choices=["yes", "no", "no idea"]) == ["yes", None, "no idea", "no", None, "no", None]
    assert values(["I say A+ or B"], choices=["B", "A+"]) == ["A+"]


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({}, "either"),
        ({"pattern": "a", "choices": ["b"]}, "either"),
        ({"pattern": "(a)(b)"}, r"\(\?:"),
        ({"pattern": "("}, "parse.pattern"),
        ({"pattern": "(?=a)b"}, "RE2"),
        ({"pattern": 3}, "parse.pattern"),
        ({"choices": [True, False]}, "Quote"),
        ({"choices": "yes"}, "a list"),
        ({"pattern": "a", "type": "date"}, "parse.type"),
        ({"patern": "a"}, "patern"),
    ],
)
def test_mistakes_are_named(given: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        parse_settings({"score": given})
    with pytest.raises(ConfigError, match="score"):
        parse_settings({"score": given})


def test_settings_are_a_mapping_of_names() -> None:
    assert parse_settings({"score": {"pattern": "a"}}) == {"score": Parse(pattern="a")}
    for bad in ([], "a", {1: {"pattern": "a"}}):
        with pytest.raises(ConfigError, match="parse"):
            parse_settings(bad)
