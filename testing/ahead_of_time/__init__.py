"""Compile Triton kernels for a GPU that this machine does not have, and record registers, shared memory and spills.

After :func:`install` a process has pretend devices (:mod:`testing.pretend`). The engine's own code launches kernels
with its own arguments; each launch is compiled for one architecture instead of run. Tensors have no contents, so shapes
of any size cost nothing.
"""

from testing.ahead_of_time.driver import Kernel, install

__all__ = ["Kernel", "install"]
