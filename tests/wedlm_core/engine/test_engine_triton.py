"""An engine on the Triton backend (interpreted where there is no GPU) gives the tokens of the default on CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from testing.engine.engines import requests_of, run
from wedlm_core.config import EngineConfig
from wedlm_core.engine import Engine
from wedlm_core.model.weights import load_model
from wedlm_core.tokenizer import Tokenizer
from wedlm_core.types import SamplingParams

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.mark.sweep(2)
@pytest.mark.parametrize(("batch_invariant", "kv"), [(True, "auto"), (False, "auto"), (True, "bfloat16")])
def test_tokens_are_those_of_the_default_backend(agreeing_folder: Path, batch_invariant: bool, kv: Any) -> None:
    tokenizer = Tokenizer.load(agreeing_folder)
    prompts = [[(5 * i + j) % 300 for j in range(length)] for i, length in enumerate((3, 18, 9))]
    params = [
        SamplingParams(max_tokens=10, strategy="verified", window_size=4, ignore_eos=True),
        SamplingParams(max_tokens=8, strategy="reference", window_size=6, ignore_eos=True),
        SamplingParams(max_tokens=5, strategy="autoregressive", temperature=0.8, ignore_eos=True),
    ]
    outputs = []
    for attention, device in (("triton", DEVICE), ("auto", "cpu")):
        config = EngineConfig(
            attention=attention, batch_invariant=batch_invariant, kv_cache_dtype=kv, page_size=8, prefill_chunk=7
        )
        engine = Engine(load_model(agreeing_folder, device=device, dtype=torch.float32), tokenizer, config)
        outputs.append([one.token_ids for one in run(engine, requests_of(prompts, params))])
    assert outputs[0] == outputs[1]
