"""Weights in panels are the weights that were packed, in any number of threads and pages of any size."""

from __future__ import annotations

import mmap
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from testing.engine.numbers import marked
from wedlm_core.errors import IntegrityError
from wedlm_core.kernels.cpu.panel_products import PANEL, numbers_here, numeric_kind
from wedlm_core.model import panels
from wedlm_core.model.int8 import Int8Linear
from wedlm_core.model.panels import PanelWeight, pack, units_of


@pytest.mark.parametrize("numbers", marked(numbers_here()))
@given(outputs=st.integers(1, 300), inputs=st.integers(1, 150), threads=st.integers(1, 3))
@settings(max_examples=40, deadline=None)
def test_what_is_packed_can_be_read_back(numbers: str, outputs: int, inputs: int, threads: int) -> None:
    generator, kind = torch.Generator().manual_seed(outputs), numeric_kind(numbers)
    if kind in ("int8", "int16"):
        weight_OI = torch.randint(-127, 128, (outputs, inputs), generator=generator, dtype=torch.int8)
    else:
        weight_OI = torch.randn(outputs, inputs, generator=generator).to(getattr(torch, kind))
    before = torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(panels, "_THREAD_BYTES", 1)
        torch.set_num_threads(threads)
        packed = pack(weight_OI, numbers)
        torch.set_num_threads(before)
    found_OI = packed.rows(torch.arange(outputs))
    half, units = PANEL // 2, units_of(inputs, numbers)
    assert packed.data.shape[:4] == (-(-outputs // PANEL), PANEL // half, units, half)
    assert packed.depth == units_of(inputs, numbers)
    zero = 128 if kind == "int8" else 0
    all_PI = packed.data.transpose(2, 3).reshape(-1, packed.data.shape[2] * packed.data.shape[4])
    assert (all_PI[outputs:] == zero).all()
    assert torch.equal(found_OI, weight_OI.float())
    assert (all_PI[:, inputs:] == zero).all()


@pytest.mark.parametrize("numbers", marked(dict.fromkeys((*numbers_here(), "bfloat16"))))
@given(outputs=st.integers(1, 300), inputs=st.integers(1, 150), seed=st.integers(0, 2**31))
@settings(max_examples=40, deadline=None)
def test_a_table_gives_the_rows_of_its_tokens(numbers: str, outputs: int, inputs: int, seed: int) -> None:
    generator, kind = torch.Generator().manual_seed(seed), numeric_kind(numbers)
    scale_O = None
    if kind in ("int8", "int16"):
        weight_OI = torch.randint(-127, 128, (outputs, inputs), generator=generator, dtype=torch.int8)
        scale_O = torch.rand(outputs, generator=generator)
    else:
        weight_OI = torch.randn(outputs, inputs, generator=generator).to(getattr(torch, kind))
        weight_OI[0, 0], weight_OI[-1, -1] = float("nan"), -0.0
    packed = pack(weight_OI, numbers, scale_O=scale_O)
    ids = torch.randint(0, outputs, (17,), generator=generator)
    ids[0], ids[1] = 0, outputs - 1
    out = torch.full((17, inputs), 7.0)
    packed.look_up(ids, out, len(ids))
    assert torch.equal(out.view(torch.int32), packed.rows(ids).view(torch.int32))
    for wrong in (-1, len(packed.data) * PANEL, 2**40):
        with pytest.raises(IntegrityError, match=f"of a table of {outputs} rows"):
            packed.look_up(torch.tensor([0, wrong]), out, 2)


def test_a_transposed_weight_is_packed_as_it_reads() -> None:
    weight_IO = torch.randn(70, 130)
    assert torch.equal(pack(weight_IO.t(), "float32").rows(torch.arange(130)), weight_IO.t())


@pytest.mark.parametrize("refused", [False, True])
def test_large_memory_can_be_written_and_outlives_its_maker(refused: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    class Refusing(mmap.mmap):
        def madvise(self, *arguments: int) -> None:
            raise OSError("no large pages")

    monkeypatch.setattr(panels, "_FEWEST_BYTES", 1000)
    if refused:
        monkeypatch.setattr(mmap, "mmap", Refusing)
    for count in (10, 1000, 5_000_000):
        found = panels._large(count)
        found.fill_(7)
        assert found.shape == (count,)
        assert found.dtype == torch.uint8
        assert int(found[-1]) == 7


@pytest.mark.parametrize("numbers", marked(numbers_here()))
@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@given(
    outputs=st.integers(1, 300), inputs=st.integers(1, 150), seed=st.integers(0, 2**31),
    cuts=st.lists(st.integers(0, 300), max_size=5), at_once=st.integers(1, 5000),
)  # fmt: skip
@settings(max_examples=40, deadline=None)
def test_what_is_put_in_pieces_is_what_is_packed(
    numbers: str, stored: torch.dtype, outputs: int, inputs: int, seed: int, cuts: list[int], at_once: int
) -> None:
    """In any pieces and any order, from files of any numbers: rounded as the layers that are packed afterwards."""
    generator, kind = torch.Generator().manual_seed(seed), numeric_kind(numbers)
    weight_OI = (10 * torch.randn(outputs, inputs, generator=generator)).to(stored)
    bias_O = torch.randn(outputs, generator=generator)
    if kind in ("int8", "int16"):
        layer = Int8Linear(outputs, inputs)
        layer.put(0, weight_OI)
        wanted = pack(layer.weight, numbers, scale_O=layer.scale_O, bias_O=bias_O)
    else:
        wanted = pack(weight_OI.to(getattr(torch, kind)), numbers, bias_O=bias_O)
    found = PanelWeight.empty(outputs, inputs, numbers)
    edges = sorted({0, outputs, *(cut for cut in cuts if cut < outputs)})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(panels, "_PUT_NUMBERS", at_once)
        patch.setattr(panels, "_PUT_BFLOAT16", at_once)
        for first, last in reversed(list(pairwise(edges))):
            found.put(first, weight_OI[first:last])
            assert found.holds(first, weight_OI[first:last])
    found = found.with_bias(bias_O)
    for one, other in ((found.data, wanted.data), (found.scale, wanted.scale), (found.bias, wanted.bias)):
        assert torch.equal(one, other)


def test_threads_put_outputs_of_one_panel_at_the_same_time() -> None:
    weight_OI = torch.randn(513, 70)
    found, edges = PanelWeight.empty(513, 70, "float32"), list(range(0, 514, 3))
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda a, b: found.put(a, weight_OI[a:b]), edges, edges[1:]))
    assert torch.equal(found.data, pack(weight_OI, "float32").data)
