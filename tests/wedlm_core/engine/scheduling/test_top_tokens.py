"""The most likely tokens by slot: kept in order, for slots that report them, whoever had the row."""

from __future__ import annotations

import random

import numpy as np
import pytest

from wedlm_core.engine.scheduling.top_tokens import TopTokenTable
from wedlm_core.statistics import TopTokens

SLOTS, PLACES = 6, 4


@pytest.mark.parametrize("seed", range(8))
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
