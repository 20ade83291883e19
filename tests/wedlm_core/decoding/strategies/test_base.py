"""The promises of every strategy's traits: the engine plans with them, and asks for no strategy by name."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from wedlm_core.config import EngineConfig
from wedlm_core.config.engine_config import StreamingSwitches
from wedlm_core.decoding.strategies import Commit, Decoding, Refills, RowChoices, decoding_of
from wedlm_core.decoding.window_state import Window, WindowParams, empty_windows, lay_out
from wedlm_core.types import Strategy

MASK, STOP, CAPACITY = 9, 7, 24
SWITCHES = (
    StreamingSwitches(),
    StreamingSwitches(clip=False, suppress=False),
    StreamingSwitches(prefill_token=False),
    StreamingSwitches(head_fills_leftmost=False, fallback=True),
    StreamingSwitches(head_fills_leftmost=False, prefill_token=False, fallback=True, clip=False),
)


def implementations() -> list[Decoding]:
    found = [decoding_of(s, EngineConfig()) for s in Strategy if s != Strategy.STREAMING]
    return list(
        dict.fromkeys([*found, *(decoding_of(Strategy.STREAMING, EngineConfig(streaming=s)) for s in SWITCHES)])
    )


def test_every_strategy_has_an_implementation() -> None:
    assert all(decoding_of(strategy, EngineConfig()) for strategy in Strategy)
    assert decoding_of(Strategy.AUTOREGRESSIVE, EngineConfig()) == decoding_of(Strategy.VERIFIED, EngineConfig())
    assert decoding_of(Strategy.REFERENCE, EngineConfig()) != decoding_of(Strategy.BLOCKWISE, EngineConfig())


def test_decodings_are_equal_where_their_options_are() -> None:
    first, again, other = (
        decoding_of(Strategy.STREAMING, EngineConfig(streaming=switches))
        for switches in (*SWITCHES[:1] * 2, SWITCHES[1])
    )
    assert first == again
    assert hash(first) == hash(again)
    assert first != other
    assert (first.clips, first.suppresses) == (True, True)
    assert (other.clips, other.suppresses) == (False, False)


# ---- bounds -----------------------------------------------------------------------------------------------


def params_of(masks: int, kept: int, left: int, threshold: float) -> WindowParams:
    def whole(value: int) -> torch.Tensor:
        return torch.tensor([value])

    def real(value: float) -> torch.Tensor:
        return torch.tensor([value])

    return WindowParams(
        masks_S=whole(masks), keep_valid_S=whole(kept), keep_stale_S=whole(kept), threshold_S=real(threshold),
        penalty_S=real(0.02), limit_S=whole(left), stop_SK=torch.tensor([[STOP]]),
    )  # fmt: skip


def advanced(decoding: Decoding, window: Window, params: WindowParams, rng: np.random.Generator) -> tuple[Commit, int]:
    """One forward of one sequence with any choices; returns the commit and how many rows needed logits."""
    layout = lay_out(window)
    wanted = decoding.wanted(window, layout)
    assert not (wanted.next_SR & wanted.self_SR).any()
    shape = layout.id_SR.shape
    choices = RowChoices(
        token_SR=torch.from_numpy(rng.integers(0, 5 if rng.random() < 0.8 else STOP + 1, shape)),
        entropy_SR=torch.from_numpy(rng.random(shape, dtype=np.float32)),
        logprob_SR=torch.zeros(shape),
    )
    commit = decoding.advance(window, params, layout, choices)
    return commit, int((wanted.next_SR | wanted.self_SR).sum())


@pytest.mark.parametrize("decoding", implementations(), ids=repr)
@given(
    widths=st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)), min_size=1, max_size=6),
    left=st.integers(1, 40),
    threshold=st.sampled_from([0.1, 0.5, 2.0]),
    seed=st.integers(0, 10_000),
)
@settings(max_examples=20, deadline=None)
def test_rows_stay_within_the_bounds(
    decoding: Decoding, widths: list[tuple[int, int]], left: int, threshold: float, seed: int
) -> None:
    """Over forwards whose windows are allocated again each time where a strategy allows that."""
    rng = np.random.default_rng(seed)
    widest = 8
    if not decoding.verifies:  # fixed where the rule fixes it; at least one mask
        widths = [(max(1, widths[0][0]),) * 2] * len(widths)
        widest = widths[0][0]
    window = empty_windows(1, CAPACITY, torch.device("cpu"))
    if decoding.head:
        window.head_S[:] = 3
    params = params_of(*widths[0], left, threshold)
    decoding.refill(window, params, MASK)
    for masks, kept in widths:
        one = np.ones(1, dtype=np.int64)
        refills = Refills(masks_D=one * masks, kept_D=one * kept, widest_D=one * widest)
        params = params_of(masks, kept, left, threshold)
        rows = int(window.length_S + decoding.head)
        remain = left - int(window.emitted_S)
        (most,) = decoding.next_rows(refills, one * rows, one * remain).tolist()
        (most_wanted,) = decoding.wanted_rows(refills, one * rows).tolist()
        commit, wanted = advanced(decoding, window, params, rng)
        decoding.refill(window, params, MASK)
        assert wanted <= most_wanted <= rows
        committed = int(commit.count_S)
        assert not decoding.verifies or committed >= 1
        if committed >= remain:
            return  # the sequence has ended
        assert int(window.length_S + decoding.head) <= most
        assert not decoding.clips or int(window.length_S) <= remain - committed
        assert (window.head_S >= 0).all() == decoding.head
