"""The engine loop one step later than the device: forward t + 1 is launched before the outcome of t is known.

While a forward is in flight, the slot table holds bounds for its sequences: the most KV entries after it, and the most
decode rows then. So the scheduler grows pages and spends the row budget as ever, on bounds. When the forward completes,
true values replace the bounds, the outcome is accounted as in the plain loop, and the bounds of the next forward (in
flight by then) are written.

A sequence with a grammar waits for its outcome, since the host drafts its next window from it: it runs in every second
forward.

While drafts from history are in use, or tried, every forward waits for the outcome of the one before: the loop is plain
then.

A sequence that the outcome ends has rows in the next forward as well; they are ignored. Its slot and pages may be
given to others at once, whose rows run later on the same stream. Where bounds do not fit in the pool, the loop waits
for the forward in flight and plans exactly, which is also when sequences are preempted.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from wedlm_core.attention import AttentionBackend
from wedlm_core.config import EngineConfig
from wedlm_core.engine.forward.async_launch import AsyncLaunch, InFlightForward
from wedlm_core.engine.forward.cuda_graphs import DecoderGraphs, StaticInputs
from wedlm_core.engine.forward.graph_policy import GraphBook
from wedlm_core.engine.forward.model_runner import ModelRunner
from wedlm_core.engine.forward.outcome import take
from wedlm_core.engine.forward.runner import Runner
from wedlm_core.engine.forward.step_graphs import StepGraphs
from wedlm_core.engine.scheduling.scheduler import ForwardPlan
from wedlm_core.engine.scheduling.slots import BoolArray, SlotTable, StepOutcome
from wedlm_core.errors import IntegrityError

logger = logging.getLogger(__name__)

_STEP_ROWS = 512  # of the largest forward around which work is recorded: larger ones take the device longer anyway


def overlaps(config: EngineConfig, device: torch.device, backend: AttentionBackend) -> bool:
    """The value of ``EngineConfig.overlap`` here."""
    if config.overlap == "auto":
        if config.history_drafts is True:
            return False
        return device.type == "cuda" and backend.on_device and not config.trace
    if config.overlap and device.type == "cuda" and not backend.on_device:
        logger.warning("attention %r plans on the host: forwards wait for the device, overlap or not", backend.name)
    return bool(config.overlap)


def async_launch(model_runner: ModelRunner, config: EngineConfig, reach: int) -> AsyncLaunch:
    """The launch strategy of an overlapping engine, with CUDA graphs where config and device allow them.

    Args:
        model_runner: the engine's; its KV pool holds nothing yet.
        config: the engine's.
        reach: KV entries of a sequence at most.
    """
    device, model = model_runner.device, model_runner.model
    possible = device.type == "cuda" and model_runner.backend.on_device
    if config.cuda_graphs is False or not possible:
        if config.cuda_graphs is True:
            logger.warning("CUDA graphs need CUDA and an attention backend that plans on the device: running eagerly")
        return AsyncLaunch(model_runner)
    book = GraphBook(
        limit=min(config.graph_rows, config.max_batch_rows),
        sequences=config.max_num_seqs,
        most_kv=-(-reach // config.page_size) * config.page_size,
        seconds=config.graph_seconds,
        most_bytes=config.graph_bytes,
    )
    inputs = StaticInputs(rows=book.sizes[-1], sequences=config.max_num_seqs, page_size=config.page_size, device=device)
    graphs = DecoderGraphs(
        model_runner.run_device_rows, book, inputs, holds=lambda: (model.cos, model.sin), device=device
    )
    graphs.capture_first()
    _run_head(model_runner, head_rows(book.sizes, config.logits_rows(model.config.vocab_size), model_runner.padding))
    steps = StepGraphs(
        book,
        sequences=config.max_num_seqs,
        window=2 * config.max_window,
        rows=min(book.sizes[-1], _STEP_ROWS),
        hidden_size=model.config.hidden_size,
        dtype=model.dtype,
        device=device,
        logits_bytes=model.dtype.itemsize * model.config.vocab_size,
        most_bytes=config.graph_bytes // 2,
    )
    return AsyncLaunch(model_runner, graphs, steps)


def head_rows(sizes: Sequence[int], most: int, padding: int) -> list[int]:
    """Numbers of rows, up to ``most``: their products with the head use every kernel that a job can need."""
    return sorted({min(size + -size % padding, most) for size in sizes})


@torch.inference_mode()
def _run_head(model_runner: ModelRunner, counts: Sequence[int]) -> None:
    """Compile the head's kernels now: captured forwards leave the head out, and its first use would halt a job."""
    model = model_runner.model
    for count in counts:
        model_runner.head(torch.zeros(count, model.config.hidden_size, dtype=model.dtype, device=model_runner.device))


@dataclass(frozen=True, kw_only=True)
class CompletedForward:
    """A forward whose outcome is known.

    Attributes:
        plan: its plan, with exact counts, of the sequences that still live.
        outcome: of these.
        rows: that the device computed: the planned ones, before the outcome of the forward before was known. None where
            sequences of it have ended since (the plan no longer has them), and where the device waited for the host
            before: the time is not the forward's alone.
        seconds: the device's time since the forward before completed; None where that was no time of forwards.
    """

    plan: ForwardPlan
    outcome: StepOutcome
    rows: int | None
    seconds: float | None


@dataclass(kw_only=True)
class _Launched:
    """A forward in flight.

    Attributes:
        plan: holds bounds until :meth:`OverlapLoop._overlay` made it exact.
        rows: by these bounds.
        forward: as it was launched.
        is_timed: whether the device did nothing else between the forward before and this one.
        follows: whether that one was in flight when this one was launched.
    """

    plan: ForwardPlan
    rows: int
    forward: InFlightForward
    is_timed: bool
    follows: bool


class OverlapLoop:
    """Launches forwards and accounts them when they complete.

    Args:
        runner: windows and model.
        launch: its launch strategy.
        table: slots.
        schedule: the next plan, with bounds or exact, made ready to run; given whether it may preempt. None where
            it would have to and may not.
        consume: accounts a completed forward.
        waits: whether the next forward has to wait for the outcome of the one in flight.
    """

    def __init__(
        self,
        runner: Runner,
        launch: AsyncLaunch,
        table: SlotTable,
        schedule: Callable[[bool], ForwardPlan | None],
        consume: Callable[[CompletedForward], None],
        waits: Callable[[], bool] = lambda: False,
    ) -> None:
        self._runner, self._launch, self._table = runner, launch, table
        self._schedule, self._consume, self._waits = schedule, consume, waits
        self._in_flight: _Launched | None = None
        self._before: InFlightForward | None = None  # the one that completed last, if the device went on at once
        self._is_disturbed = False  # the device does something else before the next forward

    def step(self) -> None:
        """Launch the next forward, then wait for the one before it.

        Raises:
            IntegrityError: requests wait but none can run.
        """
        before, completed = self._in_flight, False
        if before is not None and self._waits():
            self._complete(before)
            before, completed = None, True
        plan = self._schedule(before is None)
        if before is None and not completed and (plan is None or not plan.sequences):
            raise IntegrityError("requests wait and none can run")
        if before is not None and (plan is None or not plan.sequences):
            self._complete(before)
            self.forget()
            before, plan = None, self._schedule(True)
        if plan is None or not plan.sequences:
            self.forget()
            return  # the completed forward was the last
        forward = self._launch.launch(self._runner, plan, self._table)
        rows = int(plan.prefill_S.sum() + plan.decode_S.sum())
        is_timed = not (self._is_disturbed or forward.captured)
        self._in_flight = _Launched(
            plan=plan, rows=rows, forward=forward, is_timed=is_timed, follows=before is not None
        )
        self._is_disturbed = False
        decoding_S = plan.slots_S[plan.decode_S > 0]
        self._table.held[decoding_S] = self._table.constrained[decoding_S]
        if before is not None:
            self._complete(before)
        self._overlay(self._in_flight)

    def forget(self) -> None:
        """Drop the forward in flight, if any: no sequence of it still lives."""
        self._in_flight = self._before = None

    @property
    def is_ahead(self) -> bool:
        """While a forward is accounted: whether the next one has been launched."""
        return self._in_flight is not None

    def disturb(self) -> None:
        """Say that the device does something else before the next forward, whose time is not taken then."""
        self._is_disturbed = True

    def _complete(self, launched: _Launched) -> None:
        if launched is self._in_flight:
            self._in_flight = None
        outcome = launched.forward.wait()
        seconds = None
        if self._before is not None and launched.is_timed:
            seconds = launched.forward.copy.seconds_since(self._before.copy)
        self._before = launched.forward
        plan, alive_S = launched.plan, _alive(launched.plan)
        self._table.held[plan.slots_S[alive_S & (plan.decode_S > 0)]] = False
        outcome = take(outcome, alive_S[: len(outcome.count_D)])
        rows = launched.rows if launched.follows and alive_S.all() else None
        self._consume(CompletedForward(plan=_only(plan, alive_S), outcome=outcome, rows=rows, seconds=seconds))

    def _overlay(self, launched: _Launched) -> None:
        """Make a launched plan exact, now that the forward before it has completed, and its bounds the table's."""
        table, plan = self._table, launched.plan
        decoding = int(np.count_nonzero(plan.decode_S))
        slots_D, alive_D = plan.slots_S[:decoding], _alive(plan)[:decoding]
        rows_D = np.where(alive_D, table.rows[slots_D], plan.decode_S[:decoding])
        if (rows_D > plan.decode_S[:decoding]).any():
            raise IntegrityError(f"decode rows {rows_D} ran in room for {plan.decode_S[:decoding]}")
        cached_S = np.where(plan.prefill_S > 0, plan.cached_S, table.cached[plan.slots_S])
        decode_S = np.concatenate((rows_D, plan.decode_S[decoding:]))
        launched.plan = replace(plan, cached_S=cached_S, decode_S=decode_S)
        after_S = cached_S + plan.prefill_S + decode_S
        table.cached[plan.slots_S] = after_S
        table.context[slots_D] = after_S[:decoding]
        table.rows[slots_D] = launched.forward.bounds.next_rows(rows_D, table.left(slots_D))


def _alive(plan: ForwardPlan) -> BoolArray:
    """Sequences that have neither ended nor been aborted since the plan was made (they are never preempted then)."""
    return np.fromiter((s.slot >= 0 for s in plan.sequences), dtype=np.bool_, count=len(plan.sequences))


def _only(plan: ForwardPlan, keep_S: BoolArray) -> ForwardPlan:
    if keep_S.all():
        return plan
    return ForwardPlan(
        sequences=[s for s, keep in zip(plan.sequences, keep_S.tolist(), strict=True) if keep],
        slots_S=plan.slots_S[keep_S],
        cached_S=plan.cached_S[keep_S],
        prefill_S=plan.prefill_S[keep_S],
        decode_S=plan.decode_S[keep_S],
    )
