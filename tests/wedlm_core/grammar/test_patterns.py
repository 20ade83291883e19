"""Patterns are read as Python reads them, or refused."""

from __future__ import annotations

import json
import random
import re
import unicodedata

import pytest

from testing.engine.grammar_oracle import accepts, compiler
from wedlm_core.errors import RequestError
from wedlm_core.grammar import Grammar
from wedlm_core.grammar.patterns import pattern_fault
from wedlm_core.structured_outputs import StructuredOutputs

UNKNOWN_LETTER = "\U0002ebf0"  # of Unicode 15.1

PARTS = [
    *"ab0-é .^$|", *"ab", r"\d", r"\w", r"\s", r"\D", r"\W", r"\S", r"\A", r"\Z", r"\z", r"\n", r"\x61",
    r"\u0061", r"\-", r"\]",
    r"\<", r"\>", r"\é", r"\0", r"\07", r"\a", r"\v", r"\x7f", "\x07", r"\h", r"\K", r"\u{61}", r"\cA", r"\p{L}",
    r"\Qa\E", "]", "}", "{", "[ab]", "[^a]", r"[^\W_]", r"[^\Wa]", r"[\w.]", "[^\\w]", "[a-c-e]", "[]-a]", "[^]a]",
    "[a&&b]", "[a--b]", "[a~~b]", "[a||b]", "[a[b]]", "[[:alpha:]]", "[-a]", "[a-]", "[\\b]", "[\x07]",
    r"[\a-\v]", r"[^\x00-\x1f]",
    "(?:a|b)", "(?P<n>a)", "(?<m>a)", "(?>a|ab)", "(?=a)", "(?!a)", "(?i)A", "(?i:A)", "(?x) a", "(?s).",
    "(?m)^a", "(?#a)", "(?P=n)",
]  # fmt: skip
REPEATS = [
    "*",
    "+",
    "?",
    "{2}",
    "{1,2}",
    "{2,}",
    "{,2}",
    "{ 2}",
    "{1, 2}",
    "*?",
    "??",
    "{2}?",
    "*+",
    "++",
    "?+",
    "{1}+",
]
TEXTS = [
    "", "a", "b", "A", "0", "-", "é", " ", ".", "\n", "]", "}", "{", "^", "`", "\b", "&", "~", "\\", "۳", "_",
    "İ", "\u017f", "\u212a",
    UNKNOWN_LETTER, "aa", "ab", "aab", "aaa", "a\n", "b\na", "a{2}", "a{ 2}", "a{1, 2}", "a{,2}", "a-", "-]",
]  # fmt: skip


def compiled(pattern: str) -> Grammar | None:
    """The grammar of a text with a pattern; None if it is refused."""
    try:
        return compiler().compile(StructuredOutputs(json={"type": "string", "pattern": pattern}))
    except RequestError:
        return None


def allows(grammar: Grammar, text: str) -> bool:
    return accepts(grammar, json.dumps(text, ensure_ascii=False))


def assert_read_as_python_reads_it(pattern: str) -> bool:
    """Whether it was compiled."""
    grammar = compiled(pattern)
    if grammar is None:
        return False
    allowed = [text for text in TEXTS if allows(grammar, text)]
    assert [text for text in allowed if not re.search(pattern, text)] == []
    return True


@pytest.mark.parametrize("part", PARTS)
def test_each_part_is_read_as_python_reads_it_or_refused(part: str) -> None:
    for pattern in (part, f"^{part}$", *(f"^{part}{repeat}$" for repeat in REPEATS)):
        assert_read_as_python_reads_it(pattern)


def test_parts_together_are_read_as_python_reads_them_or_refused() -> None:
    rng, fine = random.Random(1), 0
    for _ in range(2000):
        parts = [rng.choice(PARTS) + rng.choice(["", "", "", *REPEATS]) for _ in range(rng.randint(1, 3))]
        fine += assert_read_as_python_reads_it(rng.choice(["{}", "^{}$", "^(?:{})$"]).format("".join(parts)))
    assert fine > 200


@pytest.mark.parametrize(
    "pattern",
    [
        r"^[A-Z]{2}-\d{3}$", r"^(\w+)@([\w.-]+)\.[a-z]{2,}$", r"^[^\s,;]*$", r"^\$?\{[a-z]+\}$",
        r"^(?P<year>\d{4})(-\d{2}){2}$",
        r"^[^\x00-\x1F]*$", r"^\+?[1-9]\d{1,14}$", "^.*$", "^[-+]?[0-9]*\\.?[0-9]+?$",
        r"^\/([a-z0-9_-]+\/?)*$", "[\\[\\]\\\\^-]",
    ],
)  # fmt: skip
def test_usual_patterns_are_compiled(pattern: str) -> None:
    assert pattern_fault(pattern) is None
    assert compiled(pattern) is not None


def test_letters_are_those_of_the_running_python() -> None:
    own = compiled(r"^\w$")
    assert own is not None
    for text in ("a", "é", "_", "5", "字", UNKNOWN_LETTER, *(chr(code) for code in range(0x1E030, 0x1E060))):
        assert allows(own, text) == bool(re.search(r"^\w$", text)), unicodedata.name(text, text)
