"""Sequences before a forward, as hypothesis draws them, for packing rows and advancing windows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace

import numpy as np
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from wedlm_core.decoding.sampling import Choice
from wedlm_core.decoding.strategies.verified import VerifiedDecoding
from wedlm_core.decoding.window_state import Window
from wedlm_core.engine.forward.logits import Picks
from wedlm_core.engine.forward.runner import Runner
from wedlm_core.engine.scheduling.scheduler import ForwardPlan
from wedlm_core.engine.scheduling.slots import SlotTable

SLOTS, WIDEST, PAGE, MASK = 6, 8, 4, 9
DEEPEST = 40  # KV entries before a forward, at most

token = st.integers(0, 4)  # few, so that drafts agree and stop by chance, and 0 among them


@dataclass(frozen=True, kw_only=True)
class Case:
    """One sequence before a forward: its window, its parameters, and the choices of the forward's rows."""

    drafts: tuple[int, ...]
    masks: int
    valid: bool
    window: int
    keep_valid: int
    keep_stale: int
    left: int
    emitted: int
    stops: tuple[int, ...]
    cached: int
    prefill: int
    agreeing: int
    chosen: tuple[int, ...]


widths = st.integers(0, WIDEST)
cases = st.builds(
    Case,
    drafts=st.lists(token, max_size=WIDEST).map(tuple),
    masks=widths,
    valid=st.booleans(),
    window=widths,
    keep_valid=widths,
    keep_stale=widths,
    left=st.one_of(st.integers(0, 2 * WIDEST), st.just(1000)),
    emitted=st.integers(0, 30),
    stops=st.lists(token, max_size=3, unique=True).map(tuple),
    cached=st.integers(0, DEEPEST),
    prefill=st.sampled_from([0, 0, 1, 5]),
    agreeing=widths,
    chosen=st.lists(token, min_size=2 * WIDEST + 1, max_size=2 * WIDEST + 1).map(tuple),
)
prefills = st.tuples(st.integers(0, DEEPEST), st.integers(1, 7))  # cached, rows


def set_up(runner: Runner, case: Case, slot: int) -> None:
    """A window as earlier steps may leave it: drafts, and masks after them."""
    window, params, drafts = runner.state.windows, runner.state.params, len(case.drafts)
    window.token_SL[slot] = MASK
    window.token_SL[slot, :drafts] = torch.tensor(case.drafts, dtype=torch.int64)
    window.filled_SL[slot] = torch.arange(2 * WIDEST) < drafts
    window.early_SL[slot] = False
    window.length_S[slot] = drafts + case.masks
    window.lead_S[slot], window.head_S[slot] = drafts, case.emitted % 5
    window.emitted_S[slot], window.valid_S[slot] = case.emitted, case.valid
    params.masks_S[slot], params.limit_S[slot] = case.window, case.emitted + case.left
    params.keep_valid_S[slot], params.keep_stale_S[slot] = case.keep_valid, case.keep_stale
    params.stop_SK[slot] = -1
    params.stop_SK[slot, : len(case.stops)] = torch.tensor(case.stops, dtype=torch.int64)


def table_of(decoding: dict[int, Case]) -> SlotTable:
    """The host's values of the same slots."""
    table = SlotTable(SLOTS, 2 * WIDEST + 1)
    table.head[:], table.widest[:] = True, WIDEST
    for slot, case in decoding.items():
        table.masks[slot], table.keep_valid[slot] = case.window, case.keep_valid
        table.keep_stale[slot] = case.keep_stale
        table.generated[slot], table.limit[slot] = case.emitted, case.emitted + case.left
    return table


def choices_of(decoding: list[Case], rng: np.random.Generator) -> Choice:
    """The choices of the decode rows; the first drafts agree, as many as the case says."""
    tokens = []
    for case in decoding:
        agreeing, rows = min(case.agreeing, len(case.drafts)), len(case.drafts) + case.masks + 1
        tokens.append([*case.drafts[:agreeing], *case.chosen[agreeing:rows]])
    flat = [t for row in tokens for t in row]
    entropy, logprob = rng.random((2, len(flat)), dtype=np.float32)
    return Choice(
        token_R=torch.tensor(flat, dtype=torch.int64),
        entropy_R=torch.from_numpy(entropy),
        logprob_R=torch.from_numpy(-logprob),
    )


def snapshot(runner: Runner) -> dict[str, torch.Tensor]:
    """Everything that a step may write and anything may read: the last place of the tokens belongs to no one."""
    found = {f.name: getattr(runner.state.windows, f.name).clone() for f in fields(Window)}
    return {**found, "tokens_SL": runner.state.tokens_SL[:, :-1].clone()}


def restore(runner: Runner, before: dict[str, torch.Tensor]) -> None:
    """Restore a :func:`snapshot`, and contexts where they were kept with it."""
    for name, value in before.items():
        if name == "context_S":
            runner.state.context_S.copy_(value)
        elif name == "tokens_SL":
            runner.state.tokens_SL[:, :-1] = value
        else:
            getattr(runner.state.windows, name).copy_(value)


FULL = Case(
    drafts=(1,) * WIDEST, masks=WIDEST, valid=True, window=WIDEST, keep_valid=WIDEST, keep_stale=WIDEST, left=1000,
    emitted=3, stops=(), cached=7, prefill=0, agreeing=WIDEST, chosen=(1,) * (2 * WIDEST + 1),
)  # fmt: skip


def spread(chosen: Choice, picks: Picks) -> Choice:
    """By the flat layout, as groups have it."""
    flat = Choice.new(torch.zeros, picks.places + 1, 0, chosen.token_R.device)
    flat.put(picks.flat_R, chosen)
    return flat


_EXAMPLES: tuple[tuple[list[Case], list[tuple[int, int]]], ...] = (
    ([FULL], []),
    ([replace(FULL, masks=0)], []),
    ([replace(FULL, chosen=(1, 2) * WIDEST + (1,))], []),
    ([replace(FULL, left=3), FULL], [(0, 40)]),
    ([replace(FULL, stops=(1,))], []),
    ([replace(FULL, drafts=(1,) * (2 * WIDEST), masks=0)], []),
    ([], [(3, 5), (0, 1)]),
)


def any_step(max_examples: int) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorate a test of one forward: it is given ``decoding``, ``prefilling``, ``order`` and ``seed``, see `place`."""

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        for decoding, prefilling in _EXAMPLES:
            test = example(decoding=decoding, prefilling=prefilling, order=list(range(SLOTS)), seed=0)(test)
        drawn = given(
            decoding=st.lists(cases, max_size=SLOTS - 2),
            prefilling=st.lists(prefills, max_size=2),
            order=st.permutations(range(SLOTS)),
            seed=st.integers(0, 1000),
        )(test)
        fixtures = [HealthCheck.function_scoped_fixture]
        return settings(max_examples=max_examples, deadline=None, suppress_health_check=fixtures)(drawn)

    return decorate


def place(
    runner: Runner, decoding: list[Case], prefilling: list[tuple[int, int]], order: list[int], rng: np.random.Generator
) -> tuple[ForwardPlan, SlotTable]:
    """Give the first slots of ``order`` these sequences, with random tokens and pages; their forward, and the table."""
    slots = order[: len(decoding) + len(prefilling)]
    runner.state.tokens_SL.copy_(torch.from_numpy(rng.integers(0, 300, runner.state.tokens_SL.shape)))
    runner.state.pages_SP.copy_(torch.from_numpy(rng.integers(0, 50, runner.state.pages_SP.shape)))
    for slot, case in zip(order, [*decoding, *[FULL] * SLOTS], strict=False):
        set_up(runner, case, slot)
    table = table_of(dict(zip(slots, decoding, strict=False)))
    table.group[:] = runner.decodings.index(VerifiedDecoding())
    plan = ForwardPlan(
        sequences=[],
        slots_S=np.array(slots),
        cached_S=np.array([c.cached for c in decoding] + [cached for cached, _ in prefilling]),
        prefill_S=np.array([c.prefill for c in decoding] + [rows for _, rows in prefilling]),
        decode_S=np.array([len(c.drafts) + c.masks + 1 for c in decoding] + [0] * len(prefilling)),
    )
    return plan, table
