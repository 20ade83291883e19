"""Kernels for CPU, compiled by Numba. Know arrays of numbers; know nothing of models, pools or requests."""
