"""A model's memory in validate and estimate."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pipeline.codec import EngineConfig
from pipeline.config import RunConfig
from pipeline.prompts import model_files as module
from pipeline.prompts.model_files import ModelMemory, model_memory
from testing.engine.published_models import WEDLM_8B

GIB = 2**30


def of_8b(monkeypatch: pytest.MonkeyPatch, free: float, *, actors: int = 1, **engine: object) -> ModelMemory:
    monkeypatch.setattr(module, "available_memory", lambda: int(free * GIB))
    config = RunConfig(input="x.jsonl", output="out", model="m", actors=actors,
                       engine=EngineConfig(**engine))  # type: ignore[arg-type]  # fmt: skip
    return model_memory(config, WEDLM_8B, on_cpu=True)


def test_a_model_that_does_not_fit_is_said_with_the_numbers_that_would(monkeypatch: pytest.MonkeyPatch) -> None:
    """The 8B shape has 8.19e9 weights: 30.5 GiB in float32, 15.3 in bfloat16, 7.6 in int8."""
    found = of_8b(monkeypatch, 14)
    assert found.shortfall == (
        "the weights take 30.5 GiB in float32, and 14.0 GiB of memory are free here: int8 would fit"
    )
    assert "30.5 GiB in float32, 15.3 GiB in bfloat16, 7.6 GiB in int8; this run" in found.lines[0]
    assert of_8b(monkeypatch, 14, weight_dtype="int8").shortfall is None
    both = of_8b(monkeypatch, 31, actors=2)
    assert both.shortfall is not None
    assert "of each of 2 actors" in both.shortfall
    assert both.shortfall.endswith("bfloat16 and int8 would fit")
    none = of_8b(monkeypatch, 3)
    assert none.shortfall is not None
    assert none.shortfall.endswith("no other numbers of this model would fit either")


def test_a_pool_that_holds_few_sequences_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """A token takes 144 KiB: 36 layers of 2 * 8 heads of 128. A quarter of 64 GiB less the weights is 14 GiB."""
    found = of_8b(monkeypatch, 64, weight_dtype="int8", max_model_len=4096)
    assert "144.0 KiB a token, 36.0 GiB for 64 sequences of 4096 tokens" in found.lines[1]
    assert "the default pool here holds 25 of them at once" in found.lines[1]
    assert (
        "default pool" not in of_8b(monkeypatch, 64, weight_dtype="int8", max_num_seqs=4, max_model_len=4096).lines[1]
    )


def test_of_other_machines_nothing_is_said_but_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    config = RunConfig(input="x.jsonl", output="out", model="m", device="cuda")
    found = model_memory(config, WEDLM_8B, on_cpu=False)
    assert found.numbers == "bfloat16"
    assert "4.6 GiB in int4" in found.lines[0]
    assert found.shortfall is None
    assert replace(found, free=1).shortfall is not None
