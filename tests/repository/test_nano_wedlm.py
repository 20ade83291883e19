"""``docs/nano_wedlm.py`` gives the engine's tokens, strategy by strategy."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from testing.repository import ROOT
from wedlm_core.llm import LLM
from wedlm_core.types import SamplingParams

PROMPTS = ("What is 12 + 7?", "Count from 3 to 9.", "Ann has 4 apples and buys 5. How many has she?")


def load() -> Any:
    spec = importlib.util.spec_from_file_location("nano_wedlm", ROOT / "docs/nano_wedlm.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


NANO = load()


def streamed(model: Any, prompt: Sequence[int], limit: int) -> list[int]:
    return [token for commit in NANO.stream(model, prompt, limit, 8, 0.4, 0.02) for token in commit]


@pytest.mark.parametrize(
    ("strategy", "decode"),
    [("autoregressive", NANO.autoregressive), ("reference", streamed), ("verified", NANO.verified)],
)
def test_nano_equals_engine(strategy: Any, decode: Callable[[Any, Sequence[int], int], list[int]]) -> None:
    llm, model = LLM("tiny", device="cpu"), NANO.Nano(ROOT / "wedlm_core/tiny")
    window = {"window_size": 8, "entropy_threshold": 0.4, "position_penalty": 0.02} if strategy == "reference" else {}
    params = SamplingParams(strategy=strategy, max_tokens=40, **window)
    prompts = [llm.tokenizer.encode(text) for text in PROMPTS]
    for prompt, found in zip(prompts, llm.generate(prompts, params), strict=True):
        assert decode(model, prompt, 40) == list(found.token_ids)
