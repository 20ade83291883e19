"""A pretend CUDA device for machines without one: its tensors report ``cuda:N`` and execute on the host.

After :func:`install` torch has such devices, and the engine's CUDA path runs: streams, events, pinned memory, CUDA
graphs and Triton kernels. Triton's interpreter executes the kernels, or their launches are only recorded. Operations
that a GPU refuses are errors: those that mix host and device tensors or two devices, kernels launched while another
device is current, and captured work that a graph cannot hold. Under :func:`strict` every wait of the host for the
device is an error too, except waiting for an event.

It shows nothing about time, races between streams, or the numerics of tensor cores.

Install it in a separate process, before anything asks torch for CUDA: it changes torch permanently.
"""

from testing.pretend.install import install
from testing.pretend.state import LOG, MixError, WaitError, strict

__all__ = ["LOG", "MixError", "WaitError", "install", "strict"]
