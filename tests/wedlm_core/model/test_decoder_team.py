"""All layers in one call: products on panels equal their oracles, and neither threads nor attendance change a bit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from testing.engine.engines import plain_decoder, requests_of, run
from testing.engine.hidden_rows import TARGET_PROMPTS
from testing.engine.numbers import marked
from wedlm_core.config import EngineConfig
from wedlm_core.engine import Engine
from wedlm_core.kernels.cpu.panel_products import numbers_here, numeric_kind
from wedlm_core.model import decoder_team, team
from wedlm_core.model.decoder_team import DecoderTeam, why_no_team
from wedlm_core.model.draw import Drawn
from wedlm_core.model.int8 import Int8Linear
from wedlm_core.model.panels import pack
from wedlm_core.model.team import Team
from wedlm_core.model.weights import load_model
from wedlm_core.tokenizer import Tokenizer
from wedlm_core.types import SamplingParams, StructuredOutputs

WHOLE = [one for one in numbers_here() if numeric_kind(one) in ("int8", "int16")]
FLOATS = [one for one in numbers_here() if one not in WHOLE]
TABLES = [
    ("float32", "int8"),
    ("bfloat16", "int8"),
    *((one, "auto") for one in dict.fromkeys(map(numeric_kind, FLOATS))),
]
PARAMS = SamplingParams(max_tokens=12, window_size=4, ignore_eos=True)


@pytest.fixture
def two_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    monkeypatch.setattr(team, "_TEAM_BYTES", 1)
    monkeypatch.setattr(team.Attendance, "members", lambda _, wanted: wanted)  # though other tests take the cores
    monkeypatch.setattr(team, "_LOOKS", 1 << 22)
    yield
    torch.set_num_threads(before)


def some_rows(rows: int, inputs: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, inputs, generator=generator) * torch.logspace(-2, 2, rows)[:, None]


SIZES = {"rows": st.integers(1, 80), "inputs": st.integers(1, 150), "outputs": st.integers(1, 200)}


@pytest.mark.parametrize("numbers", marked(WHOLE))
@given(**SIZES, seed=st.integers(0, 2**31), bias=st.booleans())
@settings(max_examples=40, deadline=None)
def test_whole_numbers_give_the_bits_of_the_layer(
    numbers: str, rows: int, inputs: int, outputs: int, seed: int, bias: bool
) -> None:
    torch.manual_seed(seed)
    layer = Int8Linear.of(nn.Linear(inputs, outputs, bias=bias).requires_grad_(False))
    layer.weight[0], layer.weight[-1] = 127, -127
    packed = pack(layer.weight, numbers, scale_O=layer.scale_O, bias_O=layer.bias)
    x_RI = some_rows(rows, inputs, seed)
    x_RI[0] = 1.0
    assert torch.equal(Team().product(packed, x_RI), layer(x_RI))


@pytest.mark.parametrize("numbers", marked(FLOATS))
@given(**SIZES, seed=st.integers(0, 2**31), bias=st.booleans())
@settings(max_examples=40, deadline=None)
def test_floats_are_near(numbers: str, rows: int, inputs: int, outputs: int, seed: int, bias: bool) -> None:
    dtype = getattr(torch, numeric_kind(numbers))
    weight_OI = some_rows(outputs, inputs, seed).to(dtype)
    bias_O = torch.arange(outputs).float() if bias else None
    packed, x_RI = pack(weight_OI, numbers, bias_O=bias_O), some_rows(rows, inputs, seed + 1)
    near_RI = x_RI.to(dtype).double()
    want = near_RI @ weight_OI.double().t() + (0 if bias_O is None else bias_O)
    size = near_RI.abs() @ weight_OI.double().abs().t() + 1000
    assert ((Team().product(packed, x_RI) - want).abs() <= 1e-6 * size).all()


@pytest.mark.parametrize("numbers", marked(numbers_here()))
def test_two_threads_give_the_bits_of_one(numbers: str, request: pytest.FixtureRequest) -> None:
    weight_OI, scale_O = some_rows(300, 70, 1), None
    if numbers in WHOLE:
        layer = Int8Linear.of(nn.Linear(70, 300))
        weight_OI, scale_O = layer.weight, layer.scale_O
    packed = pack(weight_OI.bfloat16() if numeric_kind(numbers) == "bfloat16" else weight_OI, numbers, scale_O=scale_O)
    found = {rows: Team().product(packed, some_rows(rows, 70, rows)) for rows in (1, 2, 13, 64, 75)}
    request.getfixturevalue("two_threads")
    for rows, one in found.items():
        for _ in range(20):
            own = Team()
            own.task["apart"] = 4  # of layers: a product alone is waited for
            assert torch.equal(own.product(packed, some_rows(rows, 70, rows)), one)


KINDS = [("auto", "auto"), ("int8", "auto"), ("int8", "int8"), ("auto", "bfloat16")]


@pytest.mark.sweep(4)
@pytest.mark.parametrize(("weights", "kv"), KINDS)
@pytest.mark.parametrize("threads", [1, 2])
def test_tokens_chosen_inside_of_a_forward_are_those_chosen_behind_it(
    qwen3_folder: Path, weights: str, kv: str, threads: int, request: pytest.FixtureRequest
) -> None:
    """Prefill beside decode rows, greedy and sampling rows, rows with a grammar and without, a row with a filter."""
    if threads == 2:
        request.getfixturevalue("two_threads")
    grammar = StructuredOutputs(regex="key: [a-z ]{2,30} end")
    kinds = [
        {"temperature": 0}, {"temperature": 1}, {"temperature": 0.7, "structured_outputs": grammar},
        {"temperature": 0, "structured_outputs": grammar, "window_size": 3}, {"strategy": "autoregressive"},
    ]  # fmt: skip
    verified = replace(PARAMS, strategy="verified", logprobs=True, ignore_eos=False)
    params = [replace(verified, **kind) for kind in kinds] * 2
    prompts = [TARGET_PROMPTS[n] for n in (65, 1, 16, 5, 16, 1, 65, 5, 5, 16)]

    def told(draws: bool, params: list[SamplingParams]) -> list[tuple[object, ...]]:
        config = EngineConfig(weight_dtype=weights, kv_cache_dtype=kv, page_size=16, prefill_chunk=9, max_num_seqs=4)
        engine = Engine(load_model(qwen3_folder, max_positions=700, weight_dtype=weights), tokenizer, config)
        runner, calls = engine._runner.model_runner, 0
        assert runner.draws
        runner.draws, draw = draws, runner.draw

        def counted(*arguments: Any) -> Drawn:
            nonlocal calls
            calls += 1
            return draw(*arguments)

        runner.draw = counted  # type: ignore[method-assign]
        done = run(engine, requests_of(prompts[: len(params)], params))
        assert (calls > 0) == draws
        return [(one.token_ids, one.logprobs, one.stats) for one in done]

    tokenizer = Tokenizer.load(qwen3_folder)
    for some in (params, [replace(params[0], top_p=0.5), *params]):
        assert told(True, some[:10]) == told(False, some[:10])


@pytest.mark.parametrize("weights", ["auto", "int8"])
@pytest.mark.parametrize("by_torch", [False, True])
def test_rows_that_are_read_are_the_same_whichever_others_are(
    qwen3_folder: Path, weights: str, by_torch: bool, two_threads: None
) -> None:
    model = load_model(qwen3_folder, max_positions=700, weight_dtype=weights)
    config = EngineConfig(weight_dtype=weights, page_size=16, prefill_chunk=9)
    with plain_decoder() if by_torch else nullcontext():
        engine = Engine(model, Tokenizer.load(qwen3_folder), config)
    runner, rng, shares = engine._runner.model_runner, np.random.default_rng(0), []
    runner.draws, run_model = False, runner.run

    def compared(*batch: Any) -> torch.Tensor:
        *inputs, read_R = batch
        every_TD = run_model(*inputs).clone()
        for share in (0.0, 0.3, 0.8, 1.0):
            some_R = torch.from_numpy(np.flatnonzero(rng.random(len(batch[0])) < share))
            assert torch.equal(run_model(*inputs, some_R), every_TD.index_select(0, some_R))
            shares.append(some_R.shape[0] / len(batch[0]))
        return run_model(*inputs, read_R)

    runner.run = compared  # type: ignore[method-assign]
    run(engine, requests_of([TARGET_PROMPTS[n] for n in (65, 1, 16, 5)], PARAMS))
    assert len(shares) > 20


@pytest.mark.parametrize(("dtype", "weights"), TABLES)
def test_it_is_the_same_whether_threads_take_rows_or_outputs(
    qwen3_folder: Path, dtype: str, weights: str, two_threads: None
) -> None:
    """All rows and some, of forwards with few rows and many, in layers that follow each other without a pause."""
    torch.set_num_threads(3)
    model = load_model(qwen3_folder, max_positions=700, weight_dtype=weights, dtype=getattr(torch, dtype))
    config = EngineConfig(weight_dtype=weights, page_size=16, prefill_chunk=40, prefix_caching=False)
    engine = Engine(model, Tokenizer.load(qwen3_folder), config)
    runner, rng, apart = engine._runner.model_runner, np.random.default_rng(0), []
    decoder = runner._team
    assert isinstance(decoder, DecoderTeam)
    runner.draws, run_model, task = False, runner.run, decoder._team.task

    def compared(*batch: Any) -> torch.Tensor:
        *inputs, _ = batch
        rows = len(batch[0])
        for read_R in (None, torch.from_numpy(np.flatnonzero(rng.random(rows) < 0.5))):
            task["apart"] = 0
            by_outputs = run_model(*inputs, read_R).clone()
            for least in (4, 5, 11):
                task["apart"] = least
                apart.append(least * 3 <= rows)
                assert torch.equal(run_model(*inputs, read_R), by_outputs)
        return run_model(*batch)

    runner.run = compared  # type: ignore[method-assign]
    run(engine, requests_of([TARGET_PROMPTS[n] for n in (65, 1, 16, 5)], PARAMS))
    assert set(apart) == {True, False}


@pytest.mark.parametrize("kind", [{"weight_dtype": "auto"}, {"weight_dtype": "int8", "kv_cache_dtype": "int8"}])
def test_tokens_are_the_same_whether_threads_take_rows_or_outputs(
    qwen3_folder: Path, kind: dict[str, Any], two_threads: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Head and choice as well, where all rows choose and where prefill goes along."""
    params = [replace(PARAMS, strategy="verified", temperature=heat, logprobs=True) for heat in (0, 0.7, 1)] * 3
    prompts = [TARGET_PROMPTS[n] for n in (65, 1, 16, 5, 16, 1, 65, 5, 5)]

    def told(least: int) -> list[tuple[object, ...]]:
        monkeypatch.setattr(DecoderTeam, "_apart", lambda self: least)
        model = load_model(qwen3_folder, max_positions=700, weight_dtype=kind["weight_dtype"])
        engine = Engine(model, Tokenizer.load(qwen3_folder), EngineConfig(**kind, page_size=16, prefill_chunk=9))
        return [(one.token_ids, one.logprobs) for one in run(engine, requests_of(prompts, params))]

    assert told(1) == told(3) == told(0)


def test_where_products_are_wrong_torch_computes(qwen3_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokenizer = load_model(qwen3_folder, max_positions=700), Tokenizer.load(qwen3_folder)
    assert why_no_team(model) is None
    assert isinstance(Engine(model, tokenizer)._runner.model_runner._team, DecoderTeam)
    monkeypatch.setattr(decoder_team, "_why_wrong", lambda numbers: f"{numbers} cuts off")
    assert why_no_team(model) == f"{FLOATS[0]} cuts off"
    assert Engine(model, tokenizer)._runner.model_runner._team is None


def test_a_saturating_product_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Team.product
    monkeypatch.setattr(Team, "product", lambda *arguments: right(*arguments).clamp(-2000, 2000))
    assert "wrong" in str(decoder_team._why_wrong.__wrapped__(WHOLE[0] if WHOLE else "float32"))
