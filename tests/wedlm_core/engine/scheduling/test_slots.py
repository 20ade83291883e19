"""A slot that is cleared is as new, its neighbours keep their values; the most likely tokens are kept in order."""

from __future__ import annotations

import random

import numpy as np
import pytest

from wedlm_core.engine.scheduling.slots import SlotTable, TopTokenTable
from wedlm_core.statistics import TopTokens, Totals

SLOTS, PLACES = 5, 9
ELSEWHERE = {"_integers", "_flags"}  # whose lines are columns


def arrays_of(table: SlotTable) -> dict[str, np.ndarray]:
    """Every array of a table, ``[slots, ...]``."""
    own = {name: value for name, value in vars(table).items() if name not in ELSEWHERE}
    totals, tops = own.pop("totals"), own.pop("tops")
    assert isinstance(totals, Totals)
    assert isinstance(tops, TopTokenTable)
    assert all(isinstance(value, np.ndarray) for value in own.values())
    return {**own, **totals}


def table_of(limit: int, stops: int) -> SlotTable:
    table = SlotTable(SLOTS, PLACES)
    table.set_limit(0, limit)
    table.set_stop_ids(0, tuple(range(stops)))
    return table


def test_a_cleared_slot_is_as_new_and_the_others_are_as_they_were() -> None:
    for limit, stops in ((1, 1), (40, 20)):  # arrays that widened with requests are cleared as well
        table, fresh, rng = table_of(limit, stops), table_of(limit, stops), np.random.default_rng(limit)
        fresh.stop_ids[:] = -1
        fresh.limit[:] = fresh._stop_counts[:] = 0
        for array in arrays_of(table).values():
            array[:] = 1 if array.dtype == np.bool_ else rng.integers(1, 99, array.shape)
        before = {name: array.copy() for name, array in arrays_of(table).items()}
        table.clear(2)
        for name, array in arrays_of(table).items():
            np.testing.assert_array_equal(array[2], arrays_of(fresh)[name][2], err_msg=name)
            others = [0, 1, 3, 4]
            np.testing.assert_array_equal(array[others], before[name][others], err_msg=name)


def test_columns_are_arrays_of_their_own_as_kernels_take_them() -> None:
    found = arrays_of(SlotTable(SLOTS, PLACES))
    for name, array in found.items():
        assert array.flags.c_contiguous, name
        assert array.flags.writeable, name
        assert array.shape[0] == SLOTS, name
    for number, array in enumerate(found.values()):
        array[:] = number % 2 if array.dtype == np.bool_ else number
    for number, (name, array) in enumerate(found.items()):
        assert (array == (number % 2 if array.dtype == np.bool_ else number)).all(), name


@pytest.mark.parametrize("seed", range(3))
def test_a_slot_has_what_was_output(seed: int) -> None:
    rng = random.Random(seed)
    table, has = TopTokenTable(SLOTS), dict[int, list[list[tuple[int, float]]]]()
    most = dict[int, int]()
    for _ in range(40):
        slot = rng.randrange(SLOTS)
        if rng.random() < 0.3 or slot not in has:
            table.release(slot)
            has.pop(slot, None)
            if rng.random() < 0.7:
                most[slot], has[slot] = rng.choice([1, 3, 7]), []
                table.open(slot, rng.choice([100, 200]), most[slot])
            continue
        slots_D = np.array(rng.sample(range(SLOTS), rng.randint(1, SLOTS)))
        member_H = np.array([d for d, s in enumerate(slots_D.tolist()) if s in has], dtype=np.int64)
        width = max([most[s] for s in slots_D.tolist() if s in has], default=1)
        tops = TopTokens(
            member_H=member_H,
            token_HCK=np.array(rng.choices(range(99), k=len(member_H) * PLACES * width)).reshape(-1, PLACES, width),
            logprob_HCK=np.random.default_rng(seed).random((len(member_H), PLACES, width), np.float32),
        )
        emit_D = np.array([rng.randint(0, PLACES) for _ in slots_D])
        generated_D = np.array([len(has.get(s, [])) for s in slots_D.tolist()])
        table.append(slots_D, generated_D, tops, emit_D)
        for h, d in enumerate(member_H.tolist()):
            own = int(slots_D[d])
            for place in range(emit_D[d]):
                ids, nats = tops.token_HCK[h, place].tolist(), tops.logprob_HCK[h, place].tolist()
                has[own].append(list(zip(ids, nats, strict=True))[: most[own]])
        for own, places in has.items():
            assert [list(place) for place in table.of(own, len(places), most[own])] == places


def test_sequences_that_are_dropped_take_theirs_with_them() -> None:
    tops = TopTokens(
        member_H=np.array([0, 2, 3]),
        token_HCK=np.arange(3).reshape(3, 1, 1),
        logprob_HCK=np.zeros((3, 1, 1), np.float32),
    )
    found = tops.only(np.array([False, True, True, False, True]))
    assert (found.member_H.tolist(), found.token_HCK.ravel().tolist()) == ([1], [1])
