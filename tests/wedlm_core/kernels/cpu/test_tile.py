"""The matrix micro-kernel is correct at every shape, and a row's bits do not depend on the other rows."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from wedlm_core.kernels.cpu.tile import MULTIPLIERS, ROWS

Array = np.ndarray[tuple[int, ...], np.dtype[np.float32]]


def noise(*shape: int, seed: int) -> Array:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


LANES = 16


def product(a: Array, b: Array, c: Array, *, fresh: bool) -> None:
    """The product of arrays whose rows may be parts of longer ones."""
    (a_at, a_step), (b_at, b_step), (c_at, c_step) = (
        (x.__array_interface__["data"][0], x.strides[0] // x.itemsize) for x in (a, b, c)
    )
    (rows, depth), columns = a.shape, b.shape[1]
    multiply = MULTIPLIERS[{"uint16": "bfloat16"}.get(b.dtype.name, b.dtype.name)]
    multiply(a_at, a_step, b_at, b_step, LANES, b_at, c_at, c_step, rows, depth, columns, fresh)


@pytest.mark.parametrize("columns", [48, 117])
@pytest.mark.parametrize("rows", range(1, ROWS + 1))
def test_groups_of_columns_may_be_far_from_each_other(rows: int, columns: int) -> None:
    depth, groups = 24, -(-columns // LANES)
    a, b = noise(rows, depth, seed=0), noise(depth, LANES * groups, seed=1)
    apart = np.ascontiguousarray(b.reshape(depth, groups, LANES).swapaxes(0, 1))
    want, found = np.zeros((2, rows, columns), dtype=np.float32)
    product(a, b[:, :columns], want, fresh=True)
    at = [x.__array_interface__["data"][0] for x in (a, apart, found)]
    MULTIPLIERS["float32"](at[0], depth, at[1], LANES, depth * LANES, at[1], at[2], columns, rows, depth, columns, True)
    np.testing.assert_array_equal(found, want)


@pytest.mark.parametrize("columns", [1, 15, 64, 101])
@pytest.mark.parametrize("depth", [1, 64])
@pytest.mark.parametrize("rows", range(1, ROWS + 1))
def test_a_product_of_parts_of_larger_arrays(rows: int, depth: int, columns: int) -> None:
    a, b, c = noise(4, depth + 3, seed=0), noise(depth, columns + 5, seed=1), noise(5, columns + 2, seed=2)
    before = c.copy()
    exact = a[:rows, :depth].astype(np.float64) @ b[:, :columns].astype(np.float64)
    product(a[:rows, :depth], b[:, :columns], c[:rows, :columns], fresh=False)
    np.testing.assert_allclose(c[:rows, :columns], before[:rows, :columns] + exact, rtol=1e-5, atol=1e-4)
    product(a[:rows, :depth], b[:, :columns], c[:rows, :columns], fresh=True)
    np.testing.assert_allclose(c[:rows, :columns], exact, rtol=1e-5, atol=1e-4)
    np.testing.assert_array_equal(c[rows:], before[rows:], "rows after the product are left alone")
    np.testing.assert_array_equal(c[:, columns:], before[:, columns:], "columns after it are left alone")
    narrow = torch.from_numpy(b).bfloat16()
    wide, found = narrow.float().numpy(), np.zeros_like(c)
    product(a[:rows, :depth], wide[:, :columns], c[:rows, :columns], fresh=True)
    product(a[:rows, :depth], narrow.view(torch.uint16).numpy()[:, :columns], found[:rows, :columns], fresh=True)
    np.testing.assert_array_equal(found[:rows, :columns], c[:rows, :columns], "bfloat16 gives the bits of float32")
    byte = np.random.default_rng(3).integers(-128, 128, b.shape).astype(np.int8)
    product(a[:rows, :depth], byte.astype(np.float32)[:, :columns], c[:rows, :columns], fresh=True)
    product(a[:rows, :depth], byte[:, :columns], found[:rows, :columns], fresh=True)
    np.testing.assert_array_equal(found[:rows, :columns], c[:rows, :columns], "so does int8")


def test_an_element_has_the_same_bits_alone_and_beside_others() -> None:
    a, b, c = noise(4, 24, seed=3), noise(24, 70, seed=4), np.empty((4, 70), dtype=np.float32)
    product(a, b, c, fresh=True)
    alone = np.empty((4, 70), dtype=np.float32)
    for r in range(4):
        for j in range(70):
            product(a[r : r + 1], b[:, j : j + 1], alone[r : r + 1, j : j + 1], fresh=True)
    np.testing.assert_array_equal(alone, c)
