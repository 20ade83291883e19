"""Noise depends on (seed, position, token) alone, and is Gumbel; seeds of rows do not collide."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from testing.engine.noise_oracle import gumbel_noise
from wedlm_core.kernels.cpu.noise import key_of, noise_from, noise_of
from wedlm_core.seeds import row_seed, sample_seed

SEEDS = st.integers(0, 2**63 - 1)


def noise(rows: list[tuple[int, int]], vocab: int) -> torch.Tensor:
    return gumbel_noise(torch.tensor([r[0] for r in rows]), torch.tensor([r[1] for r in rows]), vocab)


def test_it_is_splitmix64_of_the_stated_key() -> None:
    """The same integer arithmetic in plain Python, modulo 2**64."""

    def mix(x: int) -> int:
        x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        x = (x ^ (x >> 27)) * 0x94D049BB133111EB % 2**64
        return x ^ (x >> 31)

    weyl = 0x9E3779B97F4A7C15
    for seed, position in [(0, 0), (1, 5), (2**63 - 1, 131_071), (123_456_789, 17)]:
        key = mix((mix((2 * seed + 1) % 2**64) + position * weyl) % 2**64)
        for token in (0, 1, 63, 200):
            bits = mix((key + (token + 1) * weyl) % 2**64) >> 11
            uniform = min((bits + 0.5) * 2.0**-53, 1 - 2.0**-24)
            expected = -math.log(-math.log1p(-uniform))
            assert noise([(seed, position)], 256)[0, token].item() == pytest.approx(expected, rel=1e-3, abs=1e-4)


@given(row=st.tuples(SEEDS, st.integers(0, 200_000)), begin=st.integers(0, 40), size=st.integers(1, 90))
@settings(max_examples=60, deadline=None)
def test_the_kernel_gives_the_oracles_noise_up_to_its_logarithms(row: tuple[int, int], begin: int, size: int) -> None:
    tokens = np.arange(begin, begin + size, dtype=np.int32)
    stretch, listed = np.empty((2, size), dtype=np.float32)
    key = np.uint64(key_of(*row))
    noise_from(key, begin, size, stretch)
    noise_of(key, tokens, 0, size, listed)
    np.testing.assert_array_equal(stretch, listed)
    np.testing.assert_allclose(stretch, noise([row], begin + size)[0, begin:].numpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("axis", ["tokens", "positions", "seeds"])
def test_the_distribution_is_gumbel_along_every_axis(axis: str) -> None:
    count = 60_000
    if axis == "tokens":
        values = noise([(7, 7)], count)[0]
    elif axis == "positions":
        values = noise([(7, i) for i in range(count)], 1)[:, 0]
    else:
        values = noise([(i, 7) for i in range(count)], 1)[:, 0]
    grid = torch.linspace(0.001, 0.999, 999)
    # Kolmogorov-Smirnov: the 0.1% critical value is 1.95 / sqrt(n).
    uniform = torch.exp(-torch.exp(-values.double())).sort().values
    distance = (torch.quantile(uniform, grid.double()) - grid).abs().max()
    assert distance < 1.95 / count**0.5
    serial = torch.corrcoef(torch.stack([values[:-1], values[1:]]))[0, 1]
    assert abs(serial) < 4 / count**0.5


@given(seed=SEEDS, names=st.lists(st.text(max_size=8), min_size=2, max_size=6, unique=True), sample=st.integers(0, 9))
@settings(deadline=None)
def test_row_seeds_are_stable_distinct_and_in_range(seed: int, names: list[str], sample: int) -> None:
    seeds = [row_seed(seed, name, sample) for name in names]
    assert seeds == [row_seed(seed, name, sample) for name in names]
    assert len(set(seeds)) == len(names)
    assert all(0 <= s < 2**63 for s in seeds)
    assert sample_seed(seed, 0) == seed
    assert len({sample_seed(seed, i) for i in range(10)}) == 10


def test_row_seed_is_fixed_for_ever() -> None:
    """Outputs of old runs must come again: a change of this value is a change of every sampled output."""
    assert row_seed(0, "row-1", 0) == row_seed(0, "row-1")
    assert row_seed(0, "row-1") == 2_827_152_068_531_543_051
