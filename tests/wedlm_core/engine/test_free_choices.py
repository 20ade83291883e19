"""Free choices that are held against a grammar become those that bits would have allowed, draft by draft."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from functools import cache

import numpy as np
import pytest
import torch

from testing.engine.grammar_oracle import allowed_tokens
from testing.engine.schemas import OTHERS, SCHEMAS
from wedlm_core.decoding.allowed_tokens import AllowedTokens, restrict_logits, words_of_vocabulary
from wedlm_core.engine.free_choices import FreeChoices, FreeSequence
from wedlm_core.engine.mask_lines import executor_of, mask_lines
from wedlm_core.fallback import Optimisation
from wedlm_core.grammar import UNKNOWN, Constraint, Grammar, GrammarCompiler, Proposals
from wedlm_core.model.sources import resolve
from wedlm_core.statistics import DraftSource
from wedlm_core.structured_outputs import StructuredOutputs
from wedlm_core.tokenizer import Tokenizer

VOCABULARY = 1024
WANTED = {name: StructuredOutputs(json=schema) for name, schema in SCHEMAS.items()} | dict(OTHERS)
ENDS = (2, 0)


@cache
def compiler() -> GrammarCompiler:
    return GrammarCompiler(Tokenizer.load(resolve("tiny")).to_json(), VOCABULARY, ENDS, origins=2)


class Rows:
    """The rows of one sequence: scores of all tokens, and what bits of every state would let them choose."""

    def __init__(self, grammar: Grammar, slot: int, rng: random.Random) -> None:
        self.slot, self.position = slot, 10 + rng.randrange(50)
        self.constraint: Constraint = grammar.constraint()
        output = list[int]()
        for _ in range(rng.randrange(5)):
            token = rng.choice(allowed_tokens(grammar, output))
            if token in ENDS:
                break
            output.append(token)
        assert self.constraint.accept(output) is None
        likely = list(output)
        while len(likely) < len(output) + 6 and not set(likely) & set(ENDS):
            likely.append(rng.choice(allowed_tokens(grammar, likely)))
        offered = likely[len(output) :]
        self.drafts = self.constraint.draft(
            Proposals(tokens=offered, most=len(offered), source=DraftSource.MASK), most=rng.choice((0, 3, 9))
        )
        tokens, states = self.drafts.tokens, self.drafts.states
        noise = np.random.default_rng(rng.randrange(1 << 30))
        self.score_RV = noise.random((len(states), VOCABULARY))
        for place, token in enumerate(tokens):
            if rng.random() < 0.7:
                self.score_RV[place, token] = rng.choice((0.9999, 2.0))  # likely, or surely the choice
        self.free, self.restricted = list[int](), list[int]()
        for place, state in enumerate(states):
            ended = bool(set(tokens[:place]) & set(ENDS))
            may = range(VOCABULARY) if ended else allowed_tokens(grammar, [*output, *tokens[:place]])
            if place >= len(tokens) or rng.random() < 0.5:
                self.score_RV[place, rng.choice(list(may))] = 0.998  # one of the likeliest, but seldom the choice
            scores = {token: self.score_RV[place, token] for token in may}
            self.restricted.append(max(scores, key=scores.__getitem__))
            known = state != UNKNOWN  # such rows have bits at once
            self.free.append(self.restricted[-1] if known else int(self.score_RV[place].argmax()))

    @property
    def counting(self) -> int:
        """Rows up to the first that does not choose its draft."""
        drafts = self.drafts.tokens
        for place, (token, draft) in enumerate(zip(self.restricted, drafts, strict=False)):
            if token != draft:
                return place + 1
        return len(drafts) + 1


def choices_of(judged: Sequence[Rows], *, threads: int = 1, ranks: bool = False) -> FreeChoices:
    def closed() -> AllowedTokens:
        for one in judged:
            one.constraint.renew(fresh=True)
        places = [(one.slot, one.constraint, one.position) for one in judged]
        lines = mask_lines(places, 1 + max(one.slot for one in judged), VOCABULARY, ENDS, ())
        lines.fill(None)
        first_S, count_S, position_S = torch.from_numpy(lines.facts())
        return AllowedTokens(
            bits_UW=torch.from_numpy(lines.bits_UW), line_N=torch.from_numpy(lines.line_N),
            first_S=first_S, count_S=count_S, position_S=position_S,
        )  # fmt: skip

    return FreeChoices(
        {one.slot: FreeSequence(one.constraint, one.position) for one in judged},
        np.empty((len(judged), words_of_vocabulary(VOCABULARY)), dtype=np.int32),
        executor_of(threads, background=False),
        judging=Optimisation("choices", "bits"),
        closed=closed,
        ranks=ranks,
    )


@pytest.mark.parametrize("at", [0, 1, 2, 4, 8])
@pytest.mark.parametrize("chunk", [1, 5, 10_000])
def test_where_the_check_raises_all_choices_are_those_that_bits_allow(
    at: int, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(at)
    sequences = [
        Rows(compiler().compile(WANTED[name]), i, rng) for i, name in enumerate(rng.sample(sorted(WANTED), 12))
    ]
    refusals, allows, calls = choices_of(sequences), Constraint.allows, itertools.count()

    def broken(self: Constraint, place: int, token: int) -> bool:
        answer = allows(self, place, token)  # the matcher was moved
        if next(calls) >= at:
            raise ValueError("broken")
        return answer

    monkeypatch.setattr(Constraint, "allows", broken)
    slot_R = torch.tensor([one.slot for one in sequences for _ in one.free])
    position_R = torch.tensor([one.position + place for one in sequences for place in range(len(one.free))])
    token_R = torch.tensor([token for one in sequences for token in one.free])
    score_RV = torch.from_numpy(np.concatenate([one.score_RV for one in sequences]))
    for begin in range(0, len(slot_R), chunk):
        part = slice(begin, begin + chunk)
        while (refused := refusals(slot_R[part], position_R[part], token_R[part])) is not None:
            token_R[begin + refused.row_N] = restrict_logits(score_RV[begin + refused.row_N], refused.allowed).argmax(
                dim=1
            )
    chosen = iter(token_R.tolist())
    for one in sequences:
        tokens = [next(chosen) for _ in one.free]
        assert tokens[: one.counting] == one.restricted[: one.counting]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("chunk", [1, 5, 10_000])
@pytest.mark.parametrize(("threads", "ranks"), [(1, False), (2, False), (1, True), (2, True)])
def test_choices_are_made_as_if_bits_had_been_there(seed: int, chunk: int, threads: int, ranks: bool) -> None:
    rng = random.Random(seed)
    names = rng.sample(sorted(WANTED), 12)
    sequences = [Rows(compiler().compile(WANTED[name]), slot, rng) for slot, name in enumerate(names)]
    judged = sequences[::2]
    refusals = choices_of(judged, threads=threads, ranks=ranks)
    # Behind each sequence's rows stands one like a mask's, chosen at the place that the last draft decides.
    slot_R = torch.tensor([one.slot for one in sequences for _ in range(len(one.free) + 1)])
    position_R = torch.tensor([
        one.position + place for one in sequences for place in [*range(len(one.free)), len(one.free) - 1]
    ])  # fmt: skip
    token_R = torch.tensor([token for one in sequences for token in [*one.free, 7]])
    score_RV = np.concatenate([np.vstack([one.score_RV, one.score_RV[-1:]]) for one in sequences])
    again, settled = 0, 0
    for begin in range(0, len(slot_R), chunk):
        part, own_RV = slice(begin, begin + chunk), score_RV[begin : begin + chunk]

        def ranking(row_N: torch.Tensor, most: int, own_RV: np.ndarray = own_RV) -> torch.Tensor:
            return torch.from_numpy(np.argsort(-own_RV[row_N.numpy()], axis=1, kind="stable")[:, :most])

        while (refused := refusals(slot_R[part], position_R[part], token_R[part], ranking)) is not None:
            may_NV = restrict_logits(torch.from_numpy(own_RV)[refused.row_N], refused.allowed)
            for row, score_V in zip(refused.row_N.tolist(), may_NV.numpy(), strict=True):
                assert token_R[begin + row] != score_V.argmax(), "only what is refused is chosen again"
                token_R[begin + row] = int(score_V.argmax())
                again += 1
            settled += int((refused.allowed.line_R < 0).sum())
    assert again
    assert bool(settled) == ranks, "a next best token is allowed in some rows"
    chosen = iter(token_R.tolist())
    for one in sequences:
        tokens = [next(chosen) for _ in range(len(one.free) + 1)][:-1]
        if one in judged:
            assert tokens[: one.counting] == one.restricted[: one.counting]
            assert tokens[one.counting :] == one.free[one.counting :], "behind a wrong draft nothing is committed"
        else:
            assert tokens == one.free


@pytest.mark.parametrize("name", list(WANTED)[::3])
def test_a_token_is_allowed_where_its_bit_is_set(name: str) -> None:
    rng = random.Random(name)
    grammar = compiler().compile(WANTED[name])
    for _ in range(4):
        one = Rows(grammar, 0, rng)
        committed = list(one.constraint._taken)
        for place, state in enumerate(one.drafts.states):
            if state == UNKNOWN:
                may = allowed_tokens(grammar, [*committed, *one.drafts.tokens[:place]])
                assert [t for t in range(VOCABULARY) if one.constraint.allows(place, t)] == sorted(may)
