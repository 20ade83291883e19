"""Benchmarks: scripts that measure, and their dated results. Not part of the distribution."""
