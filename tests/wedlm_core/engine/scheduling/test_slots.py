"""A slot that is cleared is as new, and its neighbours keep their values."""

from __future__ import annotations

import numpy as np

from wedlm_core.engine.scheduling.slots import SlotTable
from wedlm_core.engine.scheduling.top_tokens import TopTokenTable
from wedlm_core.statistics import Totals

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
