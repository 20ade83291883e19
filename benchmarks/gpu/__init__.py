"""Benchmarks on a GPU: the parts of ``python -m benchmarks.gpu.minutes``, and ``python -m benchmarks.gpu.jobs``."""
