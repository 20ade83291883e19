"""How the Triton backend divides a forward, and its kernels' records of tiles."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from testing.engine.attention import make_case, model_shape
from wedlm_core.attention import DeviceRows
from wedlm_core.attention.oracle import OracleAttention
from wedlm_core.attention.paged_gpu import Launch, Processor, TritonPlan
from wedlm_core.kv.pool import KVPool

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
HOPPER = Processor(count=132, shared=233472, major=9)
AMPERE = Processor(count=108, shared=167936, major=8)
SMALL = Launch(block_q=4, block_n=32, splits=1, warps=1, stages=1, skip_mask=False)


def device_rows(counts: list[int], cached: list[int], padding: int = 0, max_rows: int | None = None) -> DeviceRows:
    lengths = [0 if count == 0 else count + before for count, before in zip(counts, cached, strict=True)]
    return DeviceRows(
        cu_rows_Z=torch.tensor([0, *np.cumsum(counts)], dtype=torch.int32, device=DEVICE),
        kv_lengths_S=torch.tensor(lengths, dtype=torch.int32, device=DEVICE),
        pages_SP=torch.zeros(len(counts), 64, dtype=torch.int32, device=DEVICE),
        max_rows=max_rows or max(1, *counts),
        max_kv=4096,
        total=sum(counts) + padding,
    )


def plan_of(
    rows: DeviceRows, *, group: int = 2, dtype: torch.dtype = torch.bfloat16, head_dim: int = 128, page_size: int = 64,
    invariant: bool = False, launch: Launch | None = None,
) -> TritonPlan:  # fmt: skip
    pool = KVPool(model_shape(8 * group, 8, head_dim), 4, page_size, device=DEVICE, dtype=dtype)
    return TritonPlan(rows, pool, 8 * group, batch_invariant=invariant, launch=launch)


def decoding(sequences: int, rows: int = 1, **bounds: int) -> DeviceRows:
    return device_rows([rows] * sequences, [256] * sequences, **bounds)


def expected_places(rows: DeviceRows, total: int, block_q: int) -> list[tuple[int, int, int, int]]:
    """Tile by tile: sequence, first row, rows (0: none), KV index of the first row; the last sequence is padding."""
    starts, lengths = rows.cu_rows_Z.tolist(), rows.kv_lengths_S.tolist()
    found = []
    for s, (begin, end) in enumerate(zip(starts, [*starts[1:], total], strict=True)):
        last = s == len(lengths)
        cached = (0 if last else lengths[s]) - (end - begin)
        for number in range(begin // block_q + s, end // block_q + s + 1):
            row = (number - begin // block_q - s) * block_q
            found.append((-1 if last else s, begin + row, max(0, min(block_q, end - begin - row)), cached + row))
    return found


@given(
    sequences=st.lists(st.tuples(st.sampled_from([0, 0, 1, 1, 2, 5, 16, 17, 70]), st.integers(0, 99)), min_size=1),
    padding=st.integers(0, 80),
    block_q=st.sampled_from([1, 2, 8, 16]),
)
@settings(max_examples=10, deadline=None)
def test_records_say_what_every_tile_is(sequences: list[tuple[int, int]], padding: int, block_q: int) -> None:
    counts, cached = (list(column) for column in zip(*sequences, strict=True))
    rows = device_rows(counts, cached, padding)
    launch = replace(SMALL, block_q=block_q)
    plan = plan_of(rows, launch=launch)
    places_N4 = plan.places(rows.total, launch)
    assert plan.places(rows.total, launch) is places_N4, "all layers of a forward share them"
    found = [(s, first, max(0, count), key) for s, first, count, key in places_N4.tolist()]
    assert found == expected_places(rows, rows.total, block_q)
    covered = [first + row for _, first, count, _ in found for row in range(count)]
    assert sorted(covered) == list(range(rows.total)), "every row is in one tile, padding too"
    kinds = (replace(launch, most_rows=4), replace(launch, least_rows=5))
    covered = [
        first + row
        for kind in kinds
        for _, first, count, _ in plan_of(rows, launch=kind).places(rows.total, kind).tolist()
        for row in range(count)
    ]
    assert sorted(covered) == list(range(rows.total)), "of two kinds too"


@pytest.mark.sweep(3)
@pytest.mark.parametrize(("splits", "skip_mask"), [(1, True), (1, False), (2, False), (5, True)])
@pytest.mark.parametrize(("block_q", "block_n"), [(1, 16), (8, 64)])
def test_any_launch_computes_the_same(splits: int, skip_mask: bool, block_q: int, block_n: int) -> None:
    case = make_case(
        [(1, 130), (9, 0), (5, 63), (1, 0)], heads=4, kv_heads=2, head_dim=16, page_size=32, device=DEVICE.type
    )
    launch = Launch(block_q=block_q, block_n=block_n, splits=splits, warps=1, stages=1, skip_mask=skip_mask)
    rows = DeviceRows.of(case.rows, DEVICE)
    q_THD = torch.cat([case.q_THD, torch.full((3, 4, 16), torch.nan, device=DEVICE)])  # padding of the call alone
    found = TritonPlan(rows, case.pool, 4, batch_invariant=False, launch=launch).attend(0, q_THD)
    expected = OracleAttention().plan(case.rows, case.pool, 4).attend(0, case.q_THD)
    torch.testing.assert_close(found[:-3], expected, rtol=1e-5, atol=1e-5)
    assert not found[-3:].any()


def test_what_ranges_did_not_write_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranges without keys leave their part of the scratch memory as it was, here NaN."""
    case = make_case([(3, 10), (1, 70)], heads=4, kv_heads=2, head_dim=16, page_size=16, device=DEVICE.type)
    plain = torch.empty

    def noise(*shape: int, **options: object) -> torch.Tensor:
        made = plain(*shape, **options)  # type: ignore[call-overload]
        return made.fill_(torch.nan) if made.dtype == torch.float32 else made

    plan = TritonPlan(
        DeviceRows.of(case.rows, DEVICE), case.pool, 4, batch_invariant=False, launch=replace(SMALL, splits=7)
    )
    q_THD = torch.cat([case.q_THD, case.q_THD[:2]])
    with monkeypatch.context() as patch:
        patch.setattr(torch, "empty", noise)
        found = plan.attend(0, q_THD)
    expected = OracleAttention().plan(case.rows, case.pool, 4).attend(0, case.q_THD)
    torch.testing.assert_close(found[:4], expected, rtol=1e-5, atol=1e-5)
    assert not found[4:].any()


@pytest.mark.parametrize("group", [2, 4])
def test_decoding_has_small_tiles_and_one_loop_in_any_graph(group: int) -> None:
    for sequences in (1, 8, 64, 256):
        own, general = decoding(sequences), decoding(sequences, max_rows=sequences)  # bounds of any forward of its size
        chosen = {plan_of(rows, group=group).choose(HOPPER) for rows in (own, general)}
        assert len(chosen) == 1
        launch = chosen.pop()
        assert (launch.block_q * group, launch.warps, launch.block_n, launch.skip_mask) == (16, 2, 32, False)
        assert 2 * launch.block_n * 128 * 2 * launch.stages <= HOPPER.shared // 3, "several on a multiprocessor"


def test_small_tiles_are_left_to_what_fits_their_registers() -> None:
    rows = decoding(64)
    for plan in (
        plan_of(rows, dtype=torch.float32), plan_of(rows, head_dim=256), plan_of(rows, head_dim=80),
        plan_of(rows, page_size=16), plan_of(rows, invariant=True), plan_of(decoding(8, rows=9)),
    ):  # fmt: skip
        assert plan.choose(HOPPER).warps >= 4
    assert plan_of(rows).choose(AMPERE).warps == 4


def test_kv_is_split_where_programs_are_few() -> None:
    splits = [plan_of(decoding(sequences)).choose(HOPPER).splits for sequences in (1, 8, 16, 64, 256)]
    assert splits == [16, 4, 2, 1, 1]  # of long sequences
    assert plan_of(replace(decoding(1), max_kv=64)).choose(HOPPER).splits == 2, "no more than there are blocks"
    assert plan_of(decoding(1)).choose(HOPPER, splits=3).splits == 3
    assert plan_of(decoding(1)).choose(None).splits == 1


def test_short_kv_is_not_split_in_two() -> None:
    assert [plan_of(replace(decoding(n), max_kv=1024)).choose(HOPPER).splits for n in (8, 16)] == [4, 1]


def test_tiles_of_windows_and_prefill_have_64_query_rows_on_hopper() -> None:
    for rows in (decoding(64, rows=17, max_rows=64), decoding(8, rows=9, max_rows=16), device_rows([512], [0])):
        launch = plan_of(rows).choose(HOPPER)
        assert (launch.block_q, launch.block_n, launch.warps) == (32, 64, 4)
        assert launch.skip_mask == (rows.max_rows > 64), "prefill alone has a loop without a mask"
    ampere = plan_of(device_rows([512], [0])).choose(AMPERE)
    assert (ampere.block_q, ampere.block_n, ampere.warps, ampere.skip_mask) == (64, 32, 8, True)


def test_a_window_that_takes_two_tiles_has_a_larger_one() -> None:
    for rows in (17, 31, 32):
        launch = plan_of(decoding(64, rows=rows, max_rows=64), group=4).choose(HOPPER)
        assert (launch.block_q, launch.block_n, launch.warps, launch.skip_mask) == (32, 64, 8, False)
    for rows, most in ((16, 64), (33, 64), (24, 256)):  # the last are windows beside a prompt: it would slow them down
        assert plan_of(decoding(64, rows=rows, max_rows=most), group=4).choose(HOPPER).block_q == 16


def test_a_prompt_beside_many_decode_rows_has_larger_tiles_of_its_own() -> None:
    rows, decode_rows = device_rows([1] * 255 + [256], [99] * 256), decoding(256)
    short, prompt = plan_of(rows).launches_of(HOPPER)
    assert (short.block_q, short.least_rows, short.most_rows, short.skip_mask) == (8, 1, 8, False)
    assert (prompt.block_q, prompt.least_rows, prompt.skip_mask) == (32, 9, True)
    padded = replace(rows, max_rows=rows.total)  # as in a graph of any forward of its size
    assert plan_of(padded).launches_of(HOPPER) == (short, prompt)
    for one in (device_rows([1] * 8 + [512], [99] * 9), decode_rows, device_rows([512], [0])):
        assert len(plan_of(one).launches_of(HOPPER)) == 1, "tiles are large, or of one kind"
    for plan in (plan_of(rows, invariant=True), plan_of(rows, dtype=torch.float32)):
        assert len(plan.launches_of(HOPPER)) == 1


def test_both_kinds_of_tiles_compute_their_rows_and_the_padding() -> None:
    case = make_case(
        [(1, 70)] * 20 + [(70, 5), (3, 0), (5, 40)], heads=4, kv_heads=2, head_dim=64, page_size=32,
        dtype=torch.float16, device=DEVICE.type,
    )  # fmt: skip
    q_THD = torch.cat([case.q_THD, torch.full((12, 4, 64), torch.nan, dtype=torch.float16, device=DEVICE)])
    rows = replace(DeviceRows.of(case.rows, DEVICE), total=len(q_THD))
    plan = TritonPlan(rows, case.pool, 4, batch_invariant=False)
    assert len(plan.launches) == 2
    expected = OracleAttention().plan(case.rows, case.pool, 4).attend(0, case.q_THD)
    found = plan.attend(0, q_THD)
    torch.testing.assert_close(found[:-12], expected, rtol=4e-3, atol=4e-3)
    assert not found[-12:].any()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_nothing_depends_on_the_forward_if_batch_invariant(dtype: torch.dtype) -> None:
    forwards = (decoding(1), decoding(256), decoding(8, rows=9), decoding(1, rows=900), decoding(64, 17, max_rows=64))
    for processor in (HOPPER, AMPERE, None):
        launches = {plan_of(rows, dtype=dtype, invariant=True).choose(processor) for rows in forwards}
        assert len(launches) == 1
        assert not next(iter(launches)).skip_mask
        assert next(iter(launches)).splits == 1


@pytest.mark.parametrize("splits", [1, 3])
def test_a_row_that_is_no_number_stays_none(splits: int) -> None:
    """All of its scores are NaN, which a maximum may leave out: the join must not take it for a row without keys."""
    case = make_case([(2, 10), (1, 90)], heads=4, kv_heads=2, head_dim=16, page_size=32, device=DEVICE.type)
    plan = TritonPlan(
        DeviceRows.of(case.rows, DEVICE), case.pool, 4, batch_invariant=False, launch=replace(SMALL, splits=splits)
    )
    q_THD = case.q_THD.clone()
    q_THD[2] = torch.nan
    found = plan.attend(0, q_THD)
    assert found[2].isnan().all()
    assert not found[:2].isnan().any()
