"""Scorer: log-probabilities of given tokens under the next-token head, by packed prefills over the engine's KV pool.

A sequence needs a row for each token but its last, and logits for the rows in front of the tokens that are scored.
Sequences with equal beginnings share whole pages, as prompts do: the first one computes them, the others wait for it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

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
from wedlm_core.errors import IntegrityError
from wedlm_core.kv.pages import PageManager, SequencePages
from wedlm_core.kv.prefix import page_key


@dataclass(frozen=True, kw_only=True)
class Scored:
    """One scored sequence.

    Attributes:
        key: as it was added.
        logprobs: nats of each scored token; NaN where the model's logits are no numbers.
        greedy: whether each was the most likely token (the first of equal ones).
        cached_tokens: leading tokens whose KV was shared.
    """

    key: int
    logprobs: tuple[float, ...]
    greedy: tuple[bool, ...]
    cached_tokens: int


@dataclass(kw_only=True, eq=False)
class _Work:
    """A sequence under way: ``inputs`` of its tokens need a row, those from ``first`` on logits too."""

    key: int
    tokens: tuple[int, ...]
    first: int
    pages: SequencePages
    cached: int
    shared: int
    page_keys: list[bytes]
    logprobs: list[float] = field(default_factory=list)
    greedy: list[bool] = field(default_factory=list)

    @property
    def inputs(self) -> int:
        return len(self.tokens) - 1


class Scorer:
    """Scores sequences on an engine's model and pool. Not thread safe; the engine's own requests may be under way.

    Args:
        model_runner: the engine's.
        pages: its page manager; the scorer holds pages only within :meth:`step` and until a sequence is scored.
        config: row budget, sequences of a forward and memory for logits are the engine's.
        limits: of the engine on a sequence.
    """

    def __init__(self, model_runner: ModelRunner, pages: PageManager, config: EngineConfig, limits: Limits) -> None:
        self._runner, self._pages, self._config = model_runner, pages, config
        self.device = model_runner.device
        self._limits = limits
        self._chunk = config.logits_rows(limits.vocab_size)
        self._waiting: deque[tuple[int, tuple[int, ...], int]] = deque()
        self._running: list[_Work] = []

    def add(self, key: int, tokens: tuple[int, ...], scored: int) -> None:
        """Queue a sequence to score its last ``scored`` tokens.

        Raises:
            RequestError: no token in front of the scored ones, too many tokens, or ids out of range.
            CapacityError: the KV pool could not hold it even alone.
        """
        context = len(tokens) - scored
        check_scored(tokens[:context], tokens[context:], self._limits)
        self._waiting.append((key, tokens, scored))

    def has_work(self) -> bool:
        """Whether sequences wait or are under way."""
        return bool(self._waiting or self._running)

    def drop(self, key: int) -> None:
        """Forget a sequence and give its pages back; an unknown key is ignored."""
        for work in [work for work in self._running if work.key == key]:
            self._pages.close(work.pages)
            self._running.remove(work)
        self._waiting = deque(entry for entry in self._waiting if entry[0] != key)

    def clear(self) -> None:
        """Forget everything and give the pages back."""
        for work in self._running:
            self._pages.close(work.pages)
        self._running, self._waiting = [], deque()

    @on_own_device
    def step(self) -> list[Scored] | None:
        """Run one forward; the use of the result. None if nothing can run before other sequences free pages."""
        self._admit()
        if not self._running:
            return None
        left, chunks = self._config.max_batch_rows, []
        for work in self._running:
            rows = min(work.inputs - work.cached, left)
            if rows:
                chunks.append((work, rows))
                left -= rows
        self._forward(chunks)
        done = [self._close(work) for work, _ in chunks if work.cached == work.inputs]
        self._running = [work for work in self._running if work.cached < work.inputs]
        return done

    # ---- admission ------------------------------------------------------------------------------------

    def _admit(self) -> None:
        """Open pages for waiting sequences; those whose next page is being computed by another one wait for it."""
        room = self._config.max_num_seqs - len(self._running)
        rows = self._config.max_batch_rows - sum(work.inputs - work.cached for work in self._running)
        computing = {key for work in self._running for key in work.page_keys}
        passed: list[tuple[int, tuple[int, ...], int]] = []
        while self._waiting and room and rows > 0 and len(passed) < self._config.max_num_seqs:
            entry = self._waiting.popleft()
            work = self._open(*entry)
            if not computing.isdisjoint(self._sharable(work)):
                self._pages.close(work.pages)
                passed.append(entry)
                continue
            if not self._pages.grow(work.pages, work.inputs):
                self._pages.close(work.pages)
                passed.append(entry)
                break
            self._running.append(work)
            computing.update(work.page_keys)
            room, rows = room - 1, rows - (work.inputs - work.cached)
        self._waiting.extendleft(reversed(passed))

    def _open(self, key: int, tokens: tuple[int, ...], scored: int) -> _Work:
        first = len(tokens) - scored - 1
        inputs = tokens[:-1]
        pages = self._pages.open(inputs, first)
        work = _Work(key=key, tokens=tokens, first=first, pages=pages, cached=pages.cached_tokens,
                     shared=pages.cached_tokens, page_keys=[])  # fmt: skip
        if self._pages.prefix_caching:
            chain, size = pages.chain, self._pages.page_size
            for start in range(work.cached, len(inputs) - size + 1, size):
                chain = page_key(chain, inputs[start : start + size])
                work.page_keys.append(chain)
        return work

    def _sharable(self, work: _Work) -> list[bytes]:
        """The next page that the sequence could share, if another one had computed it."""
        return work.page_keys[:1] if work.cached + self._pages.page_size <= work.first else []

    # ---- the forward ----------------------------------------------------------------------------------

    @torch.inference_mode()
    def _forward(self, chunks: list[tuple[_Work, int]]) -> None:
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
        id_T = np.concatenate([work.tokens[work.cached : work.cached + rows] for work, rows in chunks])
        next_T = np.concatenate([work.tokens[work.cached + 1 : work.cached + rows + 1] for work, rows in chunks])
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
        logprob_R, greedy_R = self._scores(hidden_RD, next_T.astype(np.int64)[wanted_R])
        edges = np.searchsorted(sequence_T[wanted_R], np.arange(len(chunks) + 1))
        for s, (work, rows) in enumerate(chunks):
            work.logprobs += logprob_R[edges[s] : edges[s + 1]].tolist()
            work.greedy += greedy_R[edges[s] : edges[s + 1]].tolist()
            work.cached += rows
            if self._pages.prefix_caching and not any(map(_is_nan, work.logprobs)):
                self._pages.seal(work.pages, work.tokens[:-1], work.cached)

    def _scores(self, hidden_RD: Tensor, target_R: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Log-probability of each row's target, and whether it is the row's most likely token."""
        if not len(target_R):
            return np.empty(0, dtype=np.float32), np.empty(0, dtype=np.bool_)
        parts = list(self._chunks(hidden_RD, to_device(target_R, self.device)))
        logprob_R, greedy_R = (torch.cat(one) for one in zip(*parts, strict=True))
        return logprob_R.cpu().numpy(), greedy_R.cpu().numpy()

    def _chunks(self, hidden_RD: Tensor, target_R: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """In chunks of rows, so that logits stay within ``logits_chunk_bytes``."""
        for start in range(0, target_R.shape[0], self._chunk):
            targets = target_R[start : start + self._chunk]
            count = targets.shape[0]
            padded_RD = F.pad(hidden_RD[start : start + count], (0, 0, 0, -count % self._runner.padding))
            logits_RV = self._runner.head(padded_RD)[:count].float()
            best_R = logits_RV.max(dim=-1).indices
            log_RV = torch.log_softmax(logits_RV, dim=-1)
            yield log_RV.gather(-1, targets[:, None]).squeeze(-1), best_R == targets

    def _close(self, work: _Work) -> Scored:
        if len(work.logprobs) != work.inputs - work.first:
            raise IntegrityError(f"{len(work.logprobs)} log-probabilities of {work.inputs - work.first} tokens")
        if any(map(_is_nan, work.logprobs)):
            self._runner.pool.clear(self._pages.discard(work.pages))
        else:
            self._pages.close(work.pages)
        return Scored(key=work.key, logprobs=tuple(work.logprobs), greedy=tuple(work.greedy), cached_tokens=work.shared)


def _is_nan(value: float) -> bool:
    return value != value
