"""The engine loop: requests in, one packed forward per step, finished generations out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Seq
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from wedlm_core.config import EngineConfig
from wedlm_core.config.step_cost import StepCost
from wedlm_core.devices import on_own_device, step_clock
from wedlm_core.engine.drafting.constants import CONSTANTS, DraftingConstants
from wedlm_core.engine.drafting.step_time import StepReport
from wedlm_core.engine.drafting.windows import Suggestions
from wedlm_core.engine.forward.runner import StepDetail
from wedlm_core.engine.generations import Generations
from wedlm_core.engine.opening import Opening
from wedlm_core.engine.overlap import CompletedForward, OverlapLoop
from wedlm_core.engine.parts import parts_of
from wedlm_core.engine.scheduling.admission import check_request
from wedlm_core.engine.scheduling.counters import EngineSnapshot
from wedlm_core.engine.scheduling.scheduler import ForwardPlan, Scheduler
from wedlm_core.engine.scheduling.sequence import Sequence
from wedlm_core.engine.scheduling.slots import BoolArray, Emission, IntArray, StepOutcome
from wedlm_core.engine.scored_requests import ScoredRequests
from wedlm_core.engine.scoring import Scorer
from wedlm_core.engine.trace import add_records
from wedlm_core.errors import IntegrityError, RequestError, explain
from wedlm_core.model.decoder import Decoder
from wedlm_core.statistics import DraftSource
from wedlm_core.tokenizer import Tokenizer
from wedlm_core.types import FinishReason, Generation, Request


class Engine:
    """Continuous batching over one model on one device. Not thread safe: one thread at a time may call it.

    That may be any thread: during a call, ``device`` (the model's) is the current device of the thread.

    Args:
        model: the decoder; its rotary tables are extended to the last position of any window.
        tokenizer: for text, stop strings and end-of-sequence ids.
        config: see :class:`EngineConfig`.
        constants: of drafting, for measurements; not for users.

    Raises:
        ConfigError: the attention backend does not fit the configuration, or the pool not the device's memory.
        CapacityError: the device has no room for a KV pool.
    """

    def __init__(
        self,
        model: Decoder,
        tokenizer: Tokenizer,
        config: EngineConfig | None = None,
        *,
        constants: DraftingConstants = CONSTANTS,
    ) -> None:
        self.config = config or EngineConfig()
        self.tokenizer, self.model_config = tokenizer, model.config
        self.device = model.device
        self._build(model, self.config, constants)

    @on_own_device
    def _build(self, model: Decoder, config: EngineConfig, constants: DraftingConstants) -> None:
        """Make the parts, the scheduler and the loop."""
        parts = parts_of(model, self.tokenizer, config, constants)
        self.pages, self.eos_token_ids = parts.pages, parts.eos_token_ids
        self.max_model_len = parts.limits.max_model_len
        self._runner, self._overlapping_launch, self._limits = parts.runner, parts.overlapping_launch, parts.limits
        self._table, self._drafting = parts.table, parts.drafting
        self._constraints = parts.constraints
        self._optimisations = parts.optimisations
        self._attempted = parts.optimisations.drafting
        self._attempted.turn_off = self._leave_out_drafting
        self._opening = Opening(
            parts, self.tokenizer, config, lambda: self._plan_windows(self._scheduler.running_slots())
        )
        self._generations = Generations(self._table, self.tokenizer, model.config.vocab_size)
        self._scheduler = Scheduler(config, self._table, self.pages, self._set_up)
        self._step_cost: StepCost | None = None
        self._sequences: dict[str, Sequence] = {}
        self._scoring = ScoredRequests(self.scorer(), self.tokenizer)
        self._done: list[Generation] = []
        self._arrivals = 0
        self._clock = step_clock(self.device)
        self._rest_seconds = 0.0  # of the last step, after drafting observed its forward
        self._loop: OverlapLoop | None = None
        if self._overlapping_launch is not None:
            self._loop = OverlapLoop(
                self._runner, self._overlapping_launch, self._table, self._next_plan, self._consume_completed,
                waits=lambda: self._drafting.waits,
            )  # fmt: skip

    # ---- requests -------------------------------------------------------------------------------------

    @on_own_device
    def add(self, request: Request) -> None:
        """Queue a request.

        Raises:
            RequestError: the request cannot be served, or its id is in use; the engine is unaffected.
            CapacityError: the KV pool could not hold it even alone.
        """
        if request.request_id in self._sequences or request.request_id in self._scoring.unfinished:
            raise RequestError(
                explain("request_id", request.request_id, "unfinished requests have different ids", "Pick another.")
            )
        if request.continuation:
            self._scoring.add(request)
            return
        check_request(request, self._limits)
        params, sequence = request.params, self._opening.sequence_of(request, self._arrivals)
        self._arrivals += 1
        if params.max_tokens == 0:
            sequence.finish = FinishReason.LENGTH
            self._done.append(self._generations.of(sequence, trace=self.config.trace))
            return
        if params.adaptive:
            self._attempted.attempt(self.measure_step_cost)  # here, not inside of a step
        self._sequences[request.request_id] = sequence
        self._scheduler.add(sequence)

    def abort(self, request_id: str) -> None:
        """Forget an unfinished request and free its slot and pages; an unknown id is ignored."""
        sequence = self._sequences.pop(request_id, None)
        if sequence is not None:
            self._release(sequence, keep=False)
        self._scoring.abort(request_id)

    def scorer(self) -> Scorer:
        """Scores given tokens on this engine's model and pool, between its steps; by the same thread."""
        return Scorer(self._runner.model_runner, self.pages, self.config, self._limits)

    def has_work(self) -> bool:
        """Whether :meth:`step` would do or return anything."""
        return bool(self._sequences or self._done or self._scoring.unfinished)

    def snapshot(self) -> EngineSnapshot:
        """Work so far, and the load of the engine. Any thread may call it, at any time."""
        scheduler, pages, drafting = self._scheduler, self.pages, self._drafting
        return EngineSnapshot(
            counters=replace(
                scheduler.counters,
                fallbacks=self._optimisations.fallbacks,
                decode_seconds=drafting.decode_seconds,
                autoregressive_seconds=drafting.autoregressive_seconds,
            ),
            running=len(scheduler.running),
            waiting=len(scheduler.waiting) + len(self._scoring.unfinished),
            slots=self.config.max_num_seqs,
            kv_pages_used=pages.num_pages - pages.num_free,
            kv_pages=pages.num_pages,
        )

    def committed(self, request_id: str) -> list[int]:
        """Tokens an unfinished request has generated so far."""
        slot = self._sequences[request_id].slot
        return [] if slot < 0 else self._table.tokens_of(slot)

    def trace_of(self, request_id: str) -> tuple[Mapping[str, Any], ...]:
        """The records of an unfinished request's decode forwards so far; empty without ``EngineConfig.trace``."""
        return tuple(self._sequences[request_id].trace)

    @contextmanager
    def traced(self, sequences: int, tokens: int) -> Iterator[Engine]:
        """A block with an engine on the same weights whose generations carry traces. This one has no work meanwhile.

        It is this engine, or, if its forwards overlap, a second engine with a small KV pool.

        Args:
            sequences: that may run at once.
            tokens: of prompt and output of each, at most.
        """
        if self.has_work():
            raise RequestError("an engine with unfinished requests cannot begin to trace. Finish them first.")
        plain = self.config
        if self._loop is None:
            self.config = self._runner.config = replace(plain, trace=True)
            try:
                yield self
            finally:
                self.config = self._runner.config = plain
            return
        each = -(-(tokens + 2 * plain.max_window + 2) // plain.page_size) + 1
        small = replace(plain, trace=True, overlap=False, cuda_graphs=False, num_pages=sequences * each,
                        max_num_seqs=sequences, prefix_caching=False)  # fmt: skip
        yield Engine(self._runner.model_runner.model, self.tokenizer, small)

    # ---- the step -------------------------------------------------------------------------------------

    @on_own_device
    def step(self) -> list[Generation]:
        """Run one forward; return the generations that finished with it (in no particular order).

        Where forwards overlap, one is launched, and the generations that finished with the one before are returned.
        Requests with a ``continuation`` go first: they hold pages for few forwards.

        Raises:
            IntegrityError: requests wait but none can run, which admission rules out.
        """
        if self._scoring.unfinished and (scored := self._scoring.step()) is not None:
            if self._loop is not None:
                self._loop.disturb()
            return scored
        if self._sequences and self._loop is None:
            self._step_and_wait()
        elif self._sequences and self._loop is not None:
            self._loop.step()
            if not self._sequences:
                self._loop.forget()
        done, self._done = self._done, []
        return done

    def _step_and_wait(self) -> None:
        """Plan, run and account one forward."""
        clock = self._clock
        begin = clock()
        plan = self._next_plan()
        if plan is None or not plan.sequences:
            raise IntegrityError(f"{len(self._sequences)} requests wait and none can run")
        forward = clock()
        outcome, details = self._runner.forward(plan, self._table)
        back = clock()
        unread = self._runner.unread_rows
        rows = int(plan.prefill_S.sum() + plan.decode_S.sum())
        weighed = rows - unread + self._runner.model_runner.unread_row * unread
        self._consume(plan, outcome, details, weighed, back - begin + self._rest_seconds, back - forward)
        self._rest_seconds = clock() - back

    def _next_plan(self, may_preempt: bool = True) -> ForwardPlan | None:
        """The next forward, its pages and windows in place; None where it would have to preempt and may not."""
        scheduler = self._scheduler
        plan = scheduler.schedule(may_preempt=may_preempt)
        if plan is not None:
            if scheduler.changed:
                self._sync_pages()
            self._plan_windows(scheduler.running_slots())
            if self._constraints.are_used:
                self._constraints.begin(plan, self._runner.state)
        return plan

    def _consume_completed(self, completed: CompletedForward) -> None:
        """Account a forward that was launched asynchronously; the device's time hides the host's then."""
        seconds = completed.seconds if completed.plan.sequences else None
        self._consume(completed.plan, completed.outcome, [], completed.rows, seconds, seconds)

    def _set_up(self, sequences: list[Sequence]) -> None:
        """Fill the table and the device state of sequences that just got a slot."""
        self._opening.open(sequences, len(self._scheduler.running))

    def _leave_out_drafting(self) -> None:
        """Go on with the smallest windows. Drafts from history are dropped, as the last may be half written."""
        table = self._table
        slots_D = np.flatnonzero(table.has_history & ~table.constrained)  # grammars write the windows of the others
        table.has_history[:] = False
        if len(slots_D) and not (self._loop is not None and self._loop.is_ahead):
            self._runner.state.empty_windows(slots_D)
            table.rows[slots_D], table.source[slots_D] = table.head[slots_D], DraftSource.MASK
        table.make_windows_plain()
        self._runner.state.set_windows(table)

    def _plan_windows(self, slots_R: IntArray) -> None:
        """Let drafting set the windows of adaptive sequences among the running ones."""
        if self._attempted.attempt(self._drafting.plan, slots_R, self._spare_tokens):
            self._runner.state.set_windows(self._table)

    def _spare_tokens(self) -> int:
        """KV entries of free pages."""
        return self.pages.num_free * self.config.page_size

    @on_own_device
    def measure_step_cost(self) -> StepCost:
        """The cost of this engine's forwards: as configured, as kept on disk, or else measured now (about 3 s).

        The first call fixes it; safe in the middle of a run.
        """
        if self._step_cost is None:
            if self._loop is not None:
                self._loop.disturb()
            self._step_cost = self._drafting.cost
        return self._step_cost

    def _sync_pages(self) -> None:
        """Write page tables that grew or were opened since the last forward."""
        for sequence in self._scheduler.take_changed():
            if sequence.pages is not None:
                self._runner.state.set_pages(sequence.slot, sequence.pages.pages)

    def _consume(
        self, plan: ForwardPlan, outcome: StepOutcome, details: list[StepDetail], forward_rows: float | None,
        seconds: float | None, forward_seconds: float | None,
    ) -> None:  # fmt: skip
        """Account the forward, hand committed tokens to their sequences, finish those that ended."""
        table, decoding = self._table, int(np.count_nonzero(plan.decode_S))
        slots_D = plan.slots_S[:decoding]
        context_S = plan.cached_S + plan.prefill_S
        context_D, table.cached[plan.slots_S] = context_S[:decoding], context_S
        emission = table.emission(slots_D, outcome)
        emit_D, stopping = emission.emit_D, list[int]()
        if np.count_nonzero(table.watched[slots_D]):
            emit_D, stopping = self._stop_strings(plan.sequences, slots_D, outcome, emission)
        prefill, rows_D = int(np.add.reduce(plan.prefill_S)), plan.decode_S[:decoding]
        kept = table.keep(slots_D, rows_D, outcome, emit_D)
        counters = self._scheduler.counters
        counters.forwards += 1
        counters.decode_forwards += decoding
        counters.prompt_rows += prefill
        counters.decode_rows += int(np.add.reduce(rows_D))
        counters.masks += kept.masks
        counters.tokens += kept.tokens
        table.context[slots_D] = table.cached[slots_D] = context_D + outcome.context_D
        table.rows[slots_D] = outcome.next_rows_D
        ended_D = emission.stopped_D | emission.full_D
        if self.config.trace:
            add_records(plan, details, table, context_D, emit_D, emission)
        final_S, size = table.cached[plan.slots_S], self.config.page_size
        crossed_S = final_S // size > plan.cached_S // size
        if self.config.prefix_caching and np.count_nonzero(crossed_S):
            self._seal(plan, final_S, crossed_S)
        unsound_D = kept.unsound_D
        over_D = ended_D | unsound_D
        over_D[stopping] = True
        report = StepReport(
            slots_D=slots_D, rows_D=rows_D, outcome=outcome, emit_D=emit_D, ended_D=over_D.copy(),
            can_draft=self._loop is None or not self._loop.is_ahead, prefill_rows=prefill, forward_rows=forward_rows,
            kv_tokens=int(plan.cached_S.sum()), seconds=seconds, forward_seconds=forward_seconds,
        )  # fmt: skip
        found: Suggestions | None = self._attempted.attempt(self._drafting.observe, report)
        if self._constraints.are_used:
            self._constrain(plan, report, over_D, found)
        if not np.count_nonzero(over_D):
            return
        for i in np.flatnonzero(over_D).tolist():
            sequence = plan.sequences[i]
            if unsound_D[i]:
                sequence.finish, sequence.error = FinishReason.ERROR, None  # whatever a grammar says of its tokens
                self._discard_pages(sequence)
            elif sequence.finish is None:
                sequence.finish = FinishReason.STOP if emission.stopped_D[i] else FinishReason.LENGTH
            self._finish(sequence)

    def _constrain(self, plan: ForwardPlan, report: StepReport, over_D: BoolArray, found: Suggestions | None) -> None:
        """Draft the next windows of sequences with a grammar.

        ``over_D`` marks the decoding sequences that have ended; those whose grammar refuses a commit are added.
        """
        failed = self._constraints.accept(
            plan.sequences, report.slots_D, report.rows_D, report.outcome, report.emit_D, over_D, found,
            self._runner.state,
        )  # fmt: skip
        for i, reason in failed.items():
            plan.sequences[i].finish, plan.sequences[i].error = FinishReason.ERROR, reason
            over_D[i] = True

    def _discard_pages(self, sequence: Sequence) -> None:
        """Clean the pages of a sequence whose KV holds NaN or infinity: times 0, both spoil a sum."""
        if sequence.pages is not None:
            self._runner.pool.clear(self.pages.discard(sequence.pages))
            sequence.pages = None

    def _stop_strings(
        self, sequences: Seq[Sequence], slots_D: IntArray, outcome: StepOutcome, emission: Emission
    ) -> tuple[IntArray, list[int]]:
        """Emissions cut at stop strings, and the places of sequences that these ended."""
        emit_D, ended = emission.emit_D.copy(), []
        for i in np.flatnonzero(self._table.watched[slots_D] & (emit_D > 0)).tolist():
            sequence = sequences[i]
            if sequence.stops is not None:
                kept = sequence.stops.push(outcome.token_DC[i, : emit_D[i]].tolist())
                if kept is not None:
                    emit_D[i] = kept
                    sequence.finish = FinishReason.STOP
                    ended.append(i)
        return emit_D, ended

    def _seal(self, plan: ForwardPlan, final_S: IntArray, crossed_S: BoolArray) -> None:
        """Index pages whose KV became final, of sequences that crossed a page boundary."""
        for i in np.flatnonzero(crossed_S).tolist():
            sequence = plan.sequences[i]
            if sequence.pages is not None:
                # A commit may run past the output's end; tokens after it are in no prefix.
                tokens = self._scheduler.known_tokens(sequence)
                self.pages.seal(sequence.pages, tokens, min(int(final_S[i]), len(tokens)))

    # ---- results --------------------------------------------------------------------------------------

    def _finish(self, sequence: Sequence) -> None:
        self._done.append(self._generations.of(sequence, trace=self.config.trace))
        del self._sequences[sequence.request.request_id]
        self._release(sequence, keep=sequence.finish != FinishReason.ERROR)

    def _release(self, sequence: Sequence, *, keep: bool) -> None:
        """Free the slot and pages of a sequence; with ``keep`` its text stays in history."""
        if sequence.slot >= 0:
            self._attempted.attempt(self._drafting.close, sequence.slot, keep=keep)
        self._scheduler.finish(sequence)
