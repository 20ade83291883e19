"""Log-probabilities of given tokens: transformers' own, bitwise the same in any company, shared prefixes once."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from testing.engine.engines import requests_of, run
from wedlm_core.config import EngineConfig
from wedlm_core.engine import Engine
from wedlm_core.engine.scoring import Scored
from wedlm_core.errors import CapacityError, RequestError
from wedlm_core.model.weights import load_model
from wedlm_core.tokenizer import Tokenizer
from wedlm_core.types import SamplingParams

Pair = tuple[tuple[int, ...], int]


def engine_of(folder: Path, damaged: int | None = None, **config: Any) -> Engine:
    model = load_model(folder)
    if damaged is not None:
        model.embed.weight[damaged] = math.nan
    return Engine(model, Tokenizer.load(folder), EngineConfig(**config))


def score(engine: Engine, pairs: list[Pair]) -> list[Scored]:
    """All of them, by key; the engine is empty before and afterwards."""
    scorer, found = engine.scorer(), dict[int, Scored]()
    for key, (tokens, scored) in enumerate(pairs):
        scorer.add(key, tokens, scored)
    while scorer.has_work():
        done = scorer.step()
        assert done is not None
        found |= {one.key: one for one in done}
    engine.pages.check_integrity()
    assert engine.pages.num_free == engine.pages.num_pages
    return [found[key] for key in range(len(pairs))]


def rows_of(engine: Engine) -> list[int]:
    """Grows by the rows of each forward that the engine's model runs."""
    rows: list[int] = []
    run = engine._runner.model_runner.run

    def counted(*batch: Any) -> torch.Tensor:
        rows.append(int(batch[0].shape[0]))
        return run(*batch)

    engine._runner.model_runner.run = counted  # type: ignore[method-assign]
    return rows


@st.composite
def pairs(draw: st.DrawFn) -> Pair:
    """A sequence that may begin like others do, and how many of its last tokens are scored."""
    common = list(range(3, 3 + draw(st.integers(0, 90))))
    own = draw(st.lists(st.integers(0, 335), min_size=2, max_size=40))
    tokens = tuple(common + own)
    return tokens, draw(st.integers(1, len(tokens) - 1))


CONFIGS = st.fixed_dictionaries(
    {
        "page_size": st.sampled_from([1, 4, 16, 64]),
        "max_batch_rows": st.sampled_from([17, 50, 2048]),
        "max_window": st.just(8),
        "max_num_seqs": st.sampled_from([1, 3, 64]),
        "prefix_caching": st.booleans(),
        "logits_chunk_rows": st.sampled_from([1, 5, 1024]),
    }
)


@pytest.mark.parametrize("model", ["qwen3_folder", "qwen25_folder"])
@given(target=pairs(), others=st.lists(pairs(), max_size=6), place=st.integers(0, 6), config=CONFIGS)
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_score_has_the_same_bits_in_any_company(
    request: pytest.FixtureRequest, model: str, target: Pair, others: list[Pair], place: int, config: dict[str, Any]
) -> None:
    folder = request.getfixturevalue(model)
    (alone,) = score(engine_of(folder), [target])
    place = min(place, len(others))
    together = score(engine_of(folder, **config), [*others[:place], target, *others[place:]])[place]
    assert np.array(together.logprobs).tobytes() == np.array(alone.logprobs).tobytes()
    assert together.greedy == alone.greedy
    assert len(alone.logprobs) == target[1]


def test_an_equal_context_is_computed_once(qwen3_folder: Path) -> None:
    context = tuple(i * 7 % 330 for i in range(150))
    several = [((*context, 5 + i, 9), 2) for i in range(20)]
    engine = engine_of(qwen3_folder, page_size=16, max_batch_rows=100, max_window=8)
    rows = rows_of(engine)
    shared = score(engine, several)
    assert [one.cached_tokens for one in shared] == [0] + [149] * 19, "the row of its last token gives the first score"
    assert sum(rows) == 151 + 19 * 2
    assert max(rows) <= 100

    plain = engine_of(qwen3_folder, page_size=16, max_batch_rows=100, max_window=8, prefix_caching=False)
    rows = rows_of(plain)
    assert [one.logprobs for one in score(plain, several)] == [one.logprobs for one in shared]
    assert sum(rows) == 20 * 151


def test_a_long_context_shared_by_others_is_not_computed_by_two_at_once(qwen3_folder: Path) -> None:
    """Its pages become known one forward after the other, and followers must not overtake them."""
    context = tuple(i * 11 % 330 for i in range(260))
    several = [((*context, 5, 5 + i, 9), 1 + i % 2) for i in range(4)]
    engine = engine_of(qwen3_folder, page_size=16, max_batch_rows=50, max_window=8)
    rows = rows_of(engine)
    assert [one.cached_tokens for one in score(engine, several)] == [0, 256, 256, 260]
    assert sum(rows) == 262 + 6 + 6 + 2


def test_sequences_that_differ_in_the_last_token_are_computed_once(qwen3_folder: Path) -> None:
    context = tuple(i * 7 % 330 for i in range(20))
    several = [((*context, 5, 5 + i), 2) for i in range(30)] + [((*context, 5, 7), 1), ((*context, 9), 1)]
    engine = engine_of(qwen3_folder, page_size=16, max_batch_rows=50, max_window=8, logits_chunk_rows=7)
    rows = rows_of(engine)
    found = score(engine, several)
    assert sum(rows) == 21 + 5 + 1
    for place in (0, 1, 29, 30, 31):
        (alone,) = score(engine_of(qwen3_folder), several[place : place + 1])
        assert (found[place].logprobs, found[place].greedy) == (alone.logprobs, alone.greedy)


def test_pages_of_a_context_are_given_back_where_others_need_them(qwen3_folder: Path) -> None:
    """The pool holds one sequence and a page: pages of a scored context are in the way of its followers."""
    context = tuple(i * 7 % 330 for i in range(27))
    several = [((*context, 5 + i, 9), 2) for i in range(3)]
    engine = engine_of(qwen3_folder, page_size=8, num_pages=4, max_num_seqs=2, max_window=1)
    assert [one.logprobs for one in score(engine, several)] == [
        one.logprobs for own in several for one in score(engine_of(qwen3_folder), [own])
    ]


def test_a_dropped_sequence_takes_no_other_with_it(qwen3_folder: Path) -> None:
    context = tuple(i * 7 % 330 for i in range(40))
    several = [((*context, 5 + i // 2, 5 + i), 2) for i in range(6)]
    expected = score(engine_of(qwen3_folder), several)
    engine = engine_of(qwen3_folder, page_size=8, max_batch_rows=10, max_window=2)
    scorer, found = engine.scorer(), {}
    for key, (tokens, scored) in enumerate(several):
        scorer.add(key, tokens, scored)
    assert scorer.step() == []  # a part of the first context
    for key in (0, 2, 3, 7):
        scorer.drop(key)
    while scorer.has_work():
        found |= {one.key: one.logprobs for one in scorer.step() or ()}
    assert found == {key: expected[key].logprobs for key in (1, 4, 5)}
    engine.pages.check_integrity()
    assert engine.pages.num_free == engine.pages.num_pages


def test_generation_under_way_keeps_its_pages_and_scoring_waits(qwen3_folder: Path) -> None:
    def fresh() -> Engine:
        return engine_of(qwen3_folder, page_size=8, num_pages=16, max_num_seqs=4, max_window=4)

    params = SamplingParams(max_tokens=12, window_size=4, ignore_eos=True)
    prompts = requests_of([[5, 6, 7] * 12, [9, 8, 7] * 12], params)
    expected = [generation.token_ids for generation in run(fresh(), prompts)]
    engine = fresh()
    for one in prompts:
        engine.add(one)
    done = {g.request_id: g for g in engine.step()}
    scorer, waited, scored = engine.scorer(), 0, []
    scorer.add(0, tuple(range(10, 10 + 100)), 3)
    while scorer.has_work():
        found = scorer.step()
        if found is None:
            waited += 1
            done |= {g.request_id: g for g in engine.step()}
        scored += found or []
    while engine.has_work():
        done |= {g.request_id: g for g in engine.step()}
    assert waited > 0
    assert [done[one.request_id].token_ids for one in prompts] == expected
    assert scored == score(fresh(), [(tuple(range(10, 110)), 3)])
    assert engine.pages.num_free == engine.pages.num_pages


def test_a_damaged_row_is_not_a_number_and_spoils_no_other(qwen3_folder: Path) -> None:
    sound = [((5, 6, 7) * 9, 4), ((8, 9) * 12, 6)]
    expected = score(engine_of(qwen3_folder), sound)
    engine = engine_of(qwen3_folder, damaged=50, page_size=8, num_pages=12, max_num_seqs=2)
    first, bad, second = score(engine, [sound[0], ((5, 6, 7) * 8 + (50, 1, 2), 2), sound[1]])
    assert all(map(math.isnan, bad.logprobs))
    assert [one.logprobs for one in (first, second)] == [one.logprobs for one in expected]
    assert [one.logprobs for one in score(engine, sound)] == [one.logprobs for one in expected]


def test_what_cannot_be_scored_is_refused_by_name(qwen3_folder: Path) -> None:
    scorer = engine_of(qwen3_folder, page_size=16, num_pages=12, max_model_len=400, max_num_seqs=2).scorer()
    for tokens, scored, words in (
        ((5,), 1, "at least one token"),
        ((5, 6), 0, "at least one token"),
        (tuple(range(300)) + tuple(range(102)), 1, "max_model_len"),
        ((5, 999), 1, r"ids are in \[0, 336\)"),
    ):
        with pytest.raises(RequestError, match=words):
            scorer.add(0, tokens, scored)
    with pytest.raises(CapacityError, match="num_pages"):
        scorer.add(0, tuple(range(300)), 1)
    assert not scorer.has_work()
