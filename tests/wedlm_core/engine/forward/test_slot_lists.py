"""Lists on the device: a slot reads its own, whatever was there before."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from wedlm_core.engine.forward.slot_lists import SlotLists

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
@settings(max_examples=30, deadline=None)
def test_a_slot_reads_its_own_list(steps: list[dict[int, tuple[tuple[int, ...], ...] | None]]) -> None:
    kinds = {"words": (torch.int64, 2), "ids": (torch.int64, 1), "values": (torch.float32, 1)}
    own, has = SlotLists(SLOTS, kinds, torch.device("cpu")), dict.fromkeys(range(SLOTS))
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
        own.assign(list(step), given_lists)
        has |= step
        for slot, words in has.items():
            found = [tuple(i for i in line if i >= 0) for line in own.parts["words"][slot].tolist()]
            assert tuple(word for word in found if word) == (words or ())
            assert all(line == [-1] * (len(line) - len(word)) + list(word) for line, word in
                       zip(own.parts["words"][slot].tolist(), words or (), strict=False))  # fmt: skip
            first = words[0] if words else ()
            assert [i for i in own.parts["ids"][slot].tolist() if i >= 0] == list(first)
            assert own.parts["values"][slot, : len(first)].tolist() == [i / 2 for i in first]
