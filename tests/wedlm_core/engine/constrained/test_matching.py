"""A constraint's drafts: forced tokens, allowed proposals, and no trace of either in the matcher."""

from __future__ import annotations

import random
from functools import cache

import pytest

from testing.engine.grammar_oracle import allowed_tokens
from testing.engine.schemas import OTHERS, SCHEMAS
from wedlm_core.engine.constrained.matching import Constraint, Proposals
from wedlm_core.grammar import Grammar, GrammarCompiler
from wedlm_core.model.sources import resolve
from wedlm_core.statistics import DraftSource
from wedlm_core.structured_outputs import StructuredOutputs
from wedlm_core.tokenizer import Tokenizer

WANTED = {name: StructuredOutputs(json=schema) for name, schema in SCHEMAS.items()} | dict(OTHERS)
VOCABULARY = 1024


@cache
def compiler() -> GrammarCompiler:
    return GrammarCompiler(tokenizer().to_json(), VOCABULARY, tokenizer().eos_token_ids)


@cache
def tokenizer() -> Tokenizer:
    return Tokenizer.load(resolve("tiny"))


def proposals(tokens: list[int], most: int | None = None) -> Proposals:
    return Proposals(tokens=tokens, most=len(tokens) if most is None else most, source=DraftSource.MASK)


@pytest.mark.parametrize("name", list(WANTED)[::3])
def test_drafts_are_allowed_one_after_the_other_and_forced_ones_are_alone(name: str) -> None:
    grammar, rng = compiler().compile(WANTED[name]), random.Random(name)
    ends = set(tokenizer().eos_token_ids)
    constraint, output = Constraint(grammar), list[int]()
    for _ in range(12):
        allowed = allowed_tokens(grammar, output)
        offered = [rng.choice(allowed) if rng.random() < 0.7 else rng.randrange(900) for _ in range(4)]
        drafts = constraint.draft(proposals(offered), most=6)
        assert len(drafts.tokens) == len(drafts.sources) <= 6
        walked = list(output)
        for token, source in zip(drafts.tokens, drafts.sources, strict=True):
            may = allowed_tokens(grammar, walked)
            assert token in may
            assert (source == DraftSource.GRAMMAR) == (len(may) == 1), "forced tokens are drafted as forced"
            assert token not in ends, "the row before an end chooses it"
            walked.append(token)
        place, may = len(drafts.tokens), set(allowed_tokens(grammar, walked))
        assert constraint.drafts.ends <= bool(ends & may)
        assert not may <= ends or constraint.drafts.ends or place == 6
        if not constraint.drafts.ends and place < 4:
            assert offered[place] not in allowed_tokens(grammar, walked), "only forbidden tokens end the walk"
        token = rng.choice(allowed_tokens(grammar, output))
        assert constraint.accept([token]) is None
        output.append(token)
        if token in ends:
            break


def test_no_more_proposals_than_asked_for_become_drafts() -> None:
    grammar = compiler().compile(StructuredOutputs(regex="[ab]{9}"))
    a = tokenizer().encode("a")[0]
    drafts = Constraint(grammar).draft(proposals([a] * 9, most=2), most=8)
    assert drafts.tokens == [a, a]
    assert Constraint(grammar).draft(proposals([a] * 9), most=3).tokens == [a] * 3


def test_drafts_end_where_nothing_else_may_follow_and_where_the_end_is_proposed() -> None:
    end = tokenizer().eos_token_ids[0]
    grammar = compiler().compile(StructuredOutputs(regex="ab?"))
    a, b = (tokenizer().encode(letter)[0] for letter in "ab")
    constraint = Constraint(grammar)
    assert constraint.accept([a]) is None
    assert constraint.draft(proposals([end]), most=4).tokens == []
    assert constraint.drafts.ends
    assert constraint.draft(proposals([b, b]), most=4).tokens == [b]
    assert constraint.drafts.ends
    assert constraint.draft(proposals([]), most=4).tokens == []
    assert not constraint.drafts.ends


@pytest.mark.parametrize(
    ("tokens", "words"), [("b", "no token that"), ("a<|im_end|>b", "no token that"), ("<|im_end|>", "complete")]
)
def test_what_the_grammar_refuses_is_told(tokens: str, words: str) -> None:
    constraint = Constraint(compiler().compile(StructuredOutputs(regex="[ac][ac]")))
    reason = constraint.accept(tokenizer().encode(tokens))
    assert reason is not None
    assert words in reason


def test_equal_constraints_are_compiled_once_and_do_not_share_their_place() -> None:
    first: Grammar = compiler().compile(StructuredOutputs(regex="[ab]c"))
    again = compiler().compile(StructuredOutputs(regex="[ab]c"))
    assert first is again
    one, other = Constraint(first), Constraint(first)
    assert one.accept(tokenizer().encode("a")) is None
    assert other.accept(tokenizer().encode("b")) is None
    assert one.accept(tokenizer().encode("c")) is None
