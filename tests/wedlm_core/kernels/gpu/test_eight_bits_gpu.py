"""Products of int8 rows with int8 and int4 weights have the bits of the layers' plain arithmetic, whatever the tiles.

So have norms and gates that round their rows, and a decoder made of both. Without a GPU the kernels are interpreted.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from testing.engine.models import random_decoder
from wedlm_core.config.model import INT4_GROUP, MOST_EXACT_INPUTS
from wedlm_core.kernels.rounding import RoundedRows, rounded
from wedlm_core.model import int8
from wedlm_core.model.decoder_gpu import DecoderGpu, disagreement
from wedlm_core.model.int4 import expanded
from wedlm_core.model.int8 import exact_sums, scaled
from wedlm_core.model.int8_gpu import (
    Tiles,
    _int4_tiles_of,
    multiply_int4_gpu,
    multiply_int8_gpu,
    rounded_gpu,
    tiles_of,
)
from wedlm_core.model.quantised import quantise

pytest.importorskip("triton", reason="triton is not installed")

from wedlm_core.kernels.gpu import eight_bits_gpu, layer_gpu
from wedlm_core.kernels.gpu.layer_gpu import add_rms_norm, add_rms_norm_int8, silu_mul, silu_mul_int8

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
DTYPES = [torch.float32, torch.bfloat16]
_ROWS, _OUTPUTS = (1, 17, 33, 65, 160, 4096), (48, 6000, 20_000)
OTHERS = (Tiles(rows=16, outputs=32, inputs=64, band=1), Tiles(rows=32, outputs=32, inputs=128, band=3))
SMALLEST = Tiles(rows=16, outputs=64, inputs=32, weights_first=True, band=1)
TILES = {
    8: [*(tiles_of(rows, outputs) for rows in _ROWS for outputs in _OUTPUTS), *OTHERS, SMALLEST],
    4: [*(_int4_tiles_of(rows, hopper=hopper) for rows in _ROWS for hopper in (True, False)), *OTHERS],
}
"""By the bits of weights."""


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Rounded rows, and the parts of an output layer besides its weights.

    Attributes:
        rows: R rows of I numbers.
        scale_O: float32.
        bias_O: or None.
        dtype: of the result.
        generator: for the weights.
        extreme: whether the weights are the largest there are, or the smallest.
    """

    rows: RoundedRows
    scale_O: Tensor
    bias_O: Tensor | None
    dtype: torch.dtype
    generator: torch.Generator
    extreme: bool

    def weights(self, bits: int) -> tuple[Tensor, ...]:
        """Of Int8Linear, ``[O, I]``; or of Int4Linear: nibbles ``[O, I / 2]`` and multipliers ``[O, I / 32]``."""
        outputs, inputs = len(self.scale_O), self.rows.byte_RI.shape[1]
        if bits == 8:
            return (_bytes(outputs, inputs, self.generator, extreme=self.extreme).to(DEVICE),)
        halves = torch.randint(0, 15, (2, outputs, inputs // 2), generator=self.generator)
        multiplier = torch.randint(1, 19, (outputs, inputs // INT4_GROUP), generator=self.generator)
        if self.extreme:
            halves, multiplier = halves % 2 * 14, torch.full_like(multiplier, 18)
        low, high = (halves + 1).to(torch.uint8)
        return (low | (high << 4)).to(DEVICE), multiplier.to(torch.uint8).to(DEVICE)


def _bytes(rows: int, width: int, generator: torch.Generator, *, extreme: bool) -> Tensor:
    found = torch.randint(-127, 128, (rows, width), generator=generator)
    return (torch.where(found > 0, 127, -127) if extreme else found).to(torch.int8)


def some_problem(
    rows: int, outputs: int, inputs: int, seed: int, *, bias: bool, dtype: torch.dtype, extreme: bool = False
) -> Problem:
    generator = torch.Generator().manual_seed(seed)
    byte_RI = _bytes(rows, inputs, generator, extreme=extreme)
    scale_R, scale_O, bias_O = (torch.randn(size, generator=generator) for size in (rows, outputs, outputs))
    return Problem(
        rows=RoundedRows(byte_RI.to(DEVICE), (3 * scale_R).exp().mul(1e-3).to(DEVICE)),
        scale_O=(3 * scale_O).exp().mul(1e-3).to(DEVICE),
        bias_O=bias_O.to(dtype).to(DEVICE) if bias else None,
        dtype=dtype,
        generator=generator,
        extreme=extreme,
    )


def check_product(one: Problem, weights: tuple[Tensor, ...], tiles: Tiles | None = None) -> None:
    """The kernel's product is that of plain arithmetic, bit for bit, NaN where NaN is expected."""
    (byte_RI, scale_R), parts = one.rows, (one.scale_O, one.bias_O, one.dtype)
    if len(weights) == 1:
        weight_OI, found = weights[0], multiply_int8_gpu(one.rows, *weights, *parts, tiles)
    else:
        weight_OI, found = expanded(*weights), multiply_int4_gpu(one.rows, *weights, *parts, tiles)
    want = scaled(exact_sums(byte_RI, weight_OI), scale_R, *parts)
    assert found.dtype == want.dtype
    torch.testing.assert_close(found, want, rtol=0, atol=0, equal_nan=True)


@given(
    bits=st.sampled_from([8, 4]), rows=st.integers(1, 140), outputs=st.integers(1, 150), seed=st.integers(0, 2**31),
    bias=st.booleans(), dtype=st.sampled_from(DTYPES), extreme=st.booleans(),
    inputs=st.sampled_from([1, 24, 256, 300, 640]), tiles=st.none() | st.integers(0, 20),
)  # fmt: skip
@example(bits=8, rows=1, outputs=1, seed=0, bias=True, dtype=torch.bfloat16, extreme=False, inputs=256, tiles=None)
@example(bits=4, rows=1, outputs=1, seed=0, bias=True, dtype=torch.bfloat16, extreme=False, inputs=256, tiles=None)
@settings(max_examples=20, deadline=None)
def test_products_are_those_of_plain_arithmetic(
    bits: int, rows: int, outputs: int, seed: int, bias: bool, dtype: torch.dtype, extreme: bool, inputs: int,
    tiles: int | None,
) -> None:  # fmt: skip
    inputs = inputs if bits == 8 else -(-inputs // INT4_GROUP) * INT4_GROUP
    one = some_problem(rows, outputs, inputs, seed, bias=bias, dtype=dtype, extreme=extreme)
    check_product(one, one.weights(bits), None if tiles is None else TILES[bits][tiles % len(TILES[bits])])


@pytest.mark.sweep(3)
@pytest.mark.parametrize(
    ("bits", "tiles"), [(bits, one) for bits, some in TILES.items() for one in dict.fromkeys(some)]
)
def test_products_with_every_kind_of_tiles(bits: int, tiles: Tiles) -> None:
    """More than one tile of rows and two bands of outputs, neither whole; and whole ones."""
    outputs = tiles.band * tiles.outputs + tiles.outputs + 5
    for rows, inputs in (
        (tiles.rows + 3, 2 * tiles.inputs + INT4_GROUP),
        (tiles.rows, tiles.inputs),
        (1, tiles.inputs),
    ):
        one = some_problem(rows, outputs, inputs, 1, bias=True, dtype=torch.float32)
        check_product(one, one.weights(bits), tiles)


@pytest.mark.parametrize("bits", [8, 4])
def test_sums_of_the_widest_layer_fit(bits: int) -> None:
    inputs = MOST_EXACT_INPUTS // INT4_GROUP * INT4_GROUP
    one = some_problem(1, 5, inputs, 2, bias=True, dtype=torch.float32, extreme=True)
    one.rows.byte_RI[0] = 127
    weights = one.weights(bits)
    weights[0][-1], weights[0][-2] = (127, -127) if bits == 8 else (15 | 15 << 4, 1 | 1 << 4)
    check_product(one, weights, None if DEVICE.type == "cuda" else Tiles(rows=16, outputs=16, inputs=1024, band=1))
    if bits == 8:
        sums = exact_sums(one.rows.byte_RI, weights[0])
        assert sums[0, -1] == -sums[0, -2] == 127**2 * inputs


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_row_that_is_no_number_stays_one_and_changes_no_other(value: float) -> None:
    one = some_problem(40, 50, 96, 3, bias=True, dtype=torch.float32)
    x = torch.randn(40, 96, generator=torch.Generator().manual_seed(4)).to(DEVICE)
    int8, int4 = one.weights(8), one.weights(4)
    broken = x.clone()
    broken[13, 7] = value
    for form in (
        lambda rows: multiply_int8_gpu(rows, *int8, one.scale_O, one.bias_O, one.dtype),
        lambda rows: multiply_int4_gpu(rows, *int4, one.scale_O, one.bias_O, one.dtype),
    ):
        want, found = form(rounded_gpu(x)), form(rounded_gpu(broken))
        assert found[13].isnan().all()
        others = torch.arange(40, device=DEVICE) != 13
        assert torch.equal(found[others], want[others])
        assert want.isfinite().all()


def assert_rounded(found: RoundedRows, plain: Tensor) -> None:
    """The bytes and scales of the plain kernel's rows; on a GPU, which may fuse its multiply-adds, nearly so."""
    want = rounded(plain)
    assert found.byte_RI.dtype == torch.int8
    if DEVICE.type == "cpu":
        assert torch.equal(found.byte_RI, want.byte_RI)
        assert torch.equal(found.scale_R, want.scale_R)
        return
    step = 2**-7 if plain.dtype == torch.bfloat16 else 1e-6
    assert int((found.byte_RI.int() - want.byte_RI.int()).abs().max()) <= 1
    torch.testing.assert_close(found.scale_R, want.scale_R, rtol=step, atol=0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("delta", [True, False])
@pytest.mark.parametrize("size", [56, 1500])
def test_a_norm_rounds_its_rows(size: int, delta: bool, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(size)
    x, more, weight = (torch.randn(rows, size, generator=generator).to(DEVICE, dtype) for rows in (7, 7, 1))
    x[2] = 0
    more[2] = 0
    kept = x.clone()
    want = add_rms_norm(kept, more if delta else None, weight[0], 1e-6)
    found = add_rms_norm_int8(x, more if delta else None, weight[0], 1e-6)
    assert_rounded(found, want)
    assert torch.equal(x, kept), "the sum of the two is the same"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [48, 1500])
def test_a_gate_rounds_its_rows(size: int, dtype: torch.dtype) -> None:
    gate_up = 4 * torch.randn(5, 2 * size, generator=torch.Generator().manual_seed(size))
    gate_up[1] = 0
    gate_up = gate_up.to(DEVICE, dtype)
    assert_rounded(silu_mul_int8(gate_up), silu_mul(gate_up))


@pytest.mark.parametrize("form", [lambda x: add_rms_norm_int8(x, None, x[0], 1e-6), silu_mul_int8])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_rows_that_are_no_numbers_have_no_scale(form: Callable[[Tensor], RoundedRows], value: float) -> None:
    x = torch.ones(3, 40).to(DEVICE)
    x[1, 7] = value
    assert form(x).scale_R.isnan().tolist() == [False, True, False]


@contextmanager
def gpu_products(use: bool) -> Iterator[None]:
    """Whether the layers multiply by Triton kernels, on any device."""
    places = [f"wedlm_core.model.{name}.has_gpu_kernels" for name in ("int8", "int4")]
    with patch(places[0], return_value=use), patch(places[1], return_value=use):
        yield


def mixing(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Something that depends on all three, in the shape of attention."""
    return q + (k - v).repeat_interleave(q.shape[-2] // k.shape[-2], dim=-2) / (layer + 1)


@pytest.mark.parametrize("weights", ["int8", "int4"])
@pytest.mark.parametrize("qwen3", [True, False])
def test_a_quantised_decoder(qwen3: bool, weights: str) -> None:
    model = quantise(random_decoder(qwen3=qwen3, seed=4), weights).to(DEVICE)
    ids, positions = torch.tensor([[5, 300, 5, 17], [0, 1, 2, 400]], device=DEVICE)
    with torch.no_grad():
        with gpu_products(False):
            plain = model(ids, positions, mixing)
            model.packed_forward = DecoderGpu(model)
            want = model.logits(model(ids, positions, mixing))
        with gpu_products(True):
            hidden = model(ids, positions, mixing)
            assert torch.equal(model.logits(hidden), want), "kernels of products change no bit"
            assert disagreement(model, range(3)) is None
    # Between the layers' operations the last bit of a row may be a step of its rounding.
    assert (hidden - plain).abs().max() <= 1e-2 * plain.abs().max()


@pytest.mark.parametrize("bits", [8, 4])
def test_only_tiles_that_are_full_of_rows_are_read_without_a_mask(bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory read after the last row may have no owner; results would not show it."""
    launched = list[dict[str, Any]]()

    class Spy:
        def __getitem__(self, grid: object) -> Callable[..., None]:
            return lambda *_, **options: launched.append(options)

    monkeypatch.setattr(eight_bits_gpu, f"multiply_int{bits}", Spy())
    for rows in (1, 15, 16, 17, 32, 64, 100, 128, 129, 256):
        one = some_problem(rows, 48, 64, 0, bias=False, dtype=torch.float32)
        if bits == 8:
            multiply_int8_gpu(one.rows, *one.weights(8), one.scale_O, None, one.dtype)
        else:
            multiply_int4_gpu(one.rows, *one.weights(4), one.scale_O, None, one.dtype)
        assert launched[-1]["FULL"] == (rows % launched[-1]["BLOCK_R"] == 0)
    assert {options["FULL"] for options in launched} == {True, False}


def test_rows_are_rounded_where_norms_and_gates_are_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    model, calls = quantise(random_decoder(qwen3=True, seed=4).to(DEVICE), "int8"), Counter[str]()

    def counted(name: str) -> Callable[..., Any]:
        plain = getattr(layer_gpu, name)
        return lambda *given: (calls.update([name]), plain(*given))[1]

    for name in ("add_rms_norm", "add_rms_norm_int8", "silu_mul", "silu_mul_int8"):
        monkeypatch.setattr(layer_gpu, name, counted(name))
    ids = torch.tensor([5, 300, 9, 17], device=DEVICE)
    with torch.inference_mode():
        DecoderGpu(model)(ids, ids % 7, lambda _layer, q, k, v: q)
    layers = len(model.layers)
    assert calls == {"add_rms_norm_int8": 2 * layers, "silu_mul_int8": layers, "add_rms_norm": 1}, "the last norm"


def test_every_kind_of_tiles_is_tried_on_a_device_before_use(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = list[Tiles]()
    plain = int8.multiply_int8_gpu
    monkeypatch.setattr(int8, "multiply_int8_gpu", lambda *given: (tried.append(given[-1]), plain(*given))[1])
    assert int8.why_no_gpu_products.__wrapped__(DEVICE) is None
    outputs = (1, 96, 1024, 4096, 4097, 6144, 16383, 16384, 24576, 151936)
    assert set(tried) == {tiles_of(rows, some) for rows in (*range(1, 600), 1024, 8192) for some in outputs}


def test_products_that_cut_off_large_sums_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    assert int8.why_no_gpu_products.__wrapped__(DEVICE) is None
    plain = int8.multiply_int8_gpu
    monkeypatch.setattr(int8, "multiply_int8_gpu", lambda *given: plain(*given).clamp(-(2.0**20), 2.0**20 + 2**21))
    assert "cuts off" in str(int8.why_no_gpu_products.__wrapped__(DEVICE))
    monkeypatch.setattr(int8, "multiply_int8_gpu", lambda *given: 1 / 0)
    assert "ZeroDivisionError" in str(int8.why_no_gpu_products.__wrapped__(DEVICE))
