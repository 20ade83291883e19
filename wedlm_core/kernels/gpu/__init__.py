"""GPU kernels, written in Triton: attention, KV writes, the operations between matrix products, rounding, sampling.

They know tensors and nothing of models, the KV pool's bookkeeping or requests. Without a GPU, Triton's interpreter can
run them on CPU tensors (``TRITON_INTERPRET=1``), which is meant for tests.
"""
