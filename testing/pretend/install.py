"""Replace ``torch.cuda`` by pretend devices."""

from __future__ import annotations

import os
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch.utils._device import _device_constructors

from testing.pretend import memory, runtime, tensors
from testing.pretend.guard import guard
from testing.pretend.launches import interpret_launches, record_launches
from testing.pretend.state import LOG, STATE, waits

_kept: list[Any] = []  # keeps the registrations alive

# Multiprocessors, shared memory of one (bytes) and name by compute capability.
_KINDS = {(8, 0): (108, 167936, "pretend A100"), (9, 0): (132, 233472, "pretend H100")}
_TOTAL, _FREE = 80 << 30, 70 << 30


def install(devices: int = 1, capability: tuple[int, int] = (9, 0), compiled: Callable[..., Any] | None = None) -> None:
    """Give torch pretend CUDA devices, for the rest of this process.

    Args:
        devices: number of devices.
        capability: compute capability, (8, 0) or (9, 0).
        compiled: called with each launch of a Triton kernel, as a function without arguments; tensors then have no
            contents. None interprets kernels; ``TRITON_INTERPRET=1`` must be set before Triton is imported.

    Raises:
        RuntimeError: this torch supports real devices, or ``TRITON_INTERPRET`` has the wrong value.
    """
    if torch.backends.cuda.is_built():
        raise RuntimeError(f"torch={torch.__version__!r}: this build knows real devices. Use the CPU build of torch.")
    wanted = "1" if compiled is None else "0"
    if os.environ.get("TRITON_INTERPRET", "0") != wanted:
        raise RuntimeError(f"TRITON_INTERPRET={os.environ.get('TRITON_INTERPRET')!r}: needs {wanted}. Set it first.")
    STATE.memory = "cpu" if compiled is None else "meta"
    guard().set_count(devices)
    _kept.append(tensors.register_factories())
    _patch_host()
    _patch_devices(devices, capability)
    _patch_runtime()
    if compiled is None:
        interpret_launches()
    else:
        record_launches(compiled)


def _patch_host() -> None:
    """Patch pinned memory and the constructors from Python numbers, which torch does not dispatch to our tensors."""
    _device_constructors()  # cached before patching: torch.device() as a context compares these functions by identity
    plain, plain_tensor = torch.empty, torch.tensor

    def tensor(data: Any, *, device: Any = None, **options: Any) -> torch.Tensor:
        made = plain_tensor(data, **options)
        return made if device is None else made.to(device)

    def empty(*size: Any, pin_memory: bool = False, **options: Any) -> torch.Tensor:
        if not pin_memory:
            return plain(*size, **options)
        shape = size[0] if len(size) == 1 and not isinstance(size[0], int) else size
        return memory.pinned_empty(shape, options.get("dtype") or torch.get_default_dtype())

    def pin(self: torch.Tensor, *_: Any) -> torch.Tensor:
        return memory.pinned_empty(self.shape, self.dtype).copy_(self)

    host: Any = torch
    host.empty, host.tensor = empty, tensor
    host.Tensor.pin_memory, host.Tensor.is_pinned = pin, memory.is_pinned


def _patch_devices(devices: int, capability: tuple[int, int]) -> None:
    processors, shared, name = _KINDS[capability]
    properties = SimpleNamespace(
        name=name, major=capability[0], minor=capability[1], total_memory=_TOTAL, multi_processor_count=processors,
        shared_memory_per_multiprocessor=shared, warp_size=32,
    )  # fmt: skip

    def exchange(index: int) -> int:
        before = guard().device
        if index >= devices:
            raise RuntimeError(f"CUDA error: invalid device ordinal ({index} of {devices})")
        if index >= 0:
            guard().device = index
        return before

    def current() -> int:
        return guard().device

    cuda: Any = torch.cuda
    core: Any = torch._C
    core._cuda_getDevice = current
    core._cuda_setDevice = exchange
    core._cuda_getDeviceCount = lambda: devices
    cuda._exchange_device = cuda._maybe_exchange_device = exchange
    core._host_emptyCache = lambda: None
    core._cuda_getCurrentRawStream = lambda device: 0
    cuda._lazy_init = lambda: None
    cuda.is_available = cuda.is_initialized = lambda: True
    cuda.device_count = lambda: devices
    cuda.current_device = current
    cuda.get_device_capability = lambda device=None: capability
    cuda.get_device_properties = lambda device=None: properties
    cuda.get_device_name = lambda device=None: name


def _patch_runtime() -> None:
    def counted(value: Any) -> Callable[..., Any]:
        """A runtime call that is counted for the device it names, else for the current device."""

        def call(device: Any = None) -> Any:
            if device is None:
                LOG.used[guard().device] += 1
            return value

        return call

    def synchronize(device: Any = None) -> None:
        if STATE.captured is None:
            counted(None)(device)
            waits("cuda.synchronize")
            memory.arrive()

    def sync_mode(mode: int | str) -> None:
        STATE.strict = mode in (2, "error")

    cuda: Any = torch.cuda
    cuda.mem_get_info = counted((_FREE, _TOTAL))
    cuda.memory_allocated = cuda.memory_reserved = counted(0)
    cuda.max_memory_allocated = cuda.max_memory_reserved = counted(1 << 30)
    cuda.reset_peak_memory_stats = counted(None)
    cuda.empty_cache = lambda: None  # of all devices
    cuda.synchronize = synchronize
    cuda.set_sync_debug_mode = sync_mode
    cuda.Stream, cuda.Event, cuda.CUDAGraph = runtime.Stream, runtime.Event, runtime.Graph
    cuda.graphs.CUDAGraph = runtime.Graph
    cuda.current_stream, cuda.default_stream = runtime.current_stream, runtime.default_stream
    cuda.set_stream = runtime.set_stream
    cuda.graph_pool_handle = runtime.Graph.pool_handle
    cuda.is_current_stream_capturing = lambda: STATE.captured is not None
