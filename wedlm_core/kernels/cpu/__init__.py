"""CPU kernels in float32, compiled by Numba: attention, the operations between matrix products, sampling.

A row's result depends on that row alone (docs/design/batch-invariance.md). Therefore fused multiply-adds are
explicit and the compiler must not contract or reorder anything else; sums run over 16 fixed lanes; and loop bounds
depend only on the model's sizes and on the row's own length. So all variants of a loop (one query or four at a time)
give the same bits.

Arguments are C-contiguous numpy views of tensors. Kernels release the interpreter lock and compute the rows (or
sequences) ``first .. last - 1``, so that threads can share a forward. No kernel knows torch.

:mod:`.step` is different: it packs the rows of a forward and reads its results, in integers, in one call for all
sequences.
"""
