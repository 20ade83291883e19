"""Continuous batching: sequences, scheduler, forwards. Knows requests and pages; knows nothing of training, files or Ray."""

from wedlm_core.engine.engine import Engine

__all__ = ["Engine"]
