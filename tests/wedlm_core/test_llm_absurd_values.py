"""Absurd parameters, prompts and engine configurations: each is refused quickly in one clear line."""

from __future__ import annotations

import copy
import math
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from testing.engine.absurd import ENDLESS, HALF, HUGE, SAMPLING, name_of
from testing.engine.refusals import assert_refused
from wedlm_core import LLM, ConfigError, EngineConfig, RequestError, SamplingParams
from wedlm_core.config.engine_config import StreamingSwitches
from wedlm_core.config.step_cost import StepCost
from wedlm_core.errors import explain
from wedlm_core.types import Request


@pytest.fixture(scope="module")
def llm(agreeing_folder: Path) -> LLM:
    return LLM(str(agreeing_folder), device="cpu", config=EngineConfig(max_window=8))


@pytest.mark.parametrize("case", SAMPLING, ids=name_of)
def test_an_absurd_sampling_parameter_is_refused(case: tuple[str, Any]) -> None:
    name, value = case
    assert_refused(lambda: SamplingParams(**{name: value}), f"^{name}=", (RequestError,))


@pytest.mark.parametrize(
    "fields",
    [
        {"top_k": 2**31 - 1, "temperature": 1e-6, "top_p": 1e-9, "seed": 2**63 - 1},
        {"temperature": 1e6, "max_tokens": 2**31 - 1, "entropy_threshold": 1e6, "position_penalty": 1e6},
        {"min_p": 1, "repetition_penalty": 1e3, "presence_penalty": -2, "frequency_penalty": 2, "logprobs": 100},
        {"min_tokens": 256, "repetition_penalty": 1e-3, "logit_bias": ((0, -100.0), (2**31 - 1, 100.0))},
        {"temperature": 0, "entropy_threshold": 0, "position_penalty": 0, "top_p": 1, "n": 10_000},
    ],
)
def test_the_edges_of_what_is_allowed_are_allowed(fields: dict[str, Any]) -> None:
    params = SamplingParams(**fields)
    assert {name: getattr(params, name) for name in fields} == fields


@pytest.mark.parametrize("strategy", ["verified", "reference", "streaming", "blockwise", "autoregressive"])
def test_the_edges_of_what_is_allowed_generate(llm: LLM, strategy: str) -> None:
    """No number in range makes a probability infinite or none: the coldest is greedy, the hottest has any tokens."""
    plain = SamplingParams(max_tokens=9, ignore_eos=True, strategy=strategy, window_size=4, seed=5)
    edges = [
        {}, {"temperature": 1e-6}, {"temperature": 1e6}, {"temperature": 1.0, "top_p": 1e-9},
        {"temperature": 1.0, "top_k": 1}, {"temperature": 1.0, "top_k": 2**31 - 1, "top_p": 1 - 1e-12},
        {"temperature": 1.0}, {"entropy_threshold": 1e6, "position_penalty": 1e6}, {"entropy_threshold": 0},
    ]  # fmt: skip
    found = llm.generate([[7, 8, 9]] * len(edges), [replace(plain, **edge) for edge in edges])
    greedy, cold, hot, narrow, single, wide, sampled, *_ = (g.token_ids for g in found)
    assert [len(g.token_ids) for g in found] == [9] * len(edges)
    assert all(0 <= t < 336 for t in hot)
    if strategy == "streaming":  # it fills certain places by the distribution that it samples from
        assert greedy[0] == cold[0] == narrow[0] == single[0]
    else:
        assert greedy == cold == narrow == single
        assert wide == sampled
    assert all(math.isfinite(g.stats.mean_entropy or 0.0) for g in found)


ENGINE: list[tuple[str, Any]] = [
    *((name, v) for name in ("max_num_seqs", "max_batch_rows", "max_window", "page_size", "logits_chunk_rows",
                             "logits_chunk_bytes", "graph_rows", "graph_bytes")
      for v in (2**70, 0, -1, True, 64.0, math.nan, "64", None)),
    *((name, v) for name in ("prefill_chunk", "max_model_len", "num_pages", "kv_cache_bytes")
      for v in (2**70, 0, True, 1.5, math.nan, "1")),
    *(("max_num_seqs", v) for v in (10**9,)), *(("max_window", v) for v in (10**6,)),
    ("page_size", 24), ("max_batch_rows", 10), ("batch_invariant", "maybe"),
    *(("max_model_len", v) for v in (10**12,)), *(("logits_chunk_rows", v) for v in (10**12,)),
    *(("gpu_memory_utilization", v) for v in (HUGE, math.nan, 0, 1.1, True, "0.9")),
    *(("graph_seconds", v) for v in (HUGE, math.nan, math.inf, -1, True, "30")),
    *(("seed", v) for v in (math.nan, 1.5, True, -1, 2**70, "0")),
    *((name, v) for name in ("batch_invariant", "overlap", "cuda_graphs") for v in (1, 0, 1.0, "true", None)),
    *((name, v) for name in ("prefix_caching", "trace") for v in (1, "false", None)),
    *((name, v) for name in ("kv_cache_dtype", "weight_dtype") for v in ("float7", 8, None, ["auto"])),
    *(("attention", v) for v in (5, None, "", ["auto"])),
    *(("streaming", v) for v in (5, None, {"hole_price": math.nan}, {"hole_price": HUGE}, {"prices": 1})),
    *(("step_cost", v) for v in (5, {"rows": [1]}, StepCost(rows=(1,), seconds=(math.nan,)),
                                 StepCost(rows=(), seconds=()), StepCost(rows=(1, 2), seconds=(1.0,)),
                                 StepCost(rows=(2, 1), seconds=(1.0, 2.0)), StepCost(rows=(1, 2), seconds=(2.0, 1.0)),
                                 StepCost(rows=(1,), seconds=(0.0,)), StepCost(rows=(1,), seconds=(1.0,), quantum=0),
                                 StepCost(rows=(1,), seconds=(1.0,), per_kv=-1.0),
                                 StepCost(rows=(1,), seconds=(1.0,), per_sequence=math.inf))),
]  # fmt: skip


@pytest.mark.parametrize("case", ENGINE, ids=name_of)
def test_an_absurd_engine_configuration_is_refused(case: tuple[str, Any]) -> None:
    name, value = case
    assert_refused(lambda: EngineConfig(**{name: value}), f"^{name}", (ConfigError,))


@pytest.mark.parametrize("price", [HUGE, math.nan, math.inf, 1e300, True, "0.1", None])
def test_an_absurd_price_of_holes_is_refused(price: Any) -> None:
    assert_refused(lambda: StreamingSwitches(hole_price=price), r"^streaming\.hole_price=", (ConfigError,))


FEW = SamplingParams(max_tokens=4, window_size=4)
PROMPTS: list[Any] = [
    HALF, [2**70], [336], [-1], [-(2**70)], [True], [1.5], [math.nan], [None], [[5]], (), [], b"bytes", 5, None,
    {"text": "x"}, {"prompt": HALF}, {"prompt_token_ids": "x"}, {"prompt": "x", "multi_modal_data": 1}, {5: 1}, "",
    list(range(336)) * 2000, "x" * 10**6, np.array([1.5]), object(),
]  # fmt: skip


@pytest.mark.parametrize("prompt", PROMPTS, ids=lambda value: name_of(("prompt", value)))
def test_an_absurd_prompt_is_refused_and_the_engine_goes_on(llm: LLM, prompt: Any) -> None:
    llm.generate([[5, 6]], FEW)  # compiled kernels are ready
    assert_refused(lambda: llm.generate([[7, 8], prompt], [FEW, FEW]), "^prompt", (RequestError,))
    assert not llm.engine.has_work()
    assert llm.engine.pages.num_free == llm.engine.pages.num_pages
    assert llm.generate([[7, 8]], FEW)[0].token_ids


@pytest.mark.parametrize("prompts", [None, 5, b"bytes", {"text": "x"}, {"a"}], ids=repr)
def test_what_is_no_list_of_prompts_is_refused(llm: LLM, prompts: Any) -> None:
    assert_refused(lambda: llm.generate(prompts, FEW), "^prompts?=", (RequestError,))


@pytest.mark.parametrize("params", [{"max_tokens": 4}, 5, "greedy", [{"max_tokens": 4}], [None], []], ids=repr)
def test_what_are_no_parameters_is_refused(llm: LLM, params: Any) -> None:
    assert_refused(lambda: llm.generate([[5]], params), "^params", (RequestError,))


ROLE = {"role": "user", "content": "hi"}
CHATS: list[Any] = [
    [{"role": "user", "content": HALF}], [{"role": HALF, "content": "x"}], [{"role": "user", "content": 5}],
    [{"role": "user"}], [{"content": "x"}], ["x"], [5], [None], "hello", [[ROLE], "hello"], None, 5, ROLE, [[ROLE], 5],
    [[]], [ROLE, [ROLE]],
]  # fmt: skip


@pytest.mark.parametrize("conversations", CHATS, ids=lambda value: name_of(("chat", value)))
def test_an_absurd_conversation_is_refused(llm: LLM, conversations: Any) -> None:
    assert_refused(lambda: llm.chat(conversations, FEW), "^(messages|conversations)", (RequestError,))
    assert not llm.engine.has_work()


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"prompt_token_ids": (2**70,)}, r"^prompt_token_ids\[0\]=1180591620717411303424: ids are in"),
        ({"prompt_token_ids": (1.5,)}, r"^prompt_token_ids\[0\]=1\.5"),
        ({"prompt_token_ids": (True,)}, r"^prompt_token_ids\[0\]=True"),
        ({"prompt_token_ids": (5, "x")}, r"^prompt_token_ids\[1\]='x'"),
        ({"prompt_token_ids": (math.nan,)}, r"^prompt_token_ids\[0\]=nan"),
        ({"prompt_token_ids": ()}, "^prompt="),
        ({"seed": 2**63}, "^seed=9223372036854775808"),
        ({"seed": -1}, "^seed=-1"),
        ({"seed": 1.5}, r"^seed=1\.5"),
        ({"seed": True}, "^seed=True"),
        ({"params": SamplingParams(stop_token_ids=[5, 336])}, r"^stop_token_ids=336: ids are in \[0, 336\)"),
        ({"params": SamplingParams(window_size=9)}, r"^window_size=9: at most EngineConfig\.max_window = 8"),
        ({"prompt_token_ids": (5,) * 510}, r"^prompt \+ max_tokens=.510 \+ 4.*max_model_len = 512"),
        ({"params": SamplingParams(max_tokens=2**31 - 1)}, r"^prompt \+ max_tokens="),
    ],
)
def test_an_absurd_request_is_refused_before_the_engine_takes_it(llm: LLM, fields: Any, words: str) -> None:
    request = Request(**{"request_id": "a", "prompt_token_ids": (5,), "params": FEW, **fields})
    assert_refused(lambda: llm.engine.add(request), words, (RequestError,))
    assert not llm.engine.has_work()


@pytest.mark.parametrize("device", [None, 5, "", "cuda:99", "tpu", HALF, ["cpu"]], ids=repr)
def test_an_absurd_device_is_refused(agreeing_folder: Path, device: Any) -> None:
    assert_refused(lambda: LLM(str(agreeing_folder), device=device), "^device=", (ConfigError,))


@pytest.mark.parametrize("dtype", [None, 5, "float7", ["float32"], HALF], ids=repr)
def test_an_absurd_dtype_is_refused(agreeing_folder: Path, dtype: Any) -> None:
    assert_refused(lambda: LLM(str(agreeing_folder), device="cpu", dtype=dtype), "^dtype=", (ConfigError,))


@pytest.mark.parametrize("model", [None, 5, "", "\0", HALF, "x" * 5000, b"tiny", ["tiny"], {"name": "tiny"}], ids=ascii)
def test_an_absurd_model_is_refused(model: Any) -> None:
    assert_refused(lambda: LLM(model, device="cpu"), "^model=", (ConfigError,))


@pytest.mark.parametrize(
    ("name", "value"),
    [("revision", 5), ("revision", HALF), ("revision", ""), ("storage_options", 5), ("storage_options", "key=secret"),
     ("config", {"max_num_seqs": 3}), ("config", 5), ("config", SamplingParams())],
)  # fmt: skip
def test_absurd_ways_to_load_a_model_are_refused(name: str, value: Any) -> None:
    assert "secret" not in assert_refused(lambda: LLM("tiny", **{name: value}), f"^{name}=", (ConfigError,))


@pytest.mark.parametrize("prompt", [None, 5, HALF, ["a", "b"], b"x", [2**70]], ids=ascii)
def test_an_absurd_prompt_of_a_stream_is_refused(llm: LLM, prompt: Any) -> None:
    assert_refused(lambda: next(iter(llm.stream(prompt, FEW))), "^prompt", (RequestError,))
    assert_refused(lambda: next(iter(llm.stream("x", {"n": 1}))), "^params", (RequestError,))  # type: ignore[arg-type]
    assert not llm.engine.has_work()


class Unspeakable:
    """Its ``repr`` raises."""

    def __repr__(self) -> str:
        raise RuntimeError("no")


class Poem:
    """Its ``repr`` has lines."""

    def __repr__(self) -> str:
        return "one\ntwo"


@pytest.mark.parametrize("value", [ENDLESS, Unspeakable(), Poem(), [ENDLESS], "x" * 10**8, list(range(10**7))],
                         ids=lambda value: type(value).__name__)  # fmt: skip
def test_any_value_can_be_named_in_one_short_line(value: Any) -> None:
    def refuse() -> None:
        raise RequestError(explain("a", value, "never fits", "Give another."))

    assert_refused(refuse, "^a=.+: never fits")


def test_the_place_of_a_value_is_short_too() -> None:
    message = explain("json#" + "/items" * 500 + "/typ", 1, "no keyword", "Correct it.")
    assert len(message) < 300
    assert message.startswith("json#/items/items")
    assert "/items/typ=1: no keyword" in message


@pytest.mark.parametrize("act", [pickle.dumps, copy.copy, copy.deepcopy])
def test_a_model_that_is_pickled_or_copied_says_what_to_send_instead(llm: LLM, act: Any) -> None:
    with pytest.raises(pickle.PicklingError, match=r"cannot be pickled or copied: .*Send the name of the model"):
        act(llm)
