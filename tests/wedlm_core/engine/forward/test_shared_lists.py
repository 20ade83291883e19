"""Lists on the device: a slot reads its own, whatever was there before; equal ones are kept once."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from wedlm_core.engine.forward.shared_lists import SharedLists

SLOTS = 5
LISTS = st.one_of(
    st.none(),
    st.sampled_from([((3, 4), (5,)), ((1,),)]),
    st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=6).map(tuple), min_size=1, max_size=6).map(tuple),
)


def table_of(words: tuple[tuple[int, ...], ...]) -> np.ndarray:
    width = max(map(len, words))
    return np.array([[-1] * (width - len(word)) + list(word) for word in words], dtype=np.int64)


@given(steps=st.lists(st.dictionaries(st.integers(0, SLOTS - 1), LISTS, min_size=1), min_size=1, max_size=12))
@settings(max_examples=60, deadline=None)
def test_a_slot_reads_its_own_list(steps: list[dict[int, tuple[tuple[int, ...], ...] | None]]) -> None:
    kinds = {"words": (torch.int64, 2), "ids": (torch.int64, 1), "values": (torch.float32, 1)}
    shared, has = SharedLists(SLOTS, kinds, torch.device("cpu")), dict.fromkeys(range(SLOTS))
    for step in steps:
        given_lists = [
            None
            if words is None
            else {
                "words": table_of(words),
                "ids": np.array(words[0], dtype=np.int64),
                "values": np.array(words[0], dtype=np.float32) / 2,
            }
            for words in step.values()
        ]
        shared.assign(list(step), given_lists)
        has |= step
        for slot, words in has.items():
            row = int(shared.row_S[slot])
            found = [tuple(i for i in line if i >= 0) for line in shared.parts["words"][row].tolist()]
            assert tuple(word for word in found if word) == (words or ())
            assert all(line == [-1] * (len(line) - len(word)) + list(word) for line, word in
                       zip(shared.parts["words"][row].tolist(), words or (), strict=False))  # fmt: skip
            first = words[0] if words else ()
            assert [i for i in shared.parts["ids"][row].tolist() if i >= 0] == list(first)
            assert shared.parts["values"][row, : len(first)].tolist() == [i / 2 for i in first]
        different = {words for words in has.values() if words is not None}
        assert len(shared._keys) == len(different), "equal lists are kept once, and no longer than they are used"
        assert (shared.row_S > 0).tolist() == [has[slot] is not None for slot in range(SLOTS)]
