"""The decoder's forward as CUDA graphs: one launch instead of some ten per layer.

A graph holds embedding, layers with their KV write and attention, and the final norm, for one padded row count. Its
inputs are buffers that all graphs share; further rows are padding. Graphs share one memory pool
too: a forward's result is used before the next one runs. Forwards without a graph run eagerly.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from wedlm_core.attention import DeviceRows
from wedlm_core.devices import forget_recording, on_device
from wedlm_core.engine.forward.graph_policy import GraphBook, GraphKey
from wedlm_core.engine.forward.pack_gpu import DeviceBatch

Result = TypeVar("Result")

logger = logging.getLogger(__name__)

_SCARCE_BYTES = 1 << 30
_BLOCK = 128  # rows that a program copies

Forward = Callable[[Tensor, Tensor, Tensor, DeviceRows], Tensor]
"""Ids, positions and KV slots (int64 ``[T]``) and rows -> hidden states ``[T, D]``, without asking the device."""


class StaticInputs:
    """The buffers that captured forwards read; all graphs share them.

    A fresh one stands for one row of one sequence, at the first slot of the first page; the rest is padding.

    Args:
        rows: of the largest forward.
        sequences: of a forward at most.
        page_size: tokens per KV page.
        device: where they live.
    """

    def __init__(self, *, rows: int, sequences: int, page_size: int, device: torch.device) -> None:
        self._sequences, self._page_size, self._device = sequences, page_size, device
        self._id_T = torch.zeros(rows, dtype=torch.int64, device=device)
        self._position_T = torch.zeros(rows, dtype=torch.int64, device=device)
        self._slot_T = torch.full((rows,), -1, dtype=torch.int64, device=device)
        self._slot_T[:1].zero_()
        self._cu_rows_Z = torch.ones(sequences + 1, dtype=torch.int32, device=device)
        self._cu_rows_Z[:1].zero_()
        self._kv_lengths_S = torch.zeros(sequences, dtype=torch.int32, device=device)
        self._kv_lengths_S[:1].fill_(1)
        self._pages: dict[int, Tensor] = {}  # by the table's width, so that a table's rows are contiguous

    def fill(self, key: GraphKey, batch: DeviceBatch) -> None:
        """Copy a forward's input; places after its sequences get no rows."""
        from wedlm_core.kernels.gpu.static_inputs import fill_inputs

        rows, table_SP = batch.rows, self._page_table(key)
        sequences, columns = rows.pages_SP.shape
        assert rows.pages_SP.is_contiguous()
        programs = max(-(-key.size // _BLOCK), self._sequences // _BLOCK + 1, sequences)
        with on_device(self._device):
            fill_inputs[(programs,)](
                batch.id_T, batch.position_T, batch.kv_entry_T, rows.cu_rows_Z, rows.kv_lengths_S, rows.pages_SP,
                self._id_T, self._position_T, self._slot_T, self._cu_rows_Z, self._kv_lengths_S, table_SP,
                key.size, sequences, self._sequences, columns, table_SP.shape[1], BLOCK=_BLOCK, num_warps=4,
            )  # fmt: skip

    def run(self, key: GraphKey, forward: Forward) -> Tensor:
        """The forward over the buffers as a graph of this key sees them."""
        size = key.size
        rows = DeviceRows(
            cu_rows_Z=self._cu_rows_Z[: key.sequences + 1],
            kv_lengths_S=self._kv_lengths_S[: key.sequences],
            pages_SP=self._page_table(key)[: key.sequences],
            max_rows=key.max_rows,
            max_kv=key.max_kv,
            total=size,
        )
        return forward(self._id_T[:size], self._position_T[:size], self._slot_T[:size], rows)

    def _page_table(self, key: GraphKey) -> Tensor:
        width = -(-key.max_kv // self._page_size)
        if width not in self._pages:
            self._pages[width] = torch.zeros(self._sequences, width, dtype=torch.int32, device=self._device)
        return self._pages[width]


@dataclass(frozen=True)
class Record(Generic[Result]):
    """Work that was recorded. Its result stays where it is, and holds the values of the last replay."""

    graph: torch.cuda.CUDAGraph
    result: Result


@dataclass(frozen=True)
class _Captured:
    """A forward, and the tensors that it reads and others may replace."""

    forward: Record[Tensor]
    held: tuple[Tensor, ...]


class DecoderGraphs:
    """Captures forwards and replays them.

    Args:
        forward: the decoder over packed rows.
        book: sizes and budget.
        inputs: with room for the book's largest size.
        holds: tensors that the forward reads and others may replace (a second engine on the same model may extend
            rotary tables): a graph keeps the tensors of its capture.
        device: a CUDA device.
    """

    def __init__(
        self,
        forward: Forward,
        book: GraphBook,
        inputs: StaticInputs,
        *,
        holds: Callable[[], tuple[Tensor, ...]],
        device: torch.device,
    ) -> None:
        self._forward, self._book, self._inputs, self._holds, self._device = forward, book, inputs, holds, device
        self._graphs: dict[GraphKey, _Captured] = {}
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)
        self._stale = False

    def padded(self, rows: int) -> int | None:
        """Rows that a forward is padded to; None where it is too large for a graph."""
        return self._book.padded(rows)

    @property
    def captured(self) -> int:
        """Graphs so far."""
        return len(self._graphs)

    @torch.inference_mode()
    def capture_first(self) -> None:
        """Capture a graph for every size, within the budget; the KV pool must hold nothing yet."""
        begin = time.perf_counter()
        for key in self._book.first_keys():
            if self._stale or self._book.exhausted:
                break
            self._run_eagerly(key)
            self._capture(key)
        logger.info("captured %d CUDA graphs in %.1f s", len(self._graphs), time.perf_counter() - begin)

    def run(self, batch: DeviceBatch) -> Tensor | None:
        """Hidden states ``[T, D]``, valid until the next call; None where the forward has to run eagerly.

        A forward that is captured on the way takes as long as a dozen others: :attr:`captured` grows then.
        """
        rows = batch.rows
        if self._stale or self._book.padded(rows.total) != rows.total:
            return None
        sequences = rows.kv_lengths_S.shape[0]
        key = self._book.key(rows.total, sequences=sequences, max_rows=rows.max_rows, max_kv=rows.max_kv)
        if key is None:
            return None
        if self._book.wants(key):
            self._inputs.fill(key, batch)
            hidden_TD = self._run_eagerly(key)
            self._capture(key)
            return hidden_TD
        found = self._book.covering(key)
        if found is None:
            return None
        self._inputs.fill(found, batch)
        forward = self._graphs[found].forward
        forward.graph.replay()
        return forward.result

    def _run_eagerly(self, key: GraphKey) -> Tensor:
        """On the stream of the captures, where libraries then have their workspaces; the caller's stream waits."""
        current = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            hidden_TD = self._inputs.run(key, self._forward)
        current.wait_stream(self._stream)
        hidden_TD.record_stream(current)
        return hidden_TD

    def _capture(self, key: GraphKey) -> None:
        """Record the forward without running it; a backend that cannot be recorded ends all captures."""
        begin = time.perf_counter()
        torch.cuda.synchronize(self._device)
        free, _ = torch.cuda.mem_get_info(self._device)
        if free < _SCARCE_BYTES:  # memory that the allocator keeps cannot be given back while recording
            torch.cuda.empty_cache()
            free, _ = torch.cuda.mem_get_info(self._device)
        try:
            forward = record_work(lambda: self._inputs.run(key, self._forward), stream=self._stream, pool=self._pool)
        except Exception:
            logger.warning("a forward of %d rows cannot be captured: forwards run eagerly", key.size, exc_info=True)
            self._stale = True
            forget_recording(self._device)
            return
        left, _ = torch.cuda.mem_get_info(self._device)
        self._graphs[key] = _Captured(forward, self._holds())
        self._book.captured(key, time.perf_counter() - begin, max(0, free - left))


def record_work(work: Callable[[], Result], *, stream: torch.cuda.Stream, pool: Any) -> Record[Result]:
    """Record work without doing it, on a stream of its own; the caller's is the current one again, whatever happens.

    ``torch.cuda.graph`` would collect garbage and empty the allocator's cache first, which takes longer than the
    recording: the graphs' pool is their own, and the memory that it needs is free.
    """
    graph, current = torch.cuda.CUDAGraph(), torch.cuda.current_stream(stream.device)
    try:
        with torch.cuda.stream(stream):
            graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            try:
                return Record(graph, work())
            finally:
                graph.capture_end()
    finally:
        torch.cuda.set_stream(current)
