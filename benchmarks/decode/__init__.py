"""Decoding: tokens per second of every strategy, model and load on this machine; ``python -m benchmarks.decode``."""
