"""Decoding strategies: how windows are refilled, which rows need logits, and which of their choices are committed.

One file per family. A strategy is a class in a module of this package, registered by :func:`decodes` for its name in
:class:`wedlm_core.types.Strategy`; every module here is imported, so that line is all it takes. A name without an
implementation is an error when this package is imported.

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
    missing_strategies,
)

__all__ = ["Commit", "Decoding", "Refills", "RowChoices", "Wanted", "decodes", "decoding_of"]

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
if _missing := missing_strategies():
    raise ImportError(f"no class of {__name__} decodes {[strategy.value for strategy in _missing]}")
