"""The decoder network, its CPU and GPU forms, and loading and saving its weights.

The CPU form also knows the KV pool and the attention plan of the CPU. The package knows nothing of requests, sampling
or scheduling. Import the modules directly: :mod:`wedlm_core.model.sources` must not need torch.
"""
