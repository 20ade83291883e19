"""Which attention backends there are, and which one ``"auto"`` means; resolved once per engine."""

from __future__ import annotations

import logging

import torch

from wedlm_core.attention.oracle import OracleAttention
from wedlm_core.attention.protocol import AttentionBackend
from wedlm_core.attention.sdpa import SdpaAttention
from wedlm_core.attention.tiled import TiledAttention
from wedlm_core.errors import ConfigError, explain

__all__ = ["backend_names", "resolve_backend"]

logger = logging.getLogger(__name__)

_BACKENDS: dict[str, type[AttentionBackend]] = {
    "tiled": TiledAttention,
    "sdpa": SdpaAttention,
    "oracle": OracleAttention,
}


def backend_names() -> list[str]:
    """Names that ``EngineConfig.attention`` takes besides ``"auto"``."""
    return sorted(_BACKENDS)


def resolve_backend(name: str, *, device: torch.device, batch_invariant: bool) -> AttentionBackend:
    """The backend for this device.

    Raises:
        ConfigError: an unknown name, or a backend that is not batch invariant where that was asked for.
    """
    if name == "auto":
        name = "tiled" if device.type == "cpu" else "sdpa"
        logger.info("attention backend: %s on %s", name, device)
    if name not in _BACKENDS:
        raise ConfigError(explain("attention", name, f'one of {backend_names()} or "auto"', 'Use "auto".'))
    backend = _BACKENDS[name]()
    if batch_invariant and not backend.batch_invariant:
        raise ConfigError(
            explain(
                "attention",
                name,
                "this backend is not batch invariant",
                'Use attention="tiled" or "auto", or set batch_invariant=False.',
            )
        )
    return backend
