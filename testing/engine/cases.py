"""The conformance cases: recorded steps of the published decoding rule, read from a folder beside the repository."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from wedlm_core.model.decoder import Decoder
from wedlm_core.model.weights import load_model
from wedlm_core.types import SamplingParams

FOLDER = Path(__file__).resolve().parents[2].parent / "shared" / "conformance"

needs_cases = pytest.mark.skipif(not FOLDER.is_dir(), reason="the conformance cases are not beside this repository")


def case_ids() -> list[str]:
    """Names of all cases; none if the folder is absent."""
    return sorted(path.stem for path in (FOLDER / "cases").glob("*.json"))


@cache
def case(name: str) -> dict[str, Any]:
    """A case as parsed JSON."""
    return json.loads((FOLDER / "cases" / f"{name}.json").read_text())


def selection_cases() -> list[dict[str, Any]]:
    """Cases of position selection alone; none if the folder is absent."""
    path = FOLDER / "selection_cases.json"
    return json.loads(path.read_text()) if path.is_file() else []


@cache
def decoder(model: str) -> Decoder:
    """The model of a case, float32 on CPU."""
    return load_model(FOLDER / "models" / model, max_positions=1400)


def params_of(raw: dict[str, Any], window_size: int) -> SamplingParams:
    """Sampling parameters of a sequence: only its own stop ids apply (see the folder's README)."""
    return SamplingParams(
        max_tokens=raw["max_tokens"],
        temperature=raw["temperature"],
        entropy_threshold=raw["entropy_threshold"],
        position_penalty=raw["pos_penalty"],
        stop_token_ids=raw["stop_token_ids"],
        ignore_eos=True,
        strategy="reference",
        window_size=window_size,
    )


EXACT_FIELDS = (
    "base_position", "window_size", "window_tokens", "mask_flags", "physical_order", "input_ids", "positions",
    "num_filled", "prefix_len", "decoder_committed", "committed", "finished", "mask_positions", "argmax",
    "fill_indices", "fill_positions", "fill_tokens",
)  # fmt: skip


def assert_steps_equal(found: Any, expected: list[dict[str, Any]], where: str) -> None:
    """Assert that in every step all discrete fields are equal and entropies are within 5e-5 nats."""
    assert len(found) == len(expected), where
    for number, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
        place = f"{where}, step {number}"
        for field in EXACT_FIELDS:
            value = theirs[field]
            mine = ours[field]
            mine = [int(v) for v in mine] if isinstance(value, list) else type(value)(mine)
            assert mine == value, f"{place}: {field}"
        assert list(ours["entropies"]) == pytest.approx(theirs["entropies"], abs=5e-5), f"{place}: entropies"
