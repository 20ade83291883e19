"""What a forward computes for a row is bitwise independent of everything else in it (CPU, float32).

A target request runs alone in a default engine; then among other requests, in other configurations. Every
hidden state of its rows, and so every logit, entropy and log-probability, must have the same bits.
"""

from __future__ import annotations

from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.engines import requests_of, run
from wedlm_core.config import EngineConfig
from wedlm_core.engine import Engine
from wedlm_core.model.decoder import Decoder
from wedlm_core.model.weights import load_model
from wedlm_core.tokenizer import Tokenizer
from wedlm_core.types import Generation, Request, SamplingParams

STRATEGIES = ("verified", "reference", "streaming", "autoregressive", "blockwise")


class Rows:
    """Hidden states of each request's rows: prefill rows by position, decode rows by forward."""

    def __init__(self, engine: Engine) -> None:
        self.prefill: dict[tuple[str, int], torch.Tensor] = {}
        self.decode: dict[tuple[str, int], torch.Tensor] = {}
        self.widest = 0
        forwards: Counter[str] = Counter()
        hidden: list[torch.Tensor] = []
        runner, forward = engine._runner, engine._runner.forward
        run_model = runner.run_model

        def kept(*batch: Any) -> torch.Tensor:
            hidden.append(run_model(*batch))
            return hidden[-1]

        runner.run_model = kept  # type: ignore[method-assign]

        def recorded(plan: Any, groups: Any) -> Any:
            hidden.clear()
            result = forward(plan, groups)
            start = 0
            for i, sequence in enumerate(plan.sequences):
                name, before = sequence.request.request_id, int(plan.prefill_S[i])
                count = before + int(plan.decode_S[i])
                rows = hidden[0][start : start + count]
                start += count
                for r in range(before):
                    self.prefill[name, int(plan.cached_S[i]) + r] = rows[r].clone()
                if count > before:
                    self.decode[name, forwards[name]] = rows[before:].clone()
                    forwards[name] += 1
            self.widest = max(self.widest, start)
            return result

        runner.forward = recorded  # type: ignore[method-assign]


@cache
def model_of(folder: Path) -> tuple[Decoder, Tokenizer]:
    return load_model(folder, max_positions=700), Tokenizer.load(folder)


def observe(folder: Path, requests: list[Request], config: EngineConfig) -> tuple[list[Generation], Rows]:
    engine = Engine(*model_of(folder), config)
    rows = Rows(engine)
    return run(engine, requests), rows


TARGET_PROMPTS = {length: [(7 * i * i + 3 * length + i) % 330 for i in range(length)] for length in (1, 5, 16, 65)}


@st.composite
def params(draw: st.DrawFn) -> SamplingParams:
    return SamplingParams(
        max_tokens=draw(st.integers(1, 12)),
        temperature=draw(st.sampled_from([0.0, 0.8])),
        top_k=draw(st.sampled_from([0, 20])),
        top_p=draw(st.sampled_from([1.0, 0.9])),
        ignore_eos=True,
        strategy=draw(st.sampled_from(STRATEGIES)),
        window_size=draw(st.sampled_from([1, 3, 8])),
        entropy_threshold=draw(st.sampled_from([None, 1.5, 3.0])),
    )


OTHERS = st.lists(st.tuples(st.lists(st.integers(0, 335), min_size=1, max_size=90), params()), max_size=6)
CONFIGS = st.builds(
    EngineConfig,
    page_size=st.sampled_from([1, 4, 16, 64, 128]),
    prefill_chunk=st.sampled_from([None, 1, 3, 7]),
    max_batch_rows=st.sampled_from([17, 50, 2048]),
    max_window=st.just(8),
    prefix_caching=st.booleans(),
    logits_chunk_rows=st.sampled_from([1, 5, 1024]),
    trace=st.just(True),
)


@pytest.mark.parametrize("model", ["qwen3_folder", "qwen25_folder"])
@given(
    length=st.sampled_from(sorted(TARGET_PROMPTS)), target=params(), others=OTHERS, config=CONFIGS,
    place=st.integers(0, 6), seed=st.integers(0, 3),
)  # fmt: skip
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_row_has_the_same_bits_in_any_company(
    request: pytest.FixtureRequest, model: str, length: int, target: SamplingParams,
    others: list[tuple[list[int], SamplingParams]], config: EngineConfig, place: int, seed: int,
) -> None:  # fmt: skip
    folder = request.getfixturevalue(model)
    place = min(place, len(others))
    crowd = [*others[:place], (TARGET_PROMPTS[length], target), *others[place:]]
    requests = requests_of([p for p, _ in crowd], [q for _, q in crowd], [seed] * len(crowd))
    (alone,), solo = observe(folder, [requests[place]], EngineConfig(trace=True))
    together, rows = observe(folder, requests, config)
    found, name = together[place], str(place)

    assert found.token_ids == alone.token_ids
    assert found.trace == alone.trace, "entropies are compared bit for bit"
    assert found.stats.mean_logprob == alone.stats.mean_logprob
    mine = {key: value for key, value in rows.decode.items() if key[0] == name}
    assert mine.keys() == solo.decode.keys()
    for key, value in mine.items():
        assert torch.equal(value, solo.decode[key]), f"decode forward {key[1]}"
    for key, value in rows.prefill.items():
        if key[0] == name:
            assert torch.equal(value, solo.prefill[key]), f"prefill row {key[1]}"


def test_the_property_can_fail(qwen3_folder: Path) -> None:
    """Plain SDPA is not invariant: the same comparison sees it."""
    prompts = [TARGET_PROMPTS[65], *([(i * j) % 300 for i in range(1, 90 + 9 * j)] for j in range(1, 9))]
    requests = requests_of(prompts, SamplingParams(max_tokens=16, strategy="autoregressive", ignore_eos=True))
    config = EngineConfig(attention="sdpa", batch_invariant=False)
    _, solo = observe(qwen3_folder, requests[:1], config)
    _, rows = observe(qwen3_folder, requests, config)
    assert any(not torch.equal(value, rows.decode[key]) for key, value in solo.decode.items())
