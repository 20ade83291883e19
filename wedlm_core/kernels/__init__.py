"""Compute kernels below the torch level: :mod:`.cpu` is compiled by Numba, :mod:`.gpu` by Triton.

Knows arrays and tensors. Knows nothing of models, the KV pool's bookkeeping, sequences or requests. Importing a kernel
module imports its compiler, so modules elsewhere import it only where a kernel is first used.
"""
