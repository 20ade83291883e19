"""Continuous batching: sequences, scheduler, forwards. Knows requests and pages; nothing of files or Ray."""

from wedlm_core.engine.engine import Engine

__all__ = ["Engine"]
