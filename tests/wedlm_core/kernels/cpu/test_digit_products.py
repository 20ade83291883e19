"""Products of digits are sums of integers: bits as an oracle in exact arithmetic has them, nearer than float32 sums."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from testing.repository import ROOT
from wedlm_core.kernels.cpu.digit_products import FEW_ROWS, ROWS
from wedlm_core.kernels.cpu.digits import DIGITS, MOST_INPUTS, TILE, WEIGHT_DIGITS, coarse_outputs
from wedlm_core.kernels.cpu.panels import numbers_here
from wedlm_core.model.panels import pack
from wedlm_core.model.team import Team

NUMBERS = "float32_amx"
pytestmark = pytest.mark.skipif(NUMBERS not in numbers_here(), reason="this CPU has no matrix units for int8")
Array = np.ndarray[Any, np.dtype[Any]]
COUNTS = (1, FEW_ROWS, FEW_ROWS + 1, TILE, TILE + 1, 2 * TILE + 1, 3 * TILE, ROWS, ROWS + 1)


def split(x_RI: Array, count: int) -> tuple[Array, Array]:
    """int64 digits ``[R, count, I]`` and the scale of each row, from its integers of 8 bits for each digit."""
    largest_R = np.abs(x_RI).max(axis=1).astype(np.float64)
    mantissa_R, power_R = np.frexp(np.maximum(largest_R, 2.0**-96))
    # A number that rounds to its power of two has no place: powers of two, and numbers just below, take the next.
    power_R = power_R + (mantissa_R > np.float32(0.992))
    whole_RI = np.rint(x_RI.astype(np.float64) * 2.0 ** (8 * count - 1 - power_R)[:, None]).astype(np.int64)
    digits = []
    for _ in range(count):
        low_RI = (whole_RI + 128) % 256 - 128
        digits.append(low_RI)
        whole_RI = (whole_RI - low_RI) // 256
    assert not whole_RI.any()
    return np.stack(digits[::-1], axis=1), 2.0 ** (power_R - 7)


def oracle(x_RI: Array, weight_OI: Array) -> Array:
    """The product as the module's text has it: sums in int64, joined in float32 from the least worth to the most."""
    (x_RDI, own_R), (weight_ODI, scale_O) = split(x_RI, DIGITS), split(weight_OI, WEIGHT_DIGITS)
    pairs = [[(d - j, j) for j in range(min(d + 1, WEIGHT_DIGITS))] for d in range(DIGITS)]
    sums = [sum(x_RDI[:, i] @ weight_ODI[:, j].T for i, j in those) for those in pairs]
    value = np.float32(sums[-1])
    for part in reversed(sums[:-1]):
        # A fused multiply-add: exact in float64, and rounded once.
        value = (value.astype(np.float64) * 2.0**-8 + np.float32(part).astype(np.float64)).astype(np.float32)
    return value * own_R[:, None].astype(np.float32) * scale_O.astype(np.float32)


def product(x_RI: Array, weight_OI: Array) -> Array:
    return Team().product(pack(torch.from_numpy(weight_OI), NUMBERS), torch.from_numpy(x_RI)).numpy()


def some(rows: int, inputs: int, seed: int) -> Array:
    """Rows of sizes that differ by ten orders of magnitude, with some outlying numbers."""
    generator = np.random.default_rng(seed)
    x_RI = generator.standard_normal((rows, inputs)) * 10.0 ** generator.uniform(-5, 5, (rows, 1))
    return (x_RI * np.where(generator.random((rows, inputs)) < 0.02, 1000, 1)).astype(np.float32)


@given(
    rows=st.sampled_from(COUNTS), inputs=st.integers(1, 300), outputs=st.integers(1, 150), seed=st.integers(0, 2**31)
)
@settings(max_examples=40, deadline=None)
def test_bits_are_those_of_exact_sums(rows: int, inputs: int, outputs: int, seed: int) -> None:
    x_RI, weight_OI = some(rows, inputs, seed), some(outputs, inputs, seed + 1)
    assert np.array_equal(product(x_RI, weight_OI), oracle(x_RI, weight_OI))


@pytest.mark.parametrize("inputs", [64, 600, MOST_INPUTS])
def test_extreme_digits_overflow_nowhere(inputs: int) -> None:
    """Digits of one sign that are as large as they get, in sums that are as long as they get."""
    half = np.float32(-0.5 - 2.0**-9 - 2.0**-17)  # its digits are -64, -128, -128, 0 or twice that
    rows = np.full((5, inputs), half, dtype=np.float32)
    rows[1], rows[2, ::2], rows[3] = -0.9919, 0.9919, 0.99609375 / 2
    rows[4, : inputs // 2] = -half
    for count in (1, 5):
        assert np.array_equal(product(rows[:count], rows), oracle(rows[:count], rows))


def test_rows_that_no_cache_holds_are_multiplied_part_by_part() -> None:
    x_RI, weight_OI = some(300, 4096, 4), some(70, 4096, 5)
    whole = product(x_RI, weight_OI)
    assert np.array_equal(whole[:64], product(x_RI[:64], weight_OI))
    assert np.array_equal(whole, oracle(x_RI, weight_OI))


def test_memory_of_a_product_is_held_until_it_is_done() -> None:
    """Where freed memory is overwritten at once, as other threads may do it, few rows are what many are."""
    code = f"""
import torch
from wedlm_core.model.panels import pack
from wedlm_core.model.team import Team
torch.set_num_threads(1)
x_RI, packed = torch.randn(20, 256), pack(torch.randn(300, 256), {NUMBERS!r})
whole = Team().product(packed, x_RI)
for rows in (1, 2, 3, 4, 5, 17):
    assert torch.equal(Team().product(packed, x_RI[:rows]), whole[:rows]), rows
"""
    overwriting = {**os.environ, "MALLOC_PERTURB_": "85", "GLIBC_TUNABLES": "glibc.malloc.tcache_count=0"}
    subprocess.run([sys.executable, "-c", code], check=True, env=overwriting, cwd=ROOT)


def test_any_part_of_the_rows_gives_the_same_bits() -> None:
    x_RI, weight_OI = some(150, 130, 0), some(100, 130, 1)
    whole = product(x_RI, weight_OI)
    for count in (*COUNTS, 100):
        for first in (0, 3, 150 - count):
            assert np.array_equal(product(x_RI[first : first + count], weight_OI), whole[first : first + count]), count


def lost(x_RI: Array, weight_OI: Array) -> tuple[float, float]:
    """Root mean square of what products by digits lose, and of what sums in float32 do."""
    exact = x_RI.astype(np.float64) @ weight_OI.astype(np.float64).T
    plain = Team().product(pack(torch.from_numpy(weight_OI), "float32"), torch.from_numpy(x_RI)).numpy()
    off, off_plain = (float(np.sqrt(np.mean((one - exact) ** 2))) for one in (product(x_RI, weight_OI), plain))
    return off, off_plain


def normal(inputs: int) -> tuple[Array, Array]:
    generator = np.random.default_rng(0)
    x_RI, weight_OI = (generator.standard_normal((n, inputs)).astype(np.float32) for n in (40, 90))
    return x_RI, weight_OI


@pytest.mark.parametrize("outlier", [1.0, 30.0, 3000.0])
def test_it_is_nearer_than_sums_in_float32(outlier: float) -> None:
    x_RI, weight_OI = normal(2000)
    x_RI[:, 7] *= outlier
    off, off_plain = lost(x_RI, weight_OI)
    assert off < off_plain / 3
    narrow_OI = torch.from_numpy(weight_OI).bfloat16().float().numpy()
    off, off_plain = lost(x_RI, narrow_OI)
    assert off < off_plain / 20


@pytest.mark.parametrize("inputs", [20, 384, 4096])
@pytest.mark.parametrize("factor", [1.0, 8.0, 30.0, 1000.0, 1e5])
def test_where_weights_would_lose_more_than_float32_sums_they_are_coarse(inputs: int, factor: float) -> None:
    """Of an output one weight is far larger than the others, and meets numbers that are as much smaller."""
    x_RI, weight_OI = normal(inputs)
    weight_OI[:, 5] *= factor
    x_RI[:, 5] /= factor
    off, off_plain = lost(x_RI, weight_OI)
    coarse = coarse_outputs(weight_OI, 0, len(weight_OI))
    assert coarse or off < 6 * off_plain
    assert not coarse or factor > 8
    assert coarse or factor < 1000
    assert coarse == sum(coarse_outputs(weight_OI, o, o + 1) for o in range(len(weight_OI)))


@pytest.mark.parametrize("value", [0.0, -0.0, 1e-45, 1e-32, 1e-20, 3e38, np.nan, np.inf])
def test_outputs_of_one_size_are_not_coarse_whatever_it_is(value: float) -> None:
    weight_OI = normal(300)[1]
    assert not coarse_outputs(np.float32(min(value, 1e37)) * weight_OI, 0, len(weight_OI))
    weight_OI[7], weight_OI[8, :150] = value, value
    assert coarse_outputs(weight_OI, 7, 8) == 0


@pytest.mark.parametrize("rows", COUNTS)
def test_rows_and_outputs_that_are_no_numbers_leave_the_others_alone(rows: int) -> None:
    x_RI, weight_OI = some(rows + 2, 90, 2), some(70, 90, 3)
    good = product(x_RI, weight_OI)
    x_RI[rows, 5], x_RI[rows + 1, 80], weight_OI[33, 0] = np.nan, -np.inf, np.inf
    found = product(x_RI, weight_OI)
    none = np.zeros_like(found, dtype=bool)
    none[rows:], none[:, 33] = True, True
    assert np.isnan(found[none]).all()
    assert np.array_equal(found[~none], good[~none])


def test_zeros_and_numbers_of_any_size_are_multiplied() -> None:
    x_RI = np.array([[0.0] * 70, [1e-28] * 70, [1e30] * 70, [1e-20] * 70], dtype=np.float32)
    weight_OI = np.array([[0.0] * 70, [1.0] * 70, [1e-25] * 70, [3e38] + [0.0] * 69], dtype=np.float32)
    found, want = product(x_RI, weight_OI), x_RI.astype(np.float64) @ weight_OI.astype(np.float64).T
    assert not found[0].any()
    assert np.isinf(found[2, 3])
    near = np.isclose(found, want, rtol=1e-6, atol=1e-28)
    near[2, 3] = True
    assert near.all()
    apart = np.array([[1e38, 0.0, 1.0]], dtype=np.float32), np.array([[0.0, 1e38, 0.0]], dtype=np.float32)
    assert product(*apart) == 0.0, "though the product of their scales is no float32"
