"""The decoder network, its CPU and GPU forms, and loading and saving its weights.

The CPU form also knows the KV pool and the attention plan of the CPU. The package knows nothing of requests, sampling
or scheduling. Names are imported when first used, because :mod:`wedlm_core.model.sources` must not need torch.
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
