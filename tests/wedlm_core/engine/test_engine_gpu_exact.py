"""On a CUDA device: exact weights make every output independent of the batch; grammars and history change no token."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from testing.engine.engines import COST, requests_of, run
from testing.engine.schemas import OTHERS, SCHEMAS
from wedlm_core.config import EngineConfig
from wedlm_core.engine import Engine
from wedlm_core.model.decoder_gpu import DecoderGpu
from wedlm_core.model.quantised import quantise
from wedlm_core.model.sources import resolve
from wedlm_core.model.weights import load_model
from wedlm_core.structured_outputs import StructuredOutputs
from wedlm_core.tokenizer import Tokenizer
from wedlm_core.types import Generation, Request, SamplingParams

pytestmark = pytest.mark.gpu  # products of 8-bit integers, and masks of grammars, by kernels of a CUDA device


CONFIG = EngineConfig(
    max_num_seqs=32, max_window=8, max_model_len=512, num_pages=600, page_size=16, attention="triton",
    batch_invariant=True, step_cost=COST, graph_rows=128,
)  # fmt: skip
TEXTS = ("Count from 3 to 9.", "Count from 12 to 20.", "Copy: a b c d e", "What is 3 + 4?", "Bob is 31 years old.")


@cache
def engine_of(weights: str = "auto", dtype: torch.dtype = torch.float32, device: str = "cuda", **more: Any) -> Engine:
    folder = Path(resolve("tiny"))
    model = load_model(folder, device=device, dtype=dtype)
    config = EngineConfig(max_window=8, step_cost=COST) if device == "cpu" else replace(CONFIG, **more)
    return Engine(quantise(model, weights), Tokenizer.load(folder), replace(config, weight_dtype=weights))


def some_requests(strategy: str, temperature: float = 0.0, **more: Any) -> list[Request]:
    encode = Tokenizer.load(Path(resolve("tiny"))).encode
    prompts = [encode(text) + [7 * turn + 20] * turn for turn in range(4) for text in TEXTS]
    given = {"max_tokens": 40, "ignore_eos": "structured_outputs" not in more, "logprobs": True, **more}
    return requests_of(prompts, SamplingParams(strategy=strategy, temperature=temperature, **given))


def outcomes(done: list[Generation]) -> list[Any]:
    return [(one.request_id, one.token_ids, one.finish_reason, one.logprobs) for one in done]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("weights", ["int8", "int4"])
def test_exact_weights_give_the_same_bits_in_any_forward(weights: str, dtype: torch.dtype, temperature: float) -> None:
    """Verified as autoregressive, alone as in a batch, with windows of any width, tokens and log-probabilities."""
    engine = engine_of(weights, dtype)
    assert isinstance(engine._runner.model.packed_forward, DecoderGpu)
    expected = outcomes(run(engine, some_requests("autoregressive", temperature)))
    for window in (1, 8, "auto"):
        assert outcomes(run(engine, some_requests("verified", temperature, window_size=window))) == expected
    few = some_requests("verified", temperature, window_size=5)[:3]
    assert [outcomes(run(engine, [one]))[0] for one in few] == expected[:3]
    assert outcomes(run(engine, some_requests("verified", temperature), at_once=3)) == expected


def test_the_tiny_model_in_int8_gives_on_a_gpu_what_it_gives_on_a_cpu() -> None:
    asked = some_requests("verified", max_tokens=24, ignore_eos=False)
    found, expected = run(engine_of("int8"), asked), run(engine_of("int8", device="cpu"), asked)
    assert [one.token_ids for one in found] == [one.token_ids for one in expected]


def constrained(strategy: str, temperature: float) -> list[Request]:
    prompt = Tokenizer.load(Path(resolve("tiny"))).encode("Bob is 31 years old and lives in Rome. To JSON:")
    wanted = {name: StructuredOutputs(json=schema) for name, schema in SCHEMAS.items()} | dict(OTHERS)
    return [
        Request(
            request_id=name, prompt_token_ids=tuple(prompt[: 3 + number % 9]), seed=number,
            params=SamplingParams(max_tokens=40, temperature=temperature, strategy=strategy, structured_outputs=one),
        )
        for number, (name, one) in enumerate(wanted.items())
    ]  # fmt: skip


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("weights", ["auto", "int8"])
def test_with_grammars_verified_is_autoregressive(weights: str, temperature: float) -> None:
    """The masks travel as bits and are applied where tokens are chosen; sequences without a grammar do not wait."""
    engine = engine_of(weights)
    assert engine._loop is not None
    free = some_requests("verified", temperature)
    named = [replace(one, request_id=f"free {one.request_id}") for one in free]
    expected = {one.request_id: one for one in run(engine, constrained("autoregressive", temperature))}
    found = run(engine, [*constrained("verified", temperature), *named], at_once=30)
    accepted = 0
    for one in found[: len(expected)]:
        plain = expected[one.request_id]
        assert (one.token_ids, one.finish_reason) == (plain.token_ids, plain.finish_reason), one.request_id
        accepted += one.stats.grammar_drafts_accepted
    assert accepted > 100
    assert [one.token_ids for one in found[len(expected) :]] == [one.token_ids for one in run(engine, free)]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_with_grammars_a_gpu_gives_what_a_cpu_gives(temperature: float) -> None:
    expected = run(engine_of(device="cpu"), constrained("verified", temperature))
    found = run(engine_of(), constrained("verified", temperature))
    differing = [o.request_id for o, p in zip(found, expected, strict=True) if o.token_ids != p.token_ids]
    assert len(differing) <= (0 if temperature == 0 else 2), differing  # logarithms of the noise are the device's


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("grammar", [False, True])
def test_drafts_from_history_change_no_token(grammar: bool, temperature: float) -> None:
    more = {"structured_outputs": StructuredOutputs(regex=r"([a-z]+ ){6,12}[a-z]+")} if grammar else {}
    expected = outcomes(
        run(engine_of("int8", history_drafts=False), some_requests("autoregressive", temperature, **more))
    )
    engine = engine_of("int8", history_drafts=True)  # exact: a product of floats may differ by the rows beside it
    assert engine._drafting._history is not None
    drafts = 0
    for _ in range(3):
        found = run(engine, some_requests("verified", temperature, **more))
        assert outcomes(found) == expected
        drafts += sum(one.stats.history_drafts for one in found)
    assert drafts > 0 or grammar
