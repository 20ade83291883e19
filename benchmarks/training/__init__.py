"""Benchmarks of training: the results of the shipped model."""
