"""Triton's compiler for GPUs that are not here: launches are compiled, and what they take of a device is recorded.

A process that calls :func:`install` has pretend devices whose kernels are compiled for one architecture instead of
run, through the engine's own launching code and with its arguments. Tensors have no contents, so shapes of any size
cost nothing.
"""

from testing.ahead_of_time.driver import Kernel, install

__all__ = ["Kernel", "install"]
