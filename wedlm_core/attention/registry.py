"""Which attention backends there are, and which one ``"auto"`` means; resolved once per engine."""

from __future__ import annotations

import importlib.util
import logging

import torch

from wedlm_core.attention.compiled import CompiledAttention
from wedlm_core.attention.oracle import OracleAttention
from wedlm_core.attention.protocol import AttentionBackend
from wedlm_core.attention.sdpa import SdpaAttention
from wedlm_core.attention.tiled import TiledAttention
from wedlm_core.errors import ConfigError, explain

__all__ = ["backend_names", "resolve_backend"]

logger = logging.getLogger(__name__)

_BACKENDS: dict[str, type[AttentionBackend]] = {
    "compiled": CompiledAttention,
    "tiled": TiledAttention,
    "sdpa": SdpaAttention,
    "oracle": OracleAttention,
}


def backend_names() -> list[str]:
    """Names that ``EngineConfig.attention`` takes besides ``"auto"``."""
    return sorted(_BACKENDS)


def _auto(device: torch.device, dtype: torch.dtype) -> str:
    if device.type != "cpu":
        return "sdpa"
    return "tiled" if _not_compiled(device, dtype) else "compiled"


def _not_compiled(device: torch.device, dtype: torch.dtype) -> str | None:
    """Why the compiled backend cannot be used; None if it can."""
    if device.type != "cpu" or dtype != torch.float32:
        return f"it runs in float32 on CPU only, not in {dtype} on {device}"
    if importlib.util.find_spec("numba") is None:
        return "the package numba is not installed"
    return None


def resolve_backend(name: str, *, device: torch.device, dtype: torch.dtype, batch_invariant: bool) -> AttentionBackend:
    """The backend for this device and dtype.

    Raises:
        ConfigError: an unknown name, a backend that cannot run here, or one that is not batch invariant where that
            was asked for.
    """
    if name == "auto":
        name = _auto(device, dtype)
        logger.info("attention backend: %s on %s", name, device)
    if name not in _BACKENDS:
        raise ConfigError(explain("attention", name, f'one of {backend_names()} or "auto"', 'Use "auto".'))
    if name == "compiled" and (why := _not_compiled(device, dtype)):
        raise ConfigError(explain("attention", name, why, 'Use attention="auto".'))
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
