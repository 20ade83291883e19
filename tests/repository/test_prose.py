"""Prose gets plainer: constructions that make sentences hard to read may only become rarer.

``python -m testing.prose CONSTRUCTION PACKAGE`` prints the sentences to rewrite.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from testing.prose import CONSTRUCTIONS, PACKAGES, counts, sentences

MOST: Mapping[str, tuple[int, ...]] = {
    # behind, what, which, pronouns, that of, beside, anew, dear, tell of, nobody, set phrase
    "docs": (0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1),
    "wedlm_core": (0, 1, 1, 0, 1, 2, 5, 0, 0, 1, 2),
    "pipeline": (0, 1, 1, 0, 1, 1, 1, 0, 0, 1, 2),
    "jobs": (0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 3),
    "wedlm_batch": (0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0),
    "wedlm_base": (0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0),
    "testing": (0, 2, 1, 0, 0, 5, 1, 1, 0, 4, 2),
    "tests": (0, 2, 1, 0, 0, 6, 2, 1, 0, 6, 2),
    "benchmarks": (0, 2, 1, 0, 0, 3, 3, 0, 0, 1, 2),
    "infra": (0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0),
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
