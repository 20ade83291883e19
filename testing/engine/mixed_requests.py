"""Requests of 40 kinds, for batches that mix strategies and parameters."""

from __future__ import annotations

from wedlm_core.types import Request, SamplingParams

STRATEGIES = ("verified", "reference", "streaming", "autoregressive", "blockwise")


def request_of(kind: int, name: str) -> Request:
    """A request of kind 0 to 39: any strategy, short or long prompts with shared prefixes, stops, sampling."""
    prompt = (*((5 * i + i * i) % 300 for i in range((1, 7, 16, 30)[kind % 4])), kind % 7)
    params = SamplingParams(
        max_tokens=(1, 9, 25)[kind % 3],
        temperature=(0.0, 0.9)[kind % 2],
        stop=("e",) if kind % 5 == 4 else (),
        ignore_eos=kind % 2 == 0,
        strategy=STRATEGIES[kind // 8],
        window_size=1 + kind % 4,
        entropy_threshold=2.0,
    )
    return Request(request_id=name, prompt_token_ids=prompt, params=params, seed=kind)
