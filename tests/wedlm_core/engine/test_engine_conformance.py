"""The engine's ``reference`` strategy reproduces every conformance case, however it is configured."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest
import torch

from testing.engine.cases import (
    FOLDER,
    assert_steps_equal,
    case,
    case_ids,
    decoder,
    needs_cases,
    params_of,
    selection_cases,
)
from testing.engine.engines import requests_of, run
from wedlm_core.config import EngineConfig
from wedlm_core.decoding.selection import select_fills
from wedlm_core.engine import Engine
from wedlm_core.tokenizer import Tokenizer
from wedlm_core.types import FinishReason, Generation

pytestmark = needs_cases

REASONS = {"stop_token": FinishReason.STOP, "length": FinishReason.LENGTH}


def engine_for(model: str, **settings: Any) -> Engine:
    config = EngineConfig(**{"trace": True, **settings})
    return Engine(decoder(model), Tokenizer.load(FOLDER / "models" / model), config)


def check(found: Generation, expected: dict[str, Any], where: str) -> None:
    assert list(found.token_ids) == expected["output_token_ids"], where
    assert found.finish_reason == REASONS[expected["finish_reason"]], where
    totals, stats = expected["totals"], found.stats
    assert stats.generated_tokens == totals["n_gen"], where
    assert stats.decode_forwards == totals["decode_forwards"], where
    assert stats.rows_forwarded == totals["n_fwd"], where
    assert stats.max_window == totals["max_window"], where
    assert stats.prefix_cacheability == pytest.approx(totals["p_cache"]), where
    assert stats.tokens_per_forward == pytest.approx(totals["tokens_per_forward"]), where
    commits = [len(step["committed"]) for step in expected["steps"]]
    assert list(stats.commit_histogram) == [commits.count(n) for n in range(max(commits) + 1)], where
    assert stats.window_mean == pytest.approx(totals["n_fwd"] / totals["decode_forwards"]), where
    assert found.trace is not None
    assert_steps_equal(found.trace, expected["steps"], where)


def run_cases(names: list[str], **settings: Any) -> list[Generation]:
    """All sequences of these cases (of one model) in one batch, checked."""
    cases = [case(name) for name in names]
    sequences = [(c["id"], s, params_of(s["params"], c["window_size"])) for c in cases for s in c["sequences"]]
    engine = engine_for(cases[0]["model"], **settings)
    requests = requests_of([s["prompt_token_ids"] for _, s, _ in sequences], [p for _, _, p in sequences])
    generations = run(engine, requests)
    for i, (found, (name, expected, _)) in enumerate(zip(generations, sequences, strict=True)):
        check(found, expected, f"{name}, request {i}")
    return generations


def by_model_and_window() -> list[Any]:
    groups: dict[str, list[str]] = defaultdict(list)
    for name in case_ids():
        groups[f"{case(name)['model']}-w{case(name)['window_size']}"].append(name)
    return [pytest.param(names, id=key) for key, names in sorted(groups.items())]


@pytest.mark.sweep(4)  # all of them run at once in the next test
@pytest.mark.parametrize("name", case_ids())
def test_case(name: str) -> None:
    run_cases([name])


@pytest.mark.parametrize("names", by_model_and_window())
def test_all_at_once_in_chunks_of_7_over_pages_of_16(names: list[str]) -> None:
    run_cases(names, page_size=16, prefill_chunk=7, max_batch_rows=96)


PAGE = 8


def pool_for_one(name: str) -> int:
    """Pages that the largest sequence of a case needs alone."""
    window, sequences = case(name)["window_size"], case(name)["sequences"]
    most = max(len(s["prompt_token_ids"]) + s["params"]["max_tokens"] + 2 * window for s in sequences)
    return -(-most // PAGE) + 1


def must_preempt(name: str) -> bool:
    """Whether two copies fit when they start, but not when they end."""
    pool, window, sequence = pool_for_one(name) * PAGE, case(name)["window_size"], case(name)["sequences"][0]
    prompt, generated = len(sequence["prompt_token_ids"]), len(sequence["output_token_ids"])
    return 2 * (prompt + 2 * window + PAGE) <= pool and 2 * (prompt + generated - 2 * PAGE) > pool


@pytest.mark.sweep(5)
@pytest.mark.parametrize("name", case_ids())
def test_case_under_page_pressure_is_unchanged(name: str) -> None:
    """Four copies share a pool that holds one."""
    copies = 4 if len(case(name)["sequences"]) == 1 else 1
    generations = run_cases([name] * copies, page_size=PAGE, num_pages=pool_for_one(name), prefix_caching=False)
    if copies > 1 and must_preempt(name):
        assert sum(g.stats.preemptions for g in generations) > 0


def test_some_cases_must_preempt() -> None:
    assert sum(must_preempt(name) for name in case_ids() if len(case(name)["sequences"]) == 1) >= 3


@pytest.mark.parametrize("raw", selection_cases())
def test_vectorised_selection_reproduces_the_case(raw: dict[str, Any]) -> None:
    masks = raw["remaining_mask_indices"]
    width = masks[-1] + 3
    entropy, candidate = torch.full((1, width), -9.0), torch.zeros(1, width, dtype=torch.bool)
    entropy[0, masks] = torch.tensor(raw["entropy"])
    candidate[0, masks] = True
    threshold = torch.tensor([-torch.inf if raw["threshold"] is None else raw["threshold"]])
    filled = select_fills(entropy, candidate, threshold, torch.tensor([raw["penalty"]]))
    assert torch.nonzero(filled[0]).flatten().tolist() == [masks[i] for i in raw["fill"]]
