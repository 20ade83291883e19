"""Prose gets plainer: constructions that make sentences hard to read may only become rarer.

``python -m testing.prose CONSTRUCTION PACKAGE`` prints the sentences to rewrite.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from testing.prose import CONSTRUCTIONS, PACKAGES, counts, sentences

MOST: Mapping[str, tuple[int, ...]] = {
    # behind, what, which, pronouns, that of, beside, anew, dear, tell of, nobody, set phrase
    "docs": (6, 14, 5, 8, 2, 3, 2, 0, 0, 2, 2),
    "wedlm_core": (4, 49, 12, 5, 1, 4, 6, 1, 1, 2, 4),
    "pipeline": (1, 23, 16, 7, 1, 4, 6, 1, 1, 4, 4),
    "jobs": (0, 42, 14, 0, 0, 8, 4, 0, 0, 0, 6),
    "wedlm_batch": (0, 47, 24, 0, 0, 0, 0, 0, 0, 13, 0),
    "wedlm_base": (0, 68, 35, 18, 0, 35, 0, 0, 0, 0, 0),
    "testing": (5, 75, 15, 7, 0, 7, 5, 0, 0, 5, 3),
    "tests": (5, 78, 10, 7, 0, 10, 6, 2, 2, 8, 3),
    "benchmarks": (0, 57, 22, 8, 0, 7, 8, 0, 0, 4, 3),
    "infra": (0, 123, 14, 0, 0, 0, 0, 0, 0, 0, 0),
}
"""Package -> most places of each construction per 10,000 words. Lower a number when you can; never raise one."""


@pytest.mark.parametrize("package", PACKAGES)
def test_constructions_become_rarer(package: str) -> None:
    words, found = counts(package)
    rates = {name: 10_000 * count / words for name, count in found.items()}
    above = [
        f"{name}: {rates[name]:.1f} per 10,000 words, at most {most}; see: python -m testing.prose {name!r} {package}"
        for name, most in zip(CONSTRUCTIONS, MOST[package], strict=True)
        if rates[name] > most
    ]
    assert not above, "\n".join(above)


@pytest.mark.parametrize(
    ("sentence", "construction"),
    [
        ("The rows behind it are dropped.", "behind"),
        ("It pays for what comes second.", "what"),
        ("The file in which rows stand.", "which"),
        ("It keeps those that it has, and one of them is the one which that needs.", "pronouns"),
        ("The bits are those of the row and that of the batch.", "that of"),
        ("It runs beside others.", "beside"),
        ("It is made anew.", "anew"),
        ("Rows are dear.", "dear"),
        ("It tells of rows.", "tell of"),
        ("Nobody reads it.", "nobody"),
        ("The way is such that it ends.", "set phrase"),
    ],
)
def test_constructions_are_counted(sentence: str, construction: str) -> None:
    assert CONSTRUCTIONS[construction](sentence) == 1


def test_plain_sentences_code_and_questions_are_not() -> None:
    text = "The controller tries an arm. Which rows differ? What is a unit? `what`, [this](behind.md), ``beside``."
    assert not [name for name, count in CONSTRUCTIONS.items() for one in sentences(text) if count(one)]
