"""Which sequences run in the next forward, with how many rows, and who gives up pages. Torch-free.

First come, first served: decode rows before prefill chunks, older sequences before younger; under page
pressure the youngest running sequence is preempted and recomputed later (its slot and window are kept).
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from wedlm_core.config import EngineConfig
from wedlm_core.engine.scheduling.counters import EngineCounters
from wedlm_core.engine.scheduling.sequence import Sequence
from wedlm_core.engine.scheduling.slots import IntArray, SlotTable
from wedlm_core.kernels.cpu.slot_kernels import any_short, booked_rows, spend_rows
from wedlm_core.kv.pages import PageManager


@dataclass(frozen=True, kw_only=True)
class ForwardPlan:
    """The sequences of one forward, those with decode rows first, grouped by decoding implementation.

    Attributes:
        sequences: S of them.
        slots_S: int64.
        cached_S: KV entries each has from before.
        prefill_S: prefill rows of each (may be 0).
        decode_S: decode rows of each (0: its prefill does not end in this forward).
    """

    sequences: list[Sequence]
    slots_S: IntArray
    cached_S: IntArray
    prefill_S: IntArray
    decode_S: IntArray


class Scheduler:
    """Owns the queues, the slots and the pages; reads and writes the slot table.

    ``setup`` is called with the sequences that get a slot for the first time; it has to fill their rows of
    the table (``context``, ``rows``, ``group`` ...) before they are packed.

    Attributes:
        counters: the engine's; preemptions and prompts are counted here, forwards by the engine.
        changed: sequences whose page list changed since :meth:`take_changed`.
    """

    def __init__(
        self,
        config: EngineConfig,
        table: SlotTable,
        pages: PageManager,
        setup: Callable[[list[Sequence]], None],
    ) -> None:
        self.config, self.table, self.pages, self._setup = config, table, pages, setup
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []  # by arrival
        self._running_slots: IntArray | None = None  # None: to be made again
        self.changed: list[Sequence] = []
        self.counters = EngineCounters()
        self._free_slots = list(range(config.max_num_seqs - 1, -1, -1))

    def add(self, sequence: Sequence) -> None:
        """Queue a new sequence."""
        self.waiting.append(sequence)

    def finish(self, sequence: Sequence) -> None:
        """Give back everything a sequence holds, wherever it is."""
        if sequence.pages is not None:
            self.pages.close(sequence.pages)
            sequence.pages = None
        if sequence in self.running:
            self.running.remove(sequence)
            self._running_slots = None
        elif sequence in self.waiting:
            self.waiting.remove(sequence)
        if sequence.slot >= 0:
            self._free_slots.append(sequence.slot)
            sequence.slot = -1

    def schedule(self, *, may_preempt: bool = True) -> ForwardPlan | None:
        """Make room for the running, admit the waiting, pack the next forward.

        Returns:
            The plan; None where a sequence would have to be preempted and may not be.
        """
        preempted = self._make_room(may_preempt)
        if preempted and not may_preempt:
            return None
        if not preempted or not self.running:
            self._admit()
        return self._pack()

    def _make_room(self, may_preempt: bool) -> bool:
        """Give every decoding sequence the pages of its next forward; True if one has to be preempted."""
        table, preempted = self.table, False
        slots_R = self.running_slots()
        if not any_short(slots_R, table.context, table.cached, table.rows, table.capacity):
            return False
        need_R = table.cached[slots_R] + table.rows[slots_R]
        short_R = (table.cached[slots_R] == table.context[slots_R]) & (need_R > table.capacity[slots_R])
        for sequence in [self.running[i] for i in np.flatnonzero(short_R).tolist()]:
            slot = sequence.slot
            need = int(table.cached[slot] + table.rows[slot])
            while sequence.pages is not None and not self.pages.grow(sequence.pages, need):
                if not may_preempt:
                    return True
                self._preempt(self.running[-1])
                preempted = True
            self._note_capacity(sequence)
        return preempted

    def _preempt(self, sequence: Sequence) -> None:
        """Take a sequence's pages; it is recomputed from its tokens when pages are free again."""
        assert sequence.pages is not None
        self.pages.close(sequence.pages)
        sequence.pages = None
        sequence.preemptions += 1
        self.counters.preemptions += 1
        self.table.cached[sequence.slot] = 0
        self.table.capacity[sequence.slot] = 0
        self.running.remove(sequence)
        self._running_slots = None
        self.waiting.appendleft(sequence)

    def _note_capacity(self, sequence: Sequence) -> None:
        if sequence.pages is not None:
            self.table.capacity[sequence.slot] = len(sequence.pages.pages) * self.config.page_size
            self.changed.append(sequence)

    def take_changed(self) -> list[Sequence]:
        """Sequences whose page list changed since the last call (to be copied to the device)."""
        changed, self.changed = self.changed, []
        return changed

    def _admit(self) -> None:
        """Move waiting sequences to running while a slot, pages and the row budget allow."""
        if not self.waiting:
            return
        table = self.table
        booked = int(booked_rows(self.running_slots(), table.adaptive, table.rows, table.widest, table.head))
        fresh: list[Sequence] = []
        while self.waiting:
            sequence = self.waiting[0]
            most = most_rows(sequence)
            # Drafting keeps adaptive windows within the budget; at the least each takes the head's row.
            least = 1 if sequence.request.params.adaptive else most
            if self.running and booked + least > self.config.max_batch_rows:
                break
            if sequence.slot < 0 and not self._free_slots:
                break
            if not self._open_pages(sequence, most):
                break
            self.waiting.popleft()
            if sequence.slot < 0:
                sequence.slot = self._free_slots.pop()
                table.clear(sequence.slot)
                sequence.cached_prompt_tokens = sequence.pages.cached_tokens if sequence.pages else 0
                self.counters.prompt_tokens += sequence.prompt_length
                self.counters.cached_prompt_tokens += sequence.cached_prompt_tokens
                fresh.append(sequence)
            assert sequence.pages is not None
            table.cached[sequence.slot] = sequence.pages.cached_tokens
            self._note_capacity(sequence)
            insort(self.running, sequence, key=lambda s: s.arrival)
            self._running_slots = None
            booked += least
        if fresh:
            self._setup(fresh)

    def _open_pages(self, sequence: Sequence, most: int) -> bool:
        """Pages for the whole context and the widest decode step, sharing indexed ones; all or nothing."""
        tokens = self.known_tokens(sequence)
        context = len(tokens) - sequence.head
        pages = self.pages.open(tokens, context)
        if not self.pages.grow(pages, context + most):
            self.pages.close(pages)
            return False
        sequence.pages = pages
        return True

    def known_tokens(self, sequence: Sequence) -> list[int]:
        """Prompt and generated tokens."""
        prompt = list(sequence.request.prompt_token_ids)
        return prompt if sequence.slot < 0 else prompt + self.table.tokens_of(sequence.slot)

    def running_slots(self) -> IntArray:
        """Slots of the running sequences, by arrival; not to be written to."""
        if self._running_slots is None:
            self._running_slots = np.fromiter((s.slot for s in self.running), dtype=np.int64, count=len(self.running))
        return self._running_slots

    def _pack(self) -> ForwardPlan:
        """Spend the row budget: decoding sequences by age, then prefill chunks by age."""
        table, config = self.table, self.config
        slots_R = self.running_slots()
        plan_7R = np.empty((7, len(slots_R)), dtype=np.int64)
        count, in_order = spend_rows(
            slots_R, table.context, table.cached, table.rows, table.held, table.group, config.max_batch_rows,
            config.prefill_chunk or 0, plan_7R,
        )  # fmt: skip
        slots_S, cached_S, prefill_S, decode_S, places_S = plan_7R[:5, :count]
        running = self.running
        return ForwardPlan(
            sequences=running[:count] if in_order else [running[place] for place in places_S.tolist()],
            slots_S=slots_S,
            cached_S=cached_S,
            prefill_S=prefill_S,
            decode_S=decode_S,
        )


def context_length(sequence: Sequence) -> int:
    """Tokens of a new sequence that have to be in the KV cache before decode rows run: all but a head."""
    return sequence.prompt_length - sequence.head


def most_rows(sequence: Sequence) -> int:
    """Decode rows the sequence can need in one forward at most: 2W, and the head."""
    return 2 * sequence.widest + sequence.head
