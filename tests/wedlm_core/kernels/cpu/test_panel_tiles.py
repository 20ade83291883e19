"""A row's result has the same bits whatever rows are multiplied with it, of whatever size its numbers are."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from testing.engine.numbers import marked
from wedlm_core.kernels.cpu.panel_products import line_units, numbers_here, numeric_kind, tile_rows
from wedlm_core.model.panels import PanelWeight, pack
from wedlm_core.model.team import Team

FLOATS = [one for one in numbers_here() if numeric_kind(one) in ("float32", "bfloat16")]
WEIGHTS = st.sampled_from([-25.0, -19.0, -10.0, 0.0, 10.0])
"""Powers of ten. Products of two numbers of -19 are denormal, or sums of such are."""


def a_weight(numbers: str, outputs: int, inputs: int, power: float, generator: torch.Generator) -> PanelWeight:
    bias_O = torch.randn(outputs, generator=generator) * 10**power
    if numeric_kind(numbers) in ("int8", "int16"):
        weight_OI = torch.randint(-127, 128, (outputs, inputs), generator=generator, dtype=torch.int8)
        scale_O = torch.rand(outputs, generator=generator) * 10**power
        return pack(weight_OI, numbers, scale_O=scale_O, bias_O=bias_O)
    weight_OI = torch.randn(outputs, inputs, generator=generator) * 10**power
    weight_OI[torch.rand(outputs, inputs, generator=generator) < 0.1] = 0
    return pack(weight_OI.to(getattr(torch, numeric_kind(numbers))), numbers, bias_O=bias_O)


def assert_same(one: torch.Tensor, other: torch.Tensor) -> None:
    """The same bits, but that any NaN is like another."""
    is_number = ~one.isnan()
    assert torch.equal(is_number, ~other.isnan())
    assert torch.equal(one.view(torch.int32)[is_number], other.view(torch.int32)[is_number])


@pytest.mark.parametrize("numbers", marked(numbers_here()))
@given(
    inputs=st.integers(1, 200), outputs=st.integers(1, 150), power=WEIGHTS, rows=st.integers(2, 40),
    seed=st.integers(0, 2**31),
)  # fmt: skip
@settings(max_examples=40, deadline=None)
def test_a_row_alone_has_the_bits_it_has_among_others(
    numbers: str, inputs: int, outputs: int, power: float, rows: int, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    weight = a_weight(numbers, outputs, inputs, power, generator)
    x_RI = torch.randn(rows, inputs, generator=generator) * 10 ** (30 * torch.rand(rows, 1, generator=generator) - 20)
    together = Team().product(weight, x_RI)
    for first, count in ((0, 1), (rows - 1, 1), (0, 2), (0, min(rows, 7))):
        assert_same(Team().product(weight, x_RI[first : first + count]), together[first : first + count])


@pytest.mark.parametrize("numbers", marked(numbers_here()))
def test_rows_of_whole_pages_have_the_same_bits_too(numbers: str) -> None:
    """Such rows are held apart from each other, whatever was in between before."""
    generator, team, inputs = torch.Generator().manual_seed(5), Team(), 4096
    weight, wider = (a_weight(numbers, 100, size, 0.0, generator) for size in (inputs, inputs + 90))
    for rows in range(1, tile_rows(numbers) + 3):
        team.product(wider, torch.full((rows, inputs + 90), 3e38))
        x_RI = torch.randn(rows, inputs, generator=generator)
        together = team.product(weight, x_RI)
        for row in (0, rows - 1):
            assert_same(Team().product(weight, x_RI[row : row + 1])[0], together[row])


@pytest.mark.parametrize("numbers", [one for one in numbers_here() if not one.endswith("_amx")])
def test_rows_of_a_tile_do_not_share_sets_of_the_cache(numbers: str) -> None:
    """Of 64 sets of lines of 64 bytes: of 12 lines each, there is room for as many rows of a tile and for weights."""
    for depth in (512, 1024, 2048, 3072, 4096, 11008, 12288):
        lines = [row * line_units(numbers)(depth) // 16 % 64 for row in range(tile_rows(numbers))]
        assert max(lines.count(line) for line in lines) <= 6


@pytest.mark.parametrize("numbers", marked(FLOATS))
@pytest.mark.parametrize("value", [float("inf"), float("nan"), 3e38, 1e-40])
@pytest.mark.parametrize("place", ["row", "weight"])
def test_what_is_no_number_spoils_what_it_would_spoil_among_other_rows(numbers: str, value: float, place: str) -> None:
    generator, count = torch.Generator().manual_seed(3), tile_rows(numbers)
    weight_OI, x_RI = torch.randn(70, 90, generator=generator), torch.randn(count, 90, generator=generator)
    if place == "row":
        x_RI[::2, 31], x_RI[1::4, 40] = value, -value
    else:
        weight_OI[::2, 31], weight_OI[1::4, 40] = value, -value
    weight = pack(weight_OI.to(getattr(torch, numeric_kind(numbers))), numbers)
    together = Team().product(weight, x_RI)
    for row in range(count):
        assert_same(Team().product(weight, x_RI[row : row + 1])[0], together[row])


@pytest.mark.skipif("bfloat16_amx" not in numbers_here(), reason="this CPU has no matrix units for bfloat16")
@pytest.mark.parametrize("rows", [1, 2, 17])
def test_sums_of_matrix_units_are_chains_of_sixteen_units(rows: int) -> None:
    """First numbers of units in one chain, second ones in another, from zero each time."""
    generator = torch.Generator().manual_seed(rows)
    x_RI = torch.randn(rows, 320, generator=generator).bfloat16()
    weight_OI = torch.randn(70, 320, generator=generator).bfloat16()
    sums_RO = torch.zeros(rows, 70)
    for start in range(0, 320, 32):
        chains = [torch.zeros(rows, 70, dtype=torch.float64) for _ in range(2)]
        for k in range(start, start + 32):
            exact_RO = x_RI[:, k, None].double() * weight_OI[None, :, k].double()
            chains[k % 2] = (chains[k % 2] + exact_RO).float().double()
        sums_RO = sums_RO + (chains[0].float() + chains[1].float())
    assert torch.equal(Team().product(pack(weight_OI, "bfloat16_amx"), x_RI.float()), sums_RO)
