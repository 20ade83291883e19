"""Memory of an engine: whether its pool and slots fit in the device at all, and the number of pages of the pool.

On CUDA that is the memory that a real forward of the largest shape leaves free.

The forward is run before the pool exists, with a single page for all sequences: results are worthless, allocations are
as in any forward. The arithmetic is plain logic over a :class:`MemoryReading`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from wedlm_core.attention import AttentionBackend, PackedRows
from wedlm_core.config import EngineConfig
from wedlm_core.decoding.allowed_tokens import AllowedTokens
from wedlm_core.decoding.filters import FILTERS
from wedlm_core.decoding.parameters import OPTIONAL
from wedlm_core.decoding.strategies import decoding_of
from wedlm_core.engine.forward.device_state import DeviceState
from wedlm_core.engine.forward.logits import Chooser, Picks
from wedlm_core.errors import CapacityError, ConfigError, explain
from wedlm_core.host_memory import available_memory, pool_bytes
from wedlm_core.kv.pool import KVPool
from wedlm_core.model.decoder import Decoder
from wedlm_core.types import Request, SamplingParams, Strategy

_LOG = logging.getLogger(__name__)

_RESERVE_SHARE, _RESERVE_BYTES = 0.02, 256 << 20  # for libraries' workspaces and fragmentation
_GIB = 2.0**30
_ENTRY_BYTES = 8  # of a token id
_PAGE_BYTES = 12  # of an entry of the page tables, on the host and on the device
_PLACE_BYTES = 14  # of a place of a window: token, entropy, two flags


@dataclass(frozen=True, kw_only=True)
class MemoryReading:
    """Bytes of one device, read after the peak forward.

    Attributes:
        total: of the device.
        outside: bytes held by other processes and CUDA itself: neither free nor of this process's allocator.
        foreign: allocated by this process to anything but the engine's model, before the engine was built.
        peak: allocated by this process at the peak of the forward, ``foreign`` and the model included, and the most
            that CUDA graphs may take.
    """

    total: int
    outside: int
    foreign: int
    peak: int

    @property
    def fixed(self) -> int:
        """Memory of the engine in addition to its pages: weights, state, the largest forward and its graphs."""
        return self.peak - self.foreign

    @property
    def reserve(self) -> int:
        """Left free on a device that others fill as well."""
        return max(_RESERVE_BYTES, int(_RESERVE_SHARE * self.total))


def pages_that_fit(reading: MemoryReading, config: EngineConfig, page_bytes: int) -> int:
    """Pages: the engine holds at most its share of the device, and all processes together fit.

    Raises:
        CapacityError: not even one window fits.
    """
    share = config.gpu_memory_utilization
    allowed = min(share * reading.total, reading.total - reading.outside - reading.foreign - reading.reserve)
    pages = int((allowed - reading.fixed) // page_bytes)
    least = -(-(2 * config.max_window + 2) // config.page_size)
    if pages < least:
        gib = 2.0**30
        raise CapacityError(
            explain(
                "gpu_memory_utilization",
                share,
                f"of {reading.total / gib:.1f} GiB others use {(reading.outside + reading.foreign) / gib:.1f} "
                f"and this engine {reading.fixed / gib:.1f} for weights and its largest forward, so {pages} pages of "
                f"{page_bytes / 2**20:.1f} MiB are left where {least} are needed",
                "Raise it, free the device, or lower max_batch_rows or logits_chunk_bytes.",
            )
        )
    return pages


def count_pages(
    model: Decoder,
    backend: AttentionBackend,
    config: EngineConfig,
    reach: int,
    page_bytes: int,
    make_pool: Callable[[int], KVPool],
) -> int:
    """Pages of an engine's pool: as configured, else by memory, and no more than its sequences could use.

    Args:
        model: on its device, with rotary tables for ``reach`` positions.
        backend: attention.
        config: ``num_pages`` and ``kv_cache_bytes`` win over the device's memory.
        reach: positions a sequence can have.
        page_bytes: of one page, over all layers.
        make_pool: makes a pool of so many pages.

    Raises:
        CapacityError: the device has no room.
    """
    if config.num_pages is not None:
        return config.num_pages
    if config.kv_cache_bytes is not None:
        return max(1, config.kv_cache_bytes // page_bytes)
    useful = config.max_num_seqs * -(-reach // config.page_size)
    device = model.device
    if device.type != "cuda":
        return min(useful, max(1, pool_bytes(available_memory()) // page_bytes))
    reading = _read_peak(model, backend, config, reach, make_pool)
    return min(useful, pages_that_fit(reading, config, page_bytes))


def say_shortfall(config: EngineConfig, pages: int, reach: int, page_bytes: int) -> None:
    """Say in one line how many sequences of full length a pool holds, if they are fewer than may run at once."""
    whole = pages // -(-reach // config.page_size)
    if whole >= config.max_num_seqs:
        return
    chosen = config.num_pages is not None or config.kv_cache_bytes is not None
    _LOG.log(
        logging.INFO if chosen else logging.WARNING,
        "the KV pool of %.1f GiB holds %d tokens: %d of max_num_seqs=%d sequences of full length (%d tokens). "
        "If more of them grow so long, some are preempted and computed again. Raise kv_cache_bytes, or lower "
        "max_model_len or max_num_seqs.",
        pages * page_bytes / 2**30, pages * config.page_size, whole, config.max_num_seqs, reach,
    )  # fmt: skip


def _read_peak(
    model: Decoder,
    backend: AttentionBackend,
    config: EngineConfig,
    reach: int,
    make_pool: Callable[[int], KVPool],
) -> MemoryReading:
    device = model.device
    own = sum(t.numel() * t.element_size() for t in (*model.parameters(), *model.buffers()))
    foreign = max(0, torch.cuda.memory_allocated(device) - own)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    try:
        peak_forward(model, backend, config, reach, make_pool(1))
        torch.cuda.synchronize(device)
    except torch.OutOfMemoryError as error:
        free, total = torch.cuda.mem_get_info(device)
        raise CapacityError(
            explain(
                "max_batch_rows",
                config.max_batch_rows,
                f"a forward of this many rows with {config.logits_rows(model.config.vocab_size)} rows of logits does "
                f"not fit on the device with the weights ({free / 2**30:.1f} of {total / 2**30:.1f} GiB are free)",
                "Lower max_batch_rows or logits_chunk_bytes, or free the device.",
            )
        ) from error
    graphs = 0 if config.cuda_graphs is False else config.graph_bytes  # captured later, and kept
    peak = torch.cuda.max_memory_allocated(device) + graphs
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(device)
    outside = max(0, total - free - torch.cuda.memory_reserved(device))
    return MemoryReading(total=total, outside=outside, foreign=foreign, peak=peak)


@torch.inference_mode()
def peak_forward(model: Decoder, backend: AttentionBackend, config: EngineConfig, reach: int, pool: KVPool) -> None:
    """The forward that allocates most: all rows in use, and a full chunk of logits with every stage of sampling.

    Args:
        model: the decoder.
        backend: attention.
        config: ``max_batch_rows``, ``max_num_seqs`` and ``logits_rows`` set the shape.
        reach: positions a sequence can have, for the state that the engine keeps of its sequences.
        pool: one page is enough: all sequences write to page 0.
    """
    device, rows, size = model.device, config.max_batch_rows, pool.page_size
    decodings = list(dict.fromkeys(decoding_of(strategy, config) for strategy in Strategy))
    state = DeviceState(config, decodings, 0, reach, device)
    sequences = min(config.max_num_seqs, rows)
    counts_S = np.full(sequences, rows // sequences, dtype=np.int64)
    counts_S[: rows % sequences] += 1
    # A sequence has no more positions than ``reach``, and rotary tables no more rows: here they come again.
    position_T = torch.from_numpy(np.concatenate([np.arange(count) % reach for count in counts_S])).to(device)
    pages_SP = torch.zeros(sequences, -(-int(counts_S.max()) // size), dtype=torch.int64, device=device)
    packed = PackedRows(
        counts_S=counts_S, cached_S=np.zeros_like(counts_S), starts_S=np.cumsum(counts_S) - counts_S, pages_SP=pages_SP
    )
    plan = backend.plan(packed, pool, model.config.num_attention_heads)
    pool_rows = pool.flat_index(position_T % size)

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        pool.write(layer, pool_rows, k, v)
        return plan.attend(layer, q)

    hidden_TD = model(torch.zeros_like(position_T), position_T, attend)
    _choose(model, config, hidden_TD, state)


def _choose(model: Decoder, config: EngineConfig, hidden_TD: Tensor, state: DeviceState) -> None:
    """A row in each common way, so that its kernels are compiled; then a chunk of rows with every stage."""
    vocab, device = model.config.vocab_size, hidden_TD.device
    chunk = config.logits_rows(vocab)
    choose = Chooser(device, head=model.lm_head, chunk_rows=chunk, padding=1, mask_token_id=0, vocab_limit=vocab)
    every: dict[str, Any] = {one.field: one.example for one in OPTIONAL}
    filters: dict[str, Any] = {one.field: one.example for one in FILTERS}
    report = {"logprobs": 1}
    common: list[dict[str, Any]] = [{}, report, filters, {**filters, **report}, {**filters, "presence_penalty": 0.5}]
    free = AllowedTokens.free(vocab, config.max_num_seqs, device)
    for params in ({"temperature": heat, **own} for heat in (0.0, 1.0) for own in common):
        for allowed in (None, lambda: free):
            _set_up(state, SamplingParams(**params))
            state.allowed = allowed
            choose(hidden_TD, _first_rows(1, state, hidden_TD), state, np.zeros(1, dtype=np.int64))
    state.allowed = None
    _set_up(state, SamplingParams(temperature=1.0, **every))
    state.suppresses[0] = True
    rows = min(hidden_TD.shape[0], chunk)
    choose(hidden_TD, _first_rows(rows, state, hidden_TD), state, np.zeros(1, dtype=np.int64))


def _set_up(state: DeviceState, params: SamplingParams) -> None:
    request = Request(request_id="", prompt_token_ids=(0,), params=params)
    state.setup([request], [0], [0], [(0,)], [((0, 0),)] if params.bad_words else ())


def _first_rows(count: int, state: DeviceState, hidden_TD: Tensor) -> Picks:
    """Of one sequence, which may be shorter."""
    row_R = torch.arange(count, device=hidden_TD.device)
    return Picks(
        row_R=row_R,
        flat_R=row_R,
        slot_R=torch.zeros_like(row_R),
        position_R=row_R.clamp(max=state.tokens_SL.shape[1] - 1),
        places=hidden_TD.shape[0],
    )


def state_bytes(config: EngineConfig, reach: int) -> int:
    """Bytes that are kept of all slots besides keys and values: tokens, page tables and windows.

    Args:
        config: ``max_num_seqs``, ``max_window`` and ``page_size`` are read.
        reach: positions a sequence can have.
    """
    pages = -(-reach // config.page_size)
    of_slot = _ENTRY_BYTES * (reach + 1) + _PAGE_BYTES * pages + _PLACE_BYTES * 2 * config.max_window
    return config.max_num_seqs * of_slot


def check_room(config: EngineConfig, pool_bytes: int, reach: int, device: torch.device) -> None:
    """Refuse a KV pool, or slots, that are larger than the device's memory.

    Raises:
        ConfigError: they do not fit; the message names the field that asks for them.
    """
    total, state = _memory(device), state_bytes(config, reach)
    if total is None or pool_bytes + state <= total:
        return
    if pool_bytes >= state:
        name = "num_pages" if config.num_pages is not None else "kv_cache_bytes"
        value, what, needed = getattr(config, name), "the KV pool", pool_bytes
    else:
        name, value = "max_num_seqs, positions", f"{config.max_num_seqs}, {reach}"
        what, needed = "the state of so many sequences", state
    rule = f"{what} takes {needed / _GIB:.1f} GiB, and {device} has {total / _GIB:.1f} GiB in all"
    remedy = f"Lower {'max_num_seqs or max_model_len' if needed == state else 'it, or drop it to use the default'}."
    raise ConfigError(explain(name, value, rule, remedy))


def _memory(device: torch.device) -> int | None:
    """Bytes of the device, in use or not; None where the system does not tell."""
    if device.type == "cuda" and torch.cuda.is_available():
        return torch.cuda.get_device_properties(device).total_memory
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # not a POSIX system
        return None
