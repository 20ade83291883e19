"""A pretend CUDA device for machines that have none: tensors that say ``cuda:N`` and execute on the host.

:func:`install` gives torch some devices of this kind. From then on the engine's CUDA path runs: streams, events, pinned
memory, CUDA graphs and Triton kernels, which Triton's interpreter executes (or nothing does, where only their launches
are asked for). What a GPU would refuse is an error: operations that mix host and device tensors or two devices, kernels
launched while another device is the current one, work in a capture that cannot be captured. Under :func:`strict`
everything that makes the host wait for the device is an error too, but waiting for an event.

It cannot show times, hazards between streams, or the numerics of tensor cores.

Install it before anything asks torch for CUDA, in a process of its own: it changes torch for good.
"""

from testing.pretend.install import install
from testing.pretend.state import LOG, MixError, WaitError, strict

__all__ = ["LOG", "MixError", "WaitError", "install", "strict"]
