"""Constraints that are dear: refused when they are compiled, or held without harm to other rows."""

from __future__ import annotations

import json
import random
from functools import cache
from typing import Any

import numpy as np
import pytest
from llguidance import LLExecutor

from testing.engine.grammar_oracle import allowed_bits, grammar_masks
from wedlm_core.engine.constrained.matching import Constraint, Proposals
from wedlm_core.errors import RequestError
from wedlm_core.grammar import Grammar, GrammarCompiler, compiler
from wedlm_core.model.sources import resolve
from wedlm_core.statistics import DraftSource
from wedlm_core.structured_outputs import StructuredOutputs
from wedlm_core.tokenizer import Tokenizer

NOTHING = Proposals(tokens=(), most=0, source=DraftSource.MASK)


@cache
def tokenizer() -> Tokenizer:
    return Tokenizer.load(resolve("tiny"))


def compile_it(**given: Any) -> Grammar:
    size = tokenizer().vocab_size
    return GrammarCompiler(tokenizer().to_json(), size, (2,)).compile(StructuredOutputs(**given))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"json": {"type": "integer", "multipleOf": 99_999_989}}, "at most 10000"),
        ({"json": {"allOf": [{"multipleOf": 9973}, {"multipleOf": 9967}]}}, "least common multiple"),
        ({"json": {"allOf": [{"pattern": f"a.{{{i}}}b"} for i in range(12)]}}, "cannot be compiled"),
        ({"regex": "(a|aa){1000}{1000}"}, "too many expressions"),
        ({"regex": "(" * 2000 + "a" + ")" * 2000}, "cannot be compiled"),
        ({"grammar": "start: A\nA: /.*a.{30}/ & ~/(.*b){20}/ & /(c|d|.)*e.{20}/"}, "cannot be compiled"),
    ],
)
def test_what_would_take_too_long_is_refused_when_it_is_compiled(given: dict[str, Any], words: str) -> None:
    with pytest.raises(RequestError, match=words):
        compile_it(**given)


def chosen(constraint: Constraint, seed: int, steps: int) -> str | None:
    """Choose random tokens; why the constraint failed, if it did."""
    rng, executor, size = random.Random(seed), LLExecutor(1), tokenizer().vocab_size
    for _ in range(steps):
        lines = grammar_masks([(0, constraint, 0)], 1, size, (2,))
        lines.fill(executor)
        allowed = np.flatnonzero(allowed_bits(lines)[0, :size])
        token = int(rng.choice([t for t in allowed.tolist() if t != 2] or [2]))
        reason = constraint.accept([token])
        if reason or token == 2:
            return reason
        constraint.draft(NOTHING, most=4)
    return None


def test_a_row_does_not_fail_by_what_rows_before_it_used_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "_MOST_STATES", 4000)  # each row needs some hundreds
    grammar = compile_it(regex="(.*[ab].{30}){3}")
    first = grammar.matcher
    assert [chosen(Constraint(grammar), seed, 40) for seed in range(24)] == [None] * 24
    assert grammar.matcher is not first, "the limit was reached on the way"


def test_a_row_that_needs_more_than_the_limit_fails_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "_MOST_STATES", 4000)
    reasons = [chosen(Constraint(compile_it(regex="(.*[ab].{30}){3}")), 0, 4000) for _ in range(2)]
    assert reasons[0] == reasons[1]
    assert "too many states" in str(reasons[0])


def test_a_long_forced_text_is_spelled_once() -> None:
    text = "a long text, " * 600
    constraint, taken, spelled = Constraint(compile_it(choice=[text])), list[int](), 0
    while True:
        before = len(constraint._ahead)
        drafts = constraint.draft(NOTHING, most=30)
        spelled += len(constraint._ahead) > before
        taken += drafts.tokens
        ends = constraint.drafts.ends
        assert constraint.accept(drafts.tokens) is None
        if ends:
            break
    assert tokenizer().decode(taken) == text
    assert spelled <= 3


def test_a_tokenizer_that_the_library_gives_up_on_is_refused_like_any_other_fault() -> None:
    whole = json.loads(tokenizer().to_json())
    flags = dict.fromkeys(("special", "single_word", "lstrip", "rstrip", "normalized"), False)
    whole["added_tokens"].append({"id": tokenizer().vocab_size, "content": "x" * 5000, **flags})
    with pytest.raises(RequestError, match="cannot read this tokenizer"):
        GrammarCompiler(json.dumps(whole), tokenizer().vocab_size + 1, (2,))
