"""Scorer: log-probabilities of given tokens under the next-token head, by packed prefills over the engine's KV pool.

A sequence needs a row for each token but its last, and logits for each row that precedes a scored token. The context of
a sequence is its tokens before the scored ones. Sequences with equal beginnings share whole pages, as prompts do: one
computes them while the others wait. Sequences with the same context then also copy its last, partial page. Sequences
that differ only in the last token are computed as one.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from wedlm_core.attention import PackedRows
from wedlm_core.config import EngineConfig
from wedlm_core.devices import on_own_device
from wedlm_core.engine.forward.model_runner import ModelRunner
from wedlm_core.engine.forward.transfer import to_device
from wedlm_core.engine.scheduling.admission import Limits, check_scored
from wedlm_core.engine.scored_work import Scored, Waiting, Work, targets_of
from wedlm_core.errors import IntegrityError
from wedlm_core.kv.pages import PageManager, SequencePages
from wedlm_core.kv.prefix import page_key


class Scorer:
    """Scores sequences on an engine's model and pool, also while the engine generates. Not thread safe.

    Args:
        model_runner: the engine's.
        pages: its page manager; the scorer holds pages only until its sequences are scored.
        config: the engine's; gives the row budget, the sequences of a forward and the memory for logits.
        limits: the engine's limits on a sequence.
    """

    def __init__(self, model_runner: ModelRunner, pages: PageManager, config: EngineConfig, limits: Limits) -> None:
        self._runner, self._pages, self._config = model_runner, pages, config
        self.device = model_runner.device
        self._limits = limits
        self._chunk = config.logits_rows(limits.vocab_size)
        self._waiting: deque[Waiting] = deque()
        self._running: list[Work] = []
        self._contexts: Counter[tuple[int, ...]] = Counter()  # of waiting entries
        self._same: dict[
            tuple[tuple[int, ...], int], Waiting
        ] = {}  # waiting entries by inputs and length of the context
        self._scored: dict[tuple[int, ...], SequencePages] = {}  # pages of contexts that waiting entries copy

    def add(self, key: int, tokens: tuple[int, ...], scored: int) -> None:
        """Queue a sequence to score its last ``scored`` tokens.

        Raises:
            RequestError: no token before the scored ones, too many tokens, or ids out of range.
            CapacityError: the KV pool could not hold it even alone.
        """
        context = tokens[: len(tokens) - scored]
        check_scored(context, tokens[len(context) :], self._limits)
        entry = self._same.get((tokens[:-1], len(context)))
        if entry is None:
            entry = Waiting(inputs=tokens[:-1], context=context, ends={})
            self._same[entry.inputs, len(context)] = entry
            self._waiting.append(entry)
            self._contexts[context] += 1
        entry.ends[key] = tokens[-1]

    def has_work(self) -> bool:
        """Whether any sequence waits or runs."""
        return bool(self._waiting or self._running)

    def drop(self, key: int) -> None:
        """Forget a sequence and give its pages back; an unknown key is ignored."""
        for work in [work for work in self._running if work.ends.keys() == {key}]:
            self._pages.close(work.pages)
            self._running.remove(work)
        for entry in [entry for entry in self._waiting if entry.ends.keys() == {key}]:
            self._waiting.remove(entry)
            self._admitted(entry)
        for one in (*self._running, *self._waiting):
            one.ends.pop(key, None)

    def clear(self) -> None:
        """Forget everything and give the pages back."""
        for pages in (*(work.pages for work in self._running), *self._scored.values()):
            self._pages.close(pages)
        self._running, self._waiting, self._scored = [], deque(), {}
        self._contexts.clear()
        self._same.clear()

    @on_own_device
    def step(self) -> list[Scored] | None:
        """Run one forward and return the finished sequences; None if all wait for pages of other sequences."""
        self._admit()
        if not self._running and self._scored:  # perhaps only their pages are missing
            self._give_back(list(self._scored))
            self._admit()
        if not self._running:
            return None
        left, chunks = self._config.max_batch_rows, []
        for work in self._running:
            rows = min(work.left, left)
            if rows:
                chunks.append((work, rows))
                left -= rows
        self._forward(chunks)
        done = [one for work, _ in chunks if not work.left for one in self._close(work)]
        self._running = [work for work in self._running if work.left]
        return done

    # ---- admission ------------------------------------------------------------------------------------

    def _admit(self) -> None:
        """Open pages for waiting entries. An entry waits while another one computes its context or next page."""
        room = self._config.max_num_seqs - len(self._running)
        rows = self._config.max_batch_rows - sum(work.left for work in self._running)
        computing = {key for work in self._running for key in work.page_keys}
        contexts = {work.context for work in self._running} - self._scored.keys()
        passed: list[Waiting] = []
        while self._waiting and room and rows > 0 and len(passed) < self._config.max_num_seqs:
            entry = self._waiting.popleft()
            if entry.context in contexts and self._is_copied(entry):
                passed.append(entry)
                continue
            work = self._open(entry)
            if not computing.isdisjoint(self._sharable(work)):
                self._pages.close(work.pages)
                passed.append(entry)
                continue
            if not self._pages.grow(work.pages, len(work.inputs)):
                self._pages.close(work.pages)
                passed.append(entry)
                break
            self._copy_context(work)
            self._admitted(entry)
            self._running.append(work)
            computing.update(work.page_keys)
            if entry.context not in self._scored:
                contexts.add(entry.context)
            room, rows = room - 1, rows - work.left
        self._waiting.extendleft(reversed(passed))

    def _open(self, entry: Waiting) -> Work:
        pages = self._pages.open(entry.inputs, len(entry.context) - 1)
        work = Work(inputs=entry.inputs, context=entry.context, ends=entry.ends, pages=pages,
                     cached=pages.cached_tokens, shared=pages.cached_tokens)  # fmt: skip
        if self._pages.prefix_caching:
            chain, size = pages.chain, self._pages.page_size
            for start in range(work.cached, len(work.inputs) - size + 1, size):
                chain = page_key(chain, work.inputs[start : start + size])
                work.page_keys.append(chain)
        return work

    def _sharable(self, work: Work) -> list[bytes]:
        """The key of the next page that the sequence could share once another one has computed it."""
        return work.page_keys[:1] if work.cached + self._pages.page_size <= work.first else []

    def _is_copied(self, entry: Waiting) -> bool:
        """Whether a copy saves rows: tokens of the context before its last one lie outside of whole pages."""
        return self._pages.prefix_caching and (len(entry.context) - 1) % self._pages.page_size > 0

    def _copy_context(self, work: Work) -> None:
        """Copy the context's KV that is in no shared page, but not of its last token: that row is needed for logits."""
        scored, size = self._scored.get(work.context), self._pages.page_size
        if scored is None:
            return
        places = slice(work.cached // size, -(-work.first // size))
        self._runner.pool.copy(scored.pages[places], work.pages.pages[places])
        work.cached = work.shared = work.first

    def _admitted(self, entry: Waiting) -> None:
        """Take an entry out of the waiting ones; give back the pages of its context if no other one copies it."""
        del self._same[entry.inputs, len(entry.context)]
        self._contexts[entry.context] -= 1
        if not self._contexts[entry.context]:
            del self._contexts[entry.context]
            self._give_back([entry.context])

    def _give_back(self, contexts: Sequence[tuple[int, ...]]) -> None:
        """Give back the pages of scored contexts."""
        for context in contexts:
            if (pages := self._scored.pop(context, None)) is not None:
                self._pages.close(pages)

    # ---- the forward ----------------------------------------------------------------------------------

    @torch.inference_mode()
    def _forward(self, chunks: list[tuple[Work, int]]) -> None:
        """Run rows of several sequences, and take the log-probabilities of the tokens after them."""
        size = self._pages.page_size
        counts_S = np.array([rows for _, rows in chunks], dtype=np.int64)
        cached_S = np.array([work.cached for work, _ in chunks], dtype=np.int64)
        widest = int((cached_S + counts_S + size - 1).max()) // size
        pages_SP = np.zeros((len(chunks), widest), dtype=np.int64)
        for s, (work, rows) in enumerate(chunks):
            held = work.pages.pages[: -(-(work.cached + rows) // size)]
            pages_SP[s, : len(held)] = held
        starts_S = np.cumsum(counts_S) - counts_S
        sequence_T = np.repeat(np.arange(len(chunks)), counts_S)
        position_T = np.arange(int(counts_S.sum())) - starts_S[sequence_T] + cached_S[sequence_T]
        id_T = np.concatenate([work.inputs[work.cached : work.cached + rows] for work, rows in chunks])
        entry_T = pages_SP[sequence_T, position_T // size] * size + position_T % size
        first_S = np.array([work.first for work, _ in chunks], dtype=np.int64)
        wanted_R = np.flatnonzero(position_T >= first_S[sequence_T])
        hidden_RD = self._runner.run(
            to_device(id_T.astype(np.int64), self.device),
            to_device(position_T, self.device),
            to_device(entry_T, self.device),
            PackedRows(
                counts_S=counts_S, cached_S=cached_S, starts_S=starts_S, pages_SP=to_device(pages_SP, self.device)
            ),
            to_device(wanted_R, self.device),
        )
        sequence_R = sequence_T[wanted_R]
        edges = np.searchsorted(sequence_R, np.arange(len(chunks) + 1)).tolist()
        row_N, target_N, counts = targets_of(chunks, edges)
        logprob_N, greedy_N = self._scores(hidden_RD, row_N, target_N)
        ends = np.cumsum([0, *counts]).tolist()
        for s, (work, rows) in enumerate(chunks):
            work.logprobs += logprob_N[ends[s] : ends[s + 1]].tolist()
            work.greedy += greedy_N[ends[s] : ends[s + 1]].tolist()
            work.cached += rows
            if self._pages.prefix_caching and not any(map(_is_nan, work.logprobs)):
                self._pages.seal(work.pages, work.inputs, work.cached)

    def _scores(self, hidden_RD: Tensor, row_N: np.ndarray, target_N: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Log-probability of each target after its row, and whether it is the most likely token there."""
        if not len(target_N):
            return np.empty(0, dtype=np.float32), np.empty(0, dtype=np.bool_)
        hidden_ND = hidden_RD.index_select(0, to_device(row_N, self.device))
        parts = list(self._chunks(hidden_ND, to_device(target_N, self.device)))
        logprob_N, greedy_N = (torch.cat(one) for one in zip(*parts, strict=True))
        return logprob_N.cpu().numpy(), greedy_N.cpu().numpy()

    def _chunks(self, hidden_ND: Tensor, target_N: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """The same in chunks of rows, so that logits stay within ``logits_chunk_bytes``."""
        for start in range(0, target_N.shape[0], self._chunk):
            targets = target_N[start : start + self._chunk]
            count = targets.shape[0]
            padded_RD = F.pad(hidden_ND[start : start + count], (0, 0, 0, -count % self._runner.padding))
            logits_RV = self._runner.head(padded_RD)[:count].float()
            best_R = logits_RV.max(dim=-1).indices
            log_RV = torch.log_softmax(logits_RV, dim=-1)
            yield log_RV.gather(-1, targets[:, None]).squeeze(-1), best_R == targets

    def _close(self, work: Work) -> list[Scored]:
        """The results of a finished work; its pages stay open while waiting entries have its context."""
        if len(work.logprobs) != len(work.targets):
            raise IntegrityError(f"{len(work.logprobs)} log-probabilities of {len(work.targets)} tokens")
        if any(map(_is_nan, work.logprobs)):
            self._runner.pool.clear(self._pages.discard(work.pages))
        elif self._contexts[work.context] and self._is_copied(work) and work.context not in self._scored:
            self._scored[work.context] = work.pages
        else:
            self._pages.close(work.pages)
        common = len(work.inputs) - len(work.context)
        return [
            Scored(
                key=key,
                logprobs=(*work.logprobs[:common], work.logprobs[common + place]),
                greedy=(*work.greedy[:common], work.greedy[common + place]),
                cached_tokens=len(work.context) if place else work.shared,
            )
            for place, key in enumerate(work.ends)
        ]


def _is_nan(value: float) -> bool:
    return value != value
