"""Decoding strategies: how windows are refilled, which rows need logits, and which of their choices are committed.

One file per family. A strategy is a class in a module of this package, registered by :func:`decodes` for its name in
:class:`wedlm_core.types.Strategy`; every module here is imported, so that line is all it takes.

Knows windows and choices as tensors over the sequences that share a strategy; knows nothing of the making of logits, of
pages, queues, requests, or devices.
"""

from __future__ import annotations

import importlib
import pkgutil

from wedlm_core.decoding.strategies.base import (
    Commit,
    Decoding,
    Refills,
    RowChoices,
    Wanted,
    decodes,
    decoding_of,
)

__all__ = ["Commit", "Decoding", "Refills", "RowChoices", "Wanted", "decodes", "decoding_of"]

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
