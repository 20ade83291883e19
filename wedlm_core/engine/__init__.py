"""Continuous batching: sequences, scheduler, forwards. Knows requests and pages; nothing of files or Ray.

``Engine`` is resolved on first use, so that the scheduler and the slot table stay importable without torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wedlm_core.engine.engine import Engine

__all__ = ["Engine"]


def __getattr__(name: str) -> Any:
    if name != "Engine":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from wedlm_core.engine.engine import Engine

    return Engine
