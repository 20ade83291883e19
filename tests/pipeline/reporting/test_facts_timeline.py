"""Time lines stay bounded, and keep the beginning, the end and the shape of a run."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.progress.snapshot import Actors, Load, ResourceSeconds, Snapshot
from pipeline.reporting.facts import Moment, Session, TimeLine, columns_of, moments_of
from pipeline.types import Totals


def snapshot(at: float, tokens: int) -> Snapshot:
    load = Load(actors=2, kv_pages_used=5, kv_pages=10, counters={"tokens": tokens // 2})
    session = Totals(completion_tokens=tokens, rows=tokens // 10)
    return Snapshot(at=at, session=session, actors=Actors(ready=2, starting=1), load=load,
                    used=ResourceSeconds(cpus=at))  # fmt: skip


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 3000), st.sampled_from([8, 50, 400]))
def test_any_run_fits_and_its_points_are_spread_evenly(seconds: int, most: int) -> None:
    line = TimeLine(most=most)
    for at in range(seconds):
        line.update(snapshot(at, 10 * at))
    line.close(snapshot(seconds, 10 * seconds))
    moments = line.moments
    assert len(moments) <= most
    assert moments[0].at == 0
    assert moments[-1].at == seconds
    assert moments[-1].tokens == 10 * seconds
    assert all(m.tokens == 10 * m.at for m in moments), "counts are not lost by thinning"
    gaps = [b.at - a.at for a, b in itertools.pairwise(moments[:-1])]
    assert max(gaps, default=1) <= 2 * max(1, 2 * seconds / most) + 1


def test_it_is_kept_now_and_then_and_at_the_end() -> None:
    kept: list[float] = []
    line = TimeLine(lambda own, last: kept.append(last.at), every=60.0)
    for at in range(150):
        line.update(snapshot(at, at))
    line.close(snapshot(150, 150))
    assert kept == [60, 120, 150]


def test_moments_and_sessions_survive_json_and_older_records() -> None:
    moments = (Moment(1.0, 20), Moment(2.0, 60))
    assert moments_of(json.loads(json.dumps(columns_of(moments)))) == moments
    session = Session(epoch=3, began=1.0, seconds=9.0, outcome="done", tokens=1_000_000, moments=moments,
                      used=ResourceSeconds(accelerators=3600.0), price_per_hour=2.5)  # fmt: skip
    assert Session.from_dict(json.loads(json.dumps(session.to_dict()))) == session
    assert session.cost == pytest.approx(2.5)


@given(st.integers(0, 1000), st.integers(0, 1000))
def test_generated_tokens_are_never_below_committed_ones_whenever_engines_last_reported(seen: int, done: int) -> None:
    line = TimeLine()
    line.update(Snapshot(session=Totals(completion_tokens=done), load=Load(counters={"tokens": seen})))
    assert line.moments == [Moment(0.0, max(seen, done))]
