"""Whether an engine's tensors fit in its device's memory at all: asked before anything is allocated."""

from __future__ import annotations

import os

import torch

from wedlm_core.config import EngineConfig
from wedlm_core.errors import ConfigError, explain

__all__ = ["check_room", "state_bytes"]

_GIB = 2.0**30
_ENTRY_BYTES = 8  # of a token id
_PAGE_BYTES = 12  # of an entry of the page tables, on the host and on the device
_PLACE_BYTES = 14  # of a place of a window: token, entropy, two flags


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

    Args:
        config: of the engine.
        pool_bytes: of the KV pool.
        reach: positions a sequence can have.
        device: where both live.

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
