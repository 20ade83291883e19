"""The decoder network and its weights. Knows nothing of sequences, pages or sampling.

Names are resolved on first use: :mod:`wedlm_core.model.sources` must be importable without torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wedlm_core.model.decoder import Attend, Decoder

__all__ = ["Attend", "Decoder"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from wedlm_core.model import decoder

    return getattr(decoder, name)
