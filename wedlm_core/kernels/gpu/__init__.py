"""Kernels for GPU, compiled by Triton. Know tensors; know nothing of models, pools or requests."""
