"""Rows of many jobs: each has the stops of its own job."""

from __future__ import annotations

from pathlib import Path

import pytest

from testing.engine.engines import loaded, requests_of, run
from wedlm_core.config import EngineConfig
from wedlm_core.engine import Engine
from wedlm_core.engine.scheduling.slots import SlotTable
from wedlm_core.types import SamplingParams


def test_rows_of_many_jobs_have_their_own_stops(agreeing_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(*loaded(agreeing_folder), EngineConfig(max_num_seqs=3))
    seen, eos = dict[tuple[int, ...], int](), engine.eos_token_ids
    set_stop_ids = SlotTable.set_stop_ids

    def note(table: SlotTable, slot: int, ids: tuple[int, ...]) -> None:
        seen[ids] = seen.get(ids, 0) + 1
        set_stop_ids(table, slot, ids)

    monkeypatch.setattr(SlotTable, "set_stop_ids", note)
    for job in range(9):
        ignores = job % 2 == 1
        params = SamplingParams(max_tokens=2, stop_token_ids=(job, job, eos[0]), ignore_eos=ignores)
        run(engine, requests_of([[5, 6, 7 + row] for row in range(4)], params))
        rest = () if ignores else tuple(one for one in eos if one != eos[0])
        assert seen.pop(tuple(dict.fromkeys((job, eos[0], *rest)))) == 4
        assert not seen
