"""Traces quiet decode steps: which files of the engine each enters, and how often it moves between them.

    python -m testing.engine.step_trace

prints the quietest step as a numbered list. A file is entered where one of its functions is called, compiled ones
included. In a quiet step four sequences decode with windows that drafting chooses; none begins, ends or needs a page.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from itertools import groupby, pairwise
from types import FrameType

from testing.engine.engines import COST, loaded
from testing.repository import ROOT
from wedlm_core.config import EngineConfig
from wedlm_core.engine import Engine
from wedlm_core.model.sources import resolve
from wedlm_core.types import Request, SamplingParams

__all__ = ["Call", "moves", "quiet_step"]

_CORE = str(ROOT / "wedlm_core") + os.sep
_WARM, _TRACED = 12, 20

Call = tuple[str, str]
"""A file of ``wedlm_core``, and the function in it."""


def quiet_step() -> list[Call]:
    """The calls of the step with the fewest moves, in order."""
    engine = _decoding_engine()
    for _ in range(_WARM):
        engine.step()
    return min((_calls(engine) for _ in range(_TRACED)), key=moves)


def moves(calls: list[Call]) -> int:
    """How often another file than the one before is entered."""
    return sum(one[0] != other[0] for one, other in pairwise(calls))


def _decoding_engine() -> Engine:
    model, tokenizer = loaded(resolve("tiny"))
    engine = Engine(model, tokenizer, EngineConfig(step_cost=COST))
    params = SamplingParams(max_tokens=400, strategy="verified", ignore_eos=True)
    prompt = tuple(tokenizer.encode("Bob is 31 years old and lives in Rome. To JSON:"))
    for number in range(4):
        engine.add(Request(request_id=str(number), prompt_token_ids=prompt, params=params, seed=number))
    return engine


def _calls(engine: Engine) -> list[Call]:
    found: list[Call] = []

    def called(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(_CORE):
            found.append((code.co_filename.removeprefix(_CORE), code.co_qualname))

    sys.setprofile(called)
    try:
        engine.step()
    finally:
        sys.setprofile(None)
    return found


def _lines(calls: list[Call]) -> Iterator[str]:
    for number, (file, own) in enumerate(groupby(calls, key=lambda call: call[0]), start=1):
        names = dict.fromkeys(name for _, name in own if "<" not in name)
        yield f"{number}. `{file}`: {', '.join(names)}"


if __name__ == "__main__":
    print("\n".join(_lines(quiet_step())))
