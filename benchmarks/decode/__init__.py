"""Decoding benchmarks on CPU: speed and quality of all strategies; the main one is ``python -m benchmarks.decode``."""
