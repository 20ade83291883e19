"""Benchmark scripts and their dated results. Not part of the distribution."""
