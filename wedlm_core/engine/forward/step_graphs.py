"""CUDA graphs of the work around the decoder's forward: it packs and picks rows before, and advances windows after.

This work has about 240 small operations. Launching them takes the host several milliseconds, longer than a small model
runs. Their graph reads only tensors at fixed addresses: those of slots, and the buffers here for the facts of a plan
and the hidden states. The :class:`StepKind` fixes all else; its bounds are rounded up, so that there are few kinds. A
forward whose kind has no graphs runs eagerly.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from wedlm_core.decoding.allowed_tokens import AllowedTokens
from wedlm_core.devices import forget_recording
from wedlm_core.engine.forward.cuda_graphs import Record, record_work
from wedlm_core.engine.forward.device_state import DeviceState
from wedlm_core.engine.forward.graph_policy import GraphBook
from wedlm_core.engine.forward.groups import WideRun
from wedlm_core.engine.forward.pack_gpu import Shape, facts_at_places
from wedlm_core.engine.forward.transfer import to_device
from wedlm_core.engine.scheduling.slots import IntArray

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

_USES = 4  # a kind is recorded at its fourth use, as recording takes as long as several eager forwards
_MOST_BITS = 64 << 20  # most bytes of the buffer for allowed tokens
_MOST, _MOST_COUNTED = 256, 4096  # kinds: with records, and with counted uses


@dataclass(frozen=True, kw_only=True)
class StepKind:
    """The host's part of the work around a forward: its fixed values. The others are read on the device.

    Attributes:
        sequences: of the forward.
        runs: its decoding sequences, and how wide their windows are.
        shape: bounds of its rows.
        uses: stages of sampling that any row needs (``DeviceState.uses``).
        most: likely tokens that any sequence reports.
        constrained: whether any sequence has a grammar.
    """

    sequences: int
    runs: tuple[WideRun, ...]
    shape: Shape
    uses: tuple[bool, ...] = ()
    most: int = 0
    constrained: bool = False


class StepWork:
    """The work around one forward, before the decoder and after it, done operation by operation.

    Attributes:
        runs, shape: bounds that the work is to be done with.
    """

    def __init__(self, kind: StepKind, device: torch.device) -> None:
        self.runs, self.shape, self._device = kind.runs, kind.shape, device

    def facts(self, facts_3S: IntArray, decoding: int) -> Tensor:
        """A plan's facts where the work reads them; its first sequences decode, so many."""
        return to_device(facts_3S, self._device)

    def before(self, work: Callable[[], Result]) -> Result:
        """Do the work before the decoder."""
        return work()

    def hidden(self, hidden_TD: Tensor) -> Tensor:
        """Hidden states where the work reads them."""
        return hidden_TD

    def after(self, state: DeviceState, work: Callable[[], Result]) -> Result:
        """Do the work after the decoder; the tokens that grammars allow are known then, or waited for."""
        return work()


class _RecordedStep(StepWork):
    """The work of one kind: each part is recorded when it is first done, and replayed from then on."""

    def __init__(self, kind: StepKind, graphs: StepGraphs) -> None:
        super().__init__(kind, graphs.device)
        self._graphs, self._constrained, self._sequences = graphs, kind.constrained, kind.sequences
        self._before: Record[Any] | None = None
        self._after: Record[Any] | None = None

    def facts(self, facts_3S: IntArray, decoding: int) -> Tensor:
        """See :class:`StepWork`; empty places follow the decoding sequences, and follow the others too."""
        return self._graphs.facts(facts_at_places(facts_3S, decoding, self.runs[-1].stop, self._sequences))

    def before(self, work: Callable[[], Result]) -> Result:
        """See :class:`StepWork`; ``work`` is called only to be recorded, or if that fails."""
        self._before = self._before or self._graphs.record(work)
        return self._graphs.replay(self._before, work)

    def hidden(self, hidden_TD: Tensor) -> Tensor:
        """See :class:`StepWork`."""
        return self._graphs.hidden(hidden_TD)

    def after(self, state: DeviceState, work: Callable[[], Result]) -> Result:
        """See :class:`StepWork`; ``work`` also runs if the allowed tokens do not fit in the buffers."""
        if self._constrained and not self._graphs.allow(state):
            return work()
        self._after = self._after or self._graphs.record(work)
        return self._graphs.replay(self._after, work)


class AllowedBuffers:
    """Buffers of the allowed tokens that recorded work reads."""

    def __init__(self, like: AllowedTokens, states: int) -> None:
        words, device = like.bits_UW.shape[1], like.line_N.device
        lines = max(1, min(states, _MOST_BITS // (4 * words)))
        self._bits_UW = torch.zeros(lines, words, dtype=torch.int32, device=device)
        self._line_N = torch.zeros(states, dtype=torch.int64, device=device)
        self._facts_3S = torch.zeros(3, like.first_S.shape[0], dtype=torch.int64, device=device)
        first_S, count_S, position_S = self._facts_3S
        self._kept = AllowedTokens(
            bits_UW=self._bits_UW, line_N=self._line_N, first_S=first_S, count_S=count_S, position_S=position_S
        )

    def take(self, allowed: AllowedTokens) -> AllowedTokens | None:
        """Copy the allowed tokens to the buffers and return these; None if they do not fit."""
        lines, states = allowed.bits_UW.shape[0], allowed.line_N.shape[0]
        if lines > self._bits_UW.shape[0] or states > self._line_N.shape[0]:
            return None
        self._bits_UW[:lines].copy_(allowed.bits_UW)
        self._line_N[:states].copy_(allowed.line_N)
        torch.stack([allowed.first_S, allowed.count_S, allowed.position_S], out=self._facts_3S)
        return self._kept


class StepGraphs:
    """Records the work around forwards, and replays it.

    Args:
        book: rounds bounds up, and accounts captures.
        sequences: most sequences of a forward.
        window: most places of a sequence's window.
        rows: rows of the largest forward whose work is recorded.
        hidden_size: D.
        dtype: dtype of hidden states.
        device: a CUDA device.
        logits_bytes: bytes of a row of logits.
        most_bytes: most bytes of the logits of recorded work.

    Attributes:
        device: as given.
        recorded: number of parts recorded so far.
    """

    def __init__(
        self, book: GraphBook, *, sequences: int, window: int, rows: int, hidden_size: int, dtype: torch.dtype,
        device: torch.device, logits_bytes: int, most_bytes: int,
    ) -> None:  # fmt: skip
        self._book, self.device, self._logits_bytes, self._most_bytes = book, device, logits_bytes, most_bytes
        self._facts_3S = torch.zeros(3, sequences, dtype=torch.int64, device=device)
        self._hidden_TD = torch.zeros(rows, hidden_size, dtype=dtype, device=device)
        self._allowed: AllowedBuffers | None = None
        self._states = 2 * sequences * (window + 1)  # of grammars that are walked, and of grammars with matchers
        self._records: WeakKeyDictionary[DeviceState, dict[StepKind, StepWork]] = WeakKeyDictionary()
        self._counted: WeakKeyDictionary[DeviceState, Counter[StepKind]] = WeakKeyDictionary()
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)
        self._uses, self._stale = _USES, False
        self.recorded = 0

    @contextmanager
    def at_first_use(self) -> Iterator[None]:
        """Record each kind at its first use, to measure the cost of forwards as they are once recorded."""
        self._uses = 1
        try:
            yield
        finally:
            self._uses = _USES

    def of(self, kind: StepKind, state: DeviceState, slots_S: IntArray, *, padded: bool) -> StepWork | None:
        """The work of a kind, recorded or to be recorded now; None if the forward should run eagerly.

        A large forward runs eagerly: the device takes longer than the host, or logits would take more memory than
        captures may.

        Args:
            kind: the forward's kind, without its stages of sampling and its grammars.
            state: the state that the work reads and writes.
            slots_S: slots of the forward.
            padded: whether the work skips places without a sequence.
        """
        rounded = self._rounded(kind, state, slots_S, padded=padded)
        if rounded is None:
            return None
        records = self._records.setdefault(state, {})
        found = records.get(rounded)
        if found is not None or self._stale or self._book.exhausted:
            return found
        counted = self._counted.setdefault(state, Counter())
        if len(counted) >= _MOST_COUNTED:
            counted.clear()
        counted[rounded] += 1
        if counted[rounded] < self._uses:
            return None
        if len(records) >= _MOST:
            records.pop(next(iter(records)))
        records[rounded] = fresh = _RecordedStep(rounded, self)
        return fresh

    def _rounded(self, kind: StepKind, state: DeviceState, slots_S: IntArray, *, padded: bool) -> StepKind | None:
        """The kind with its stages of sampling, and with bounds rounded up; None if its work is not recorded."""
        shape = kind.shape
        if self._stale or not kind.runs or shape.total > len(self._hidden_TD):
            return None
        sequences, runs = kind.sequences, kind.runs
        if padded:
            stop, sequences = self._book.padded_sequences(runs[-1].stop, sequences, shape.total)
            runs = (*runs[:-1], replace(runs[-1], stop=stop))
        bounds = self._book.key(shape.total, sequences=sequences, max_rows=shape.max_rows, max_kv=shape.max_kv)
        if bounds is None:
            return None
        # Padded rows of logits cost little time, but every further kind costs a capture.
        wanted = shape.total if 2 * shape.wanted > shape.total else self._book.padded(shape.wanted)
        assert wanted is not None  # never None, as wanted rows are no more than all rows
        if wanted * self._logits_bytes > self._most_bytes:
            return None
        return StepKind(
            sequences=sequences,
            runs=tuple(replace(run, width=1 << (run.width - 1).bit_length()) for run in runs),
            shape=replace(shape, max_rows=bounds.max_rows, max_kv=bounds.max_kv, wanted=wanted),
            uses=tuple(np.logical_or.reduce(state.uses[slots_S], axis=0).tolist()),
            most=state.most_reported(slots_S),
            constrained=state.allowed is not None,
        )

    def facts(self, facts_3S: IntArray) -> Tensor:
        """Copy the facts of a forward to the buffer that recorded work reads."""
        own_3S = self._facts_3S[:, : facts_3S.shape[1]]
        own_3S.copy_(to_device(facts_3S, self.device))
        return own_3S

    def hidden(self, hidden_TD: Tensor) -> Tensor:
        """Copy the hidden states of a forward to the buffer that recorded work reads."""
        own_TD = self._hidden_TD[: hidden_TD.shape[0]]
        own_TD.copy_(hidden_TD)
        return own_TD

    def allow(self, state: DeviceState) -> bool:
        """Copy the allowed tokens of this forward to the buffers of recorded work; False if they do not fit."""
        allowed = state.allowed_tokens()
        if allowed is None:
            return False
        if self._allowed is None:
            self._allowed = AllowedBuffers(allowed, self._states)
        kept = self._allowed.take(allowed)
        if kept is not None:
            state.allowed = lambda: kept
        return kept is not None

    def record(self, work: Callable[[], Result]) -> Record[Result] | None:
        """Record work without doing it; None if that fails, and for all later work too."""
        if self._stale:
            return None
        begin, (free, _) = time.perf_counter(), torch.cuda.mem_get_info(self.device)
        try:
            record = record_work(work, stream=self._stream, pool=self._pool)
        except Exception:
            logger.warning("the work around a forward cannot be captured: it runs eagerly", exc_info=True)
            self._stale = True
            self._records.clear()
            forget_recording(self.device)
            return None
        left, _ = torch.cuda.mem_get_info(self.device)
        self._book.spend(time.perf_counter() - begin, max(0, free - left))
        self.recorded += 1
        return record

    def replay(self, record: Record[Result] | None, work: Callable[[], Result]) -> Result:
        """Replay recorded work; run ``work`` if there is no record."""
        if record is None:
            return work()
        record.graph.replay()
        return record.result
