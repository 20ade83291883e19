"""A job whose text repeats, and engines for it, for tests of drafts from history."""

from __future__ import annotations

import random
from collections.abc import Mapping
from functools import cache
from typing import Any

from testing.engine.engines import COST, loaded, requests_of
from wedlm_core.config import EngineConfig
from wedlm_core.engine import Engine
from wedlm_core.engine.drafting.constants import CONSTANTS
from wedlm_core.engine.drafting.controller import Arm, Controller
from wedlm_core.model.sources import resolve
from wedlm_core.structured_outputs import StructuredOutputs
from wedlm_core.types import Generation, Request, SamplingParams

TIGHT = {"page_size": 4, "prefill_chunk": 5, "max_batch_rows": 99, "num_pages": 120}


def new_engine(**settings: Any) -> Engine:
    """An engine on the shipped model."""
    return Engine(*loaded(resolve("tiny")), EngineConfig(**{"max_window": 16, "step_cost": COST, **settings}))


@cache
def engine_of(**settings: Any) -> Engine:
    """The same one for the same settings."""
    return new_engine(**settings)


def _prompts(count: int) -> list[list[int]]:
    """Counting, copying, and prompts that are alike."""
    rng, tokenizer = random.Random(3), engine_of().tokenizer
    texts = [
        f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"
        for i in range(count)
        for text in (
            f"Count from {i} to {i + 9}.",
            "Repeat: " + " ".join(rng.choice(["red", "apple", "village", "green", "old"]) for _ in range(8)),
            f"To JSON: Bob is {20 + i} years old, lives in Rome and likes apples.",
        )
    ]
    return [tokenizer.encode(text) for text in texts]


def requests(strategy: str, temperature: float, structure: StructuredOutputs | None = None) -> list[Request]:
    """18 rows, of up to 48 tokens."""
    params = SamplingParams(
        max_tokens=48, strategy=strategy, temperature=temperature, structured_outputs=structure, logprobs=True
    )
    return requests_of(_prompts(6), [params] * 18)


def tokens(done: list[Generation]) -> dict[str, Any]:
    """The texts of rows, by their ids."""
    return {one.request_id: (one.token_ids, one.finish_reason, one.logprobs) for one in done}


class Given(Controller):
    """Runs the arm that it is given."""

    def __init__(self, arm: Arm = Arm.HISTORY_AND_MASKS) -> None:
        super().__init__(CONSTANTS, frozenset(Arm))
        self.arm = arm

    @property
    def arm(self) -> Arm:
        """The given arm."""
        return self._usual

    @arm.setter
    def arm(self, arm: Arm) -> None:
        self._usual = arm

    def choose(self, expected: Mapping[Arm, float], sequences: int) -> Arm:
        """The given arm."""
        del expected, sequences
        return self.arm

    def record(self, tokens: float, seconds: float) -> bool:
        """Nothing changes."""
        del tokens, seconds
        return False
