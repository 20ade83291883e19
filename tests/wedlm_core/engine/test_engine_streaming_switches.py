"""``streaming`` part by part: with every part off it is the published rule, and each part has its stated effect."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from testing.engine.engines import loaded, requests_of, run
from wedlm_core.config import EngineConfig
from wedlm_core.config.engine_config import StreamingSwitches
from wedlm_core.config.step_cost import StepCost
from wedlm_core.engine import Engine
from wedlm_core.errors import ConfigError
from wedlm_core.types import Generation, SamplingParams

_RANDOM = random.Random(7)
PROMPTS = [[_RANDOM.randrange(4, 300) for _ in range(_RANDOM.choice([1, 3, 16, 40]))] for _ in range(16)]
BARE = StreamingSwitches(
    prefill_token=False, head_fills_leftmost=False, clip=False, suppress=False, hole_price=0.0, fallback=True
)


def generate(folder: Path, switches: StreamingSwitches, **params: object) -> list[Generation]:
    config = EngineConfig(page_size=16, streaming=switches, trace=True)
    engine = Engine(*loaded(folder), config)
    given = {"max_tokens": 24, "window_size": 6, "entropy_threshold": 1.2, "ignore_eos": True} | params
    return run(engine, requests_of(PROMPTS, SamplingParams(**given)))  # type: ignore[arg-type]


@pytest.mark.sweep(4)
@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("threshold", [None, 0.3, 1.2, 3.0])
def test_with_every_part_off_it_gives_the_tokens_of_the_published_rule(
    agreeing_folder: Path, temperature: float, threshold: float | None
) -> None:
    params = {"temperature": temperature, "entropy_threshold": threshold}
    bare = generate(agreeing_folder, BARE, strategy="streaming", **params)
    published = generate(agreeing_folder, BARE, strategy="reference", **params)
    assert [g.token_ids for g in bare] == [g.token_ids for g in published]
    for one, other in zip(bare, published, strict=True):
        assert one.stats.out_of_order_fills == other.stats.out_of_order_fills


def test_the_first_token_comes_with_the_prefill_or_one_forward_later(agreeing_folder: Path) -> None:
    for early, switches in ((True, StreamingSwitches()), (False, StreamingSwitches(prefill_token=False))):
        for generation in generate(agreeing_folder, switches, strategy="streaming"):
            assert generation.trace is not None
            assert bool(generation.trace[0]["committed"]) == early
            assert len(generation.token_ids) == 24


def test_without_the_fallback_only_what_is_certain_is_filled(agreeing_folder: Path) -> None:
    def fills(**switches: bool) -> int:
        out = generate(agreeing_folder, StreamingSwitches(**switches), strategy="streaming", entropy_threshold=0.0)
        return sum(len(step["fill_tokens"]) for g in out for step in g.trace or ())

    assert fills() == 0
    assert fills(fallback=True) > 16 * 8


def test_holes_cost_what_they_are_priced_at(agreeing_folder: Path) -> None:
    def early(price: float) -> int:
        out = generate(agreeing_folder, StreamingSwitches(hole_price=price), strategy="streaming")
        return sum(g.stats.out_of_order_fills for g in out)

    free, dear = early(0.0), early(100.0)
    assert free > dear == 0


def test_windows_run_past_the_end_where_they_are_not_clipped(agreeing_folder: Path) -> None:
    def furthest(clip: bool) -> int:
        out = generate(agreeing_folder, StreamingSwitches(clip=clip), strategy="streaming")
        assert all(len(g.token_ids) == 24 for g in out)
        return max(max(s["positions"]) - g.prompt_tokens for g in out for s in g.trace or ())

    assert furthest(True) < 24 <= furthest(False)


def test_the_mask_id_is_chosen_where_it_is_not_suppressed(agreeing_folder: Path) -> None:
    def masks(suppress: bool) -> int:
        out = generate(agreeing_folder, StreamingSwitches(suppress=suppress), strategy="streaming", temperature=2.0)
        return sum(token == 2 or token >= 320 for g in out for token in g.token_ids)

    assert masks(True) == 0 < masks(False)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"head_fills_leftmost": False}, "fallback"),
        ({"hole_price": -0.1}, "hole_price=-0.1"),
        ({"clip": 1}, "streaming.clip=1"),
        ({"holeprice": 0.1}, "holeprice"),
    ],
)
def test_switches_that_cannot_work_are_refused(fields: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        EngineConfig(streaming=fields)  # type: ignore[arg-type]


def test_switches_may_come_as_plain_data() -> None:
    assert EngineConfig(streaming={"clip": False}).streaming == StreamingSwitches(clip=False)  # type: ignore[arg-type]


@pytest.mark.parametrize("prefill_token", [True, False])
@pytest.mark.parametrize(("head_fills_leftmost", "fallback"), [(True, False), (True, True), (False, True)])
def test_adaptive_windows_without_masks_do_not_stand_still(
    agreeing_folder: Path, prefill_token: bool, head_fills_leftmost: bool, fallback: bool
) -> None:
    """Where rows are so dear that no masks pay, there is no mask to give a token that the switches leave to masks."""
    switches = StreamingSwitches(
        prefill_token=prefill_token, head_fills_leftmost=head_fills_leftmost, fallback=fallback, clip=False
    )
    dear = StepCost.linear(fixed=0.1, per_row=1.0)
    config = EngineConfig(streaming=switches, step_cost=dear, max_window=8, page_size=16)
    engine = Engine(*loaded(agreeing_folder), config)
    params = SamplingParams(max_tokens=9, strategy="streaming", ignore_eos=True)
    for request in requests_of([[5, 6, 7], [8] * 20], params):
        engine.add(request)
    done = [g for _ in range(200) for g in engine.step()]
    assert [len(g.token_ids) for g in done] == [9, 9], "every forward or two commits"
