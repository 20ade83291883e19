"""Filters and likely tokens of rows without a sort: as the oracle keeps them, at small and real vocabularies."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from testing.engine.oracle import kept
from wedlm_core.decoding.filters import FILTERS
from wedlm_core.decoding.sampling import SamplingRows
from wedlm_core.decoding.sampling_cpu import choose_cpu
from wedlm_core.kernels.cpu.filtering import BLOCK, heated, keep

Logits = np.ndarray[Any, np.dtype[np.float32]]
OFF = {one.field: one.off for one in FILTERS}
SETTINGS: list[dict[str, float]] = [
    {},
    {"top_k": 20, "top_p": 0.95},
    {"top_k": 1},
    {"top_k": 5000, "top_p": 0.999},
    {"top_p": 0.95},
    {"top_p": 1e-6},
    {"min_p": 0.1},
    {"min_p": 0.001, "top_k": 50, "top_p": 0.5},
]


def rows(vocab: int, rng: np.random.Generator) -> dict[str, Logits]:
    """Flat, peaked, with many ties, and with tokens that are out of the question."""
    noise = rng.normal(size=vocab).astype(np.float32)
    banned = 4 * noise
    banned[rng.integers(0, vocab, vocab // 3)] = -np.inf
    alone = np.full(vocab, -np.inf, dtype=np.float32)
    alone[vocab // 2] = -3.0
    signs = np.where(noise > 0, np.float32(0.0), np.float32(-0.0))
    return {"flat": noise / 20, "peaked": 4 * noise, "ties": np.round(3 * noise), "banned": banned, "alone": alone,
            "zeros of both signs": signs}  # fmt: skip


def kept_by_kernel(logits: Logits, heat: float, setting: dict[str, float]) -> np.ndarray[Any, Any]:
    size, values = len(logits), {**OFF, **setting}
    scaled, mass, places = np.empty(size, np.float32), np.empty(size, np.float32), np.empty(size, np.int32)
    tops = np.empty(-(-size // BLOCK), np.float32)
    best = heated(logits, 0, size, np.float32(heat), scaled, tops)
    with np.errstate(divide="ignore"):
        min_log = np.float32(np.log(np.float64(np.float32(values["min_p"]))))
    count = keep(scaled, tops, best, min_log, int(values["top_k"]), np.float32(values["top_p"]), mass, places)
    return places[:count]


@pytest.mark.parametrize(
    ("vocab", "setting"),
    [*((vocab, one) for vocab in (50, 1_200) for one in SETTINGS), *((151_936, one) for one in SETTINGS[1::3])], ids=str
)  # fmt: skip
def test_the_kernel_keeps_the_tokens_of_the_oracle(vocab: int, setting: dict[str, float]) -> None:
    for name, logits in rows(vocab, np.random.default_rng(7)).items():
        for heat in (1.0, 0.7):
            kept_V = kept(torch.from_numpy(logits) / np.float32(heat).item(), **setting)  # type: ignore[arg-type]
            expected = torch.nonzero(kept_V > -torch.inf)[:, 0].numpy()
            found = kept_by_kernel(logits, heat, setting)
            assert np.array_equal(found, expected), f"{name}: {len(found)} tokens, and {len(expected)}"


def test_no_token_but_the_first_is_kept_where_no_mass_is_asked_for() -> None:
    logits = np.array([1.0, 3.0, 3.0, 2.0], dtype=np.float32)
    assert kept_by_kernel(logits, 1.0, {"top_p": 1e-9}).tolist() == [1]


def test_logits_that_are_no_numbers_end() -> None:
    for logits in (np.full(100, np.nan, np.float32), np.array([1.0, np.nan] * 50, np.float32)):
        for setting in SETTINGS:
            assert len(kept_by_kernel(logits, 1.0, setting)) <= 100


@pytest.mark.parametrize(("vocab", "most"), [(3, 5), (1_200, 1), (1_200, 20), (151_936, 20)])
def test_likely_tokens_are_the_largest_logits_the_first_of_equal_ones_first(vocab: int, most: int) -> None:
    for name, logits in rows(vocab, np.random.default_rng(3)).items():
        reporting = SamplingRows(
            temperature_R=torch.zeros(1), seed_R=torch.tensor([0]), position_R=torch.tensor([0]),
            suppress_R=torch.tensor([False]), report_R=torch.tensor([1]), most=most, sampled=False, suppressing=False,
        )  # fmt: skip
        found = choose_cpu(torch.from_numpy(logits)[None], reporting, mask_token_id=0, vocab_limit=vocab).tops
        assert found is not None
        exact_V = torch.log_softmax(torch.from_numpy(logits).double(), dim=-1)
        possible = np.flatnonzero(logits > -np.inf).tolist()
        order = sorted(possible, key=lambda token: (-logits[token], token))[:most]
        assert found.token_RK[0, : len(order)].tolist() == order, name
        assert torch.allclose(found.logprob_RK[0, : len(order)].double(), exact_V[order], atol=2e-5), name
        assert found.logprob_RK[0, len(order) : vocab].tolist() == [-np.inf] * (min(most, vocab) - len(order)), name
        assert not found.token_RK[0, len(order) :].any()
