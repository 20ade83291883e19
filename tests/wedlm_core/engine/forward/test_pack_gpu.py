"""Packing on the device gives the rows that packing on the host gives, whatever slack the host's bounds have."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from testing.engine.engines import loaded
from testing.engine.mixed_requests import request_of
from testing.engine.pack_oracle import Batch, pack, pick
from wedlm_core.config import EngineConfig
from wedlm_core.engine import Engine
from wedlm_core.engine.forward.groups import Group, flatten, gather_groups
from wedlm_core.engine.forward.logits import Picks
from wedlm_core.engine.forward.pack_gpu import Shape, pack_on_device, pick_on_device, plan_facts
from wedlm_core.engine.forward.runner import Runner
from wedlm_core.engine.scheduling.scheduler import ForwardPlan
from wedlm_core.engine.scheduling.slots import SlotTable


def with_slack(plan: ForwardPlan, rng: random.Random, most: int) -> ForwardPlan:
    """The plan as a host has it that does not wait: decode rows, and KV entries without prefill rows, are bounds."""
    slack_S = np.array([rng.randint(0, most) for _ in plan.sequences])
    return replace(
        plan,
        decode_S=plan.decode_S + np.where(plan.decode_S > 0, slack_S, 0),
        cached_S=plan.cached_S + np.where(plan.prefill_S > 0, 0, slack_S),
    )


def check(runner: Runner, plan: ForwardPlan, table: SlotTable, rng: random.Random) -> None:
    """Pack both ways; compare every row that is real, and every pick."""
    state, size = runner.state, runner.pool.page_size
    context_S = torch.from_numpy(plan.cached_S + plan.prefill_S)
    slots_D = plan.slots_S[: np.count_nonzero(plan.decode_S)]
    rows_D, bounds = plan.decode_S[: len(slots_D)], runner.bounds(table, slots_D)
    runs = bounds.runs(rows_D, bounds.next_rows(rows_D, table.left(slots_D)))
    groups = gather_groups(runs, state, torch.from_numpy(plan.slots_S), context_S)
    host = pack(plan, groups, state, size)
    layout = flatten(groups) if groups else None

    loose = with_slack(plan, rng, 3)
    counts_S = loose.prefill_S + loose.decode_S
    state.context_S[torch.from_numpy(plan.slots_S)] = context_S
    state.push_pages(plan.slots_S.tolist())
    shape = Shape(
        total=int(counts_S.sum()) + rng.randint(0, 5),
        max_rows=int(counts_S.max()),
        max_kv=int((loose.cached_S + counts_S).max()),
        wanted=int(bounds.wanted_rows(loose.decode_S[: len(slots_D)]).sum()),
    )
    device, first_S = pack_on_device(torch.from_numpy(plan_facts(loose)), layout, state, shape, size)
    real = host.rows.total
    for name in ("id_T", "position_T", "kv_entry_T"):
        assert torch.equal(getattr(device, name)[:real], getattr(host, name)), name
    assert device.id_T.shape == (shape.total,)
    assert (device.kv_entry_T[real:] == -1).all()
    assert device.rows.cu_rows_Z.tolist() == [*host.rows.starts_S.tolist(), real]
    assert device.rows.kv_lengths_S.tolist() == (plan.cached_S + host.rows.counts_S).tolist()
    deepest = host.rows.pages_SP.shape[1]
    assert torch.equal(device.rows.pages_SP[:, :deepest].long(), host.rows.pages_SP)
    if layout is not None:
        check_picks(groups, host, pick_on_device(groups, layout, device, first_S, shape))


def check_picks(groups: list[Group], host: Batch, found: Picks) -> None:
    expected = pick(groups, host)
    count = expected.row_R.shape[0]
    assert found.places == expected.places
    for name in ("row_R", "flat_R", "slot_R", "position_R"):
        assert torch.equal(getattr(found, name)[:count], getattr(expected, name)), name
    assert (found.flat_R[count:] == found.places).all()


@pytest.mark.parametrize("seed", range(3))
def test_device_pack_equals_host_pack(agreeing_folder: Path, seed: int) -> None:
    """On the states of real engines: all strategies mixed, chunked prefill, preemption, shared prefixes."""
    rng = random.Random(seed)
    config = EngineConfig(
        max_num_seqs=8, max_batch_rows=rng.choice([20, 64]), prefill_chunk=rng.choice([None, 3]), max_window=4,
        page_size=rng.choice([2, 8]), num_pages=rng.choice([40, 400]), overlap=False,
    )  # fmt: skip
    engine = Engine(*loaded(agreeing_folder), config)
    runner, forwards = engine._runner, 0
    plain = runner.forward

    def checked(plan: ForwardPlan, table: SlotTable) -> object:
        nonlocal forwards
        forwards += 1
        check(runner, plan, table, rng)
        return plain(plan, table)

    runner.forward = checked  # type: ignore[method-assign, assignment]
    for number in range(12):
        engine.add(request_of(rng.randrange(40), str(number)))
        engine.step()
    while engine.has_work():
        engine.step()
    assert forwards > 12
