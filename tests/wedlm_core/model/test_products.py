"""Packed products equal plain ones, their rows are independent, and if a check fails the plain ones are used."""

from __future__ import annotations

import logging

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from wedlm_core.model import products
from wedlm_core.model.products import InBlocks, PackedProduct, PlainProduct, Product, RowPadding, Weight, products_of

SHAPES = [(96, 64), (30, 64), (64, 176), (1000, 48), (384, 1792)]


def weight_of(shape: tuple[int, int], bias: bool) -> Weight:
    generator = torch.Generator().manual_seed(1)
    return Weight(
        weight_OI=torch.randn(shape, generator=generator),
        bias_O=torch.randn(shape[0], generator=generator) if bias else None,
    )


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("bias", [False, True])
def test_packed_products_equal_the_plain_ones(shape: tuple[int, int], bias: bool) -> None:
    weight = weight_of(shape, bias)
    x_RI = torch.randn(37, shape[1])
    expected_RO = x_RI.double() @ weight.weight_OI.double().t() + (0 if weight.bias_O is None else weight.bias_O)
    for product in (PackedProduct(weight), PlainProduct(weight)):
        torch.testing.assert_close(product(x_RI), expected_RO.float(), rtol=1e-5, atol=2e-4)


@given(st.integers(0, len(SHAPES) - 1), st.integers(1, 2000), st.integers(0, 100), st.integers(0, 99))
@settings(max_examples=60, deadline=None)
def test_a_row_is_the_same_whatever_goes_with_it(shape: int, rows: int, before: int, seed: int) -> None:
    weight = weight_of(SHAPES[shape], bias=bool(seed % 2))
    found = products_of([weight])
    (product,) = found.products
    count = found.padding(rows)
    x_RI = torch.randn(before + count + 64, SHAPES[shape][1], generator=torch.Generator().manual_seed(seed))
    whole_RO = product(x_RI)
    assert torch.equal(product(x_RI[before : before + count]), whole_RO[before : before + count])


@pytest.mark.parametrize("threads", [1, 2])
def test_rows_of_a_plain_product_have_the_same_bits_in_any_number(threads: int) -> None:
    """As linear layers of torch with 1024 inputs do not: their kernels are others for many rows."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        weight = weight_of((1024, 1024), bias=True)
        x_RI = torch.randn(1030, 1024, generator=torch.Generator().manual_seed(0))
        whole_RO = PlainProduct(weight)(x_RI)
        with InBlocks():
            layer_RO = F.linear(x_RI, weight.weight_OI, weight.bias_O)
            assert layer_RO.shape == whole_RO.shape
            for rows in (1, 2, 7, 33, 64, 129, 1000):
                for first in (0, 5):
                    some = slice(first, first + rows)
                    assert torch.equal(PlainProduct(weight)(x_RI[some]), whole_RO[some])
                    assert torch.equal(F.linear(x_RI[some], weight.weight_OI, weight.bias_O), layer_RO[some])
    finally:
        torch.set_num_threads(before)


@given(st.integers(1, 3000))
def test_padding_is_the_next_multiple(rows: int) -> None:
    padding = RowPadding(few=4, many=8)
    assert padding(rows) == next(n for n in range(rows, rows + 9) if n % (4 if rows <= 64 else 8) == 0)


class WrongAtFour:
    """Four rows give other bits than more rows."""

    def __init__(self, weight: Weight) -> None:
        self._right = PlainProduct(weight)

    def __call__(self, x_RI: torch.Tensor) -> torch.Tensor:
        found = self._right(x_RI)
        return torch.nextafter(found, found + 1) if len(x_RI) == 4 else found


class FarOff(WrongAtFour):
    """Wrong by far."""

    def __call__(self, x_RI: torch.Tensor) -> torch.Tensor:
        return 2 * self._right(x_RI)


class Missing:
    """An operator that this build of torch lacks."""

    def __init__(self, weight: Weight) -> None:
        raise AttributeError("no such operator")


@pytest.mark.parametrize(
    ("stale", "message"), [(WrongAtFour, "rows differ"), (FarOff, "off by"), (Missing, "no such operator")]
)
def test_plain_products_are_used_where_packed_ones_do_not_work(
    stale: type[Product], message: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(products, "PackedProduct", stale)
    with caplog.at_level(logging.WARNING):
        found = products_of([weight_of((96, 64), bias=False)])
    assert isinstance(found.products[0], PlainProduct)
    assert found.padding == products.plain_padding()
    assert message in caplog.text
