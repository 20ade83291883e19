"""Benchmarks on a GPU: the sections of ``python -m benchmarks.gpu.suite``."""
