"""Models that tests share, requests for them, and runs of an engine to the end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Literal
from unittest import mock

from wedlm_core.config.step_cost import StepCost
from wedlm_core.engine import Engine
from wedlm_core.model.decoder import Decoder
from wedlm_core.model.weights import load_model
from wedlm_core.tokenizer import Tokenizer
from wedlm_core.types import Generation, Request, SamplingParams

COST = StepCost.linear(fixed=1.0, per_row=1 / 40, floor_rows=20)
"""A stated step cost, so that engines measure none: windows of 0 to 16, by load."""


@cache
def loaded(folder: Path) -> tuple[Decoder, Tokenizer]:
    """The model of a folder in float32 and its tokenizer, loaded once in a process. Change no weights of it."""
    return load_model(folder), Tokenizer.load(folder)


@contextmanager
def plain_decoder() -> Iterator[None]:
    """Engines that are made in this block compute forwards by torch, as where a CPU's kernels do not run."""
    with mock.patch("wedlm_core.model.decoder_team.why_no_team", return_value="the test says so"):
        yield


def as_verified(requests: Sequence[Request], window: int | Literal["auto"]) -> list[Request]:
    """The same requests with strategy ``verified``."""
    return [replace(one, params=replace(one.params, strategy="verified", window_size=window)) for one in requests]


def requests_of(
    prompts: Sequence[Sequence[int]],
    params: SamplingParams | Sequence[SamplingParams],
    seeds: Sequence[int] | None = None,
) -> list[Request]:
    """One request per prompt; its id is the prompt's index."""
    per_prompt = [params] * len(prompts) if isinstance(params, SamplingParams) else list(params)
    return [
        Request(request_id=str(i), prompt_token_ids=tuple(prompt), params=p, seed=seeds[i] if seeds else i)
        for i, (prompt, p) in enumerate(zip(prompts, per_prompt, strict=True))
    ]


def run(engine: Engine, requests: Sequence[Request], at_once: int | None = None) -> list[Generation]:
    """Run all requests to the end, at most ``at_once`` in the engine; results in the order of the requests.

    Asserts that the engine is then empty and all pages are free.
    """
    waiting, done = list(reversed(requests)), dict[str, Generation]()
    steps = 0
    while waiting or engine.has_work():
        while waiting and (at_once is None or len(engine._sequences) < at_once):
            engine.add(waiting.pop())
        for generation in engine.step():
            assert generation.request_id not in done
            done[generation.request_id] = generation
        steps += 1
        if steps % 7 == 0:
            engine.pages.check_integrity()
    engine.pages.check_integrity()
    assert len(engine._sequences) == 0
    assert engine.pages.num_free == engine.pages.num_pages
    return [done[request.request_id] for request in requests]
