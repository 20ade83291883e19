"""Compiled CPU kernels (float32, numba): what lies between the matrix products of a step.

Written so that a row's result depends on nothing but that row (design, section 6, "batch invariance"): fused
multiply-adds are explicit and nothing else may be contracted or reordered, sums run over 16 fixed lanes, and
loop shapes depend on sizes of the model and on the row's own length only. So any variant of a loop (one
query or four at a time) gives the same bits.

Arrays are C-contiguous numpy views of tensors. Kernels release the interpreter lock and work on the rows (or
sequences) ``first .. last`` of their arguments, so that threads can share a forward. Knows no torch. Importing
a kernel imports numba, so it is done where one is first used.

The modules ``step`` and ``pack`` are the exception: integers and copies around the model, one call for all sequences
of a forward.

Modules named ``triton_*`` are kernels for GPUs and import triton, which is likewise done where one is first used.
"""
