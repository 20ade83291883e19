"""Record the hidden states of every row that an engine forwards, to compare engines bit by bit."""

from __future__ import annotations

from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import torch

from testing.engine.engines import run
from wedlm_core.config import EngineConfig
from wedlm_core.engine import Engine
from wedlm_core.model.decoder import Decoder
from wedlm_core.model.weights import load_model
from wedlm_core.tokenizer import Tokenizer
from wedlm_core.types import Generation, Request


class Rows:
    """Recorded hidden states of each request's rows: prefill rows by position, decode rows by forward."""

    def __init__(self, engine: Engine) -> None:
        self.prefill: dict[tuple[str, int], torch.Tensor] = {}
        self.decode: dict[tuple[str, int], torch.Tensor] = {}
        self.widest = 0
        forwards: Counter[str] = Counter()
        hidden: list[torch.Tensor] = []
        runner, forward = engine._runner, engine._runner.forward
        runner.model_runner.draws = False  # hidden states would stay inside
        run_model = runner.model_runner.run

        def kept(ids: Any, positions: Any, entries: Any, rows: Any, read: torch.Tensor) -> torch.Tensor:
            hidden.append(run_model(ids, positions, entries, rows))
            return hidden[-1].index_select(0, read)

        runner.model_runner.run = kept  # type: ignore[method-assign, assignment]

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

        runner.forward = recorded  # type: ignore[method-assign, assignment]


@cache
def model_of(folder: Path, weight_dtype: str = "auto") -> tuple[Decoder, Tokenizer]:
    """The model and tokenizer of a folder, loaded once, with 700 positions."""
    return load_model(folder, max_positions=700, weight_dtype=weight_dtype), Tokenizer.load(folder)


def observe(folder: Path, requests: list[Request], config: EngineConfig) -> tuple[list[Generation], Rows]:
    """Run the requests on a new engine; their generations and the hidden states of their rows."""
    engine = Engine(*model_of(folder, config.weight_dtype), config)
    rows = Rows(engine)
    return run(engine, requests), rows


TARGET_PROMPTS = {length: [(7 * i * i + 3 * length + i) % 330 for i in range(length)] for length in (1, 5, 16, 65)}
