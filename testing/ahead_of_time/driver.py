"""A Triton driver without a device, and the resource usage of compiled kernels."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from testing import pretend
from testing.pretend.guard import guard


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """A compiled kernel.

    Attributes:
        name: name of its function.
        registers: registers per thread.
        stack: bytes of local memory per thread, spilled registers included.
        shared: bytes of shared memory per block.
        warps: warps per block.
        stages: stages of its software pipeline.
        vectors: number of 16-byte loads from global memory in its code.
        tensor_cores: number of tensor core instructions in its code.
        early: reads and writes of global memory in its code before it waits for the kernel before; None: it never does.
    """

    name: str
    registers: int
    stack: int
    shared: int
    warps: int
    stages: int
    vectors: int
    tensor_cores: int
    early: int | None


class _Driver:
    """The driver interface that Triton needs in order to compile.

    Args:
        capability: compute capability, such as 90.
    """

    def __init__(self, capability: int) -> None:
        self._capability = capability

    @staticmethod
    def is_active() -> bool:
        return True

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", self._capability, 32)

    def get_current_device(self) -> int:
        return guard().device

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cuda", guard().device)

    def get_device_interface(self) -> Any:
        return torch.cuda

    def map_python_to_cpp_type(self, kind: str) -> str:
        return kind


def usage(cubin: bytes) -> tuple[int, int]:
    """Registers and stack bytes of the one kernel in a cubin, as cuobjdump lists them."""
    import triton

    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [triton.knobs.nvidia.cuobjdump.path, "-res-usage", file.name]
        listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+) SHARED:\d+ LOCAL:(\d+)", listed)
    if found is None:
        raise ValueError(f"cuobjdump={listed[:200]!r}: lists no kernel. Compare its format with this pattern.")
    registers, stack, local = map(int, found.groups())
    return registers, stack + local


def install(capability: int) -> None:
    """Compile all launches of this process for compute capability 80 or 90; the pretend log records the kernels."""
    from triton.runtime import driver

    driver.set_active(_Driver(capability))
    known: dict[int, Kernel] = {}
    held: list[Any] = []  # so that ids stay

    def compiled(launch: Callable[[], Any]) -> Kernel:
        made = launch()
        if id(made) not in known:
            held.append(made)
            known[id(made)] = _facts(made)
        return known[id(made)]

    pretend.install(capability=divmod(capability, 10), compiled=compiled)


def _facts(made: Any) -> Kernel:
    registers, stack = usage(made.asm["cubin"])
    text, metadata = made.asm["ptx"], made.metadata
    return Kernel(
        name=metadata.name,
        registers=registers,
        stack=stack,
        shared=metadata.shared,
        warps=metadata.num_warps,
        stages=metadata.num_stages,
        vectors=len(re.findall(r"ld\.global[^;]*\.v4\.b32", text)),
        tensor_cores=len(re.findall(r"wgmma\.mma_async|mma\.sync", text)),
        early=_early(text),
    )


def _early(text: str) -> int | None:
    before, wait, _ = text.partition("griddepcontrol.wait")
    return len(re.findall(r"\b(?:ld|st|atom|red)\.[\w.:]*global|\bcp\.", before)) if wait else None
