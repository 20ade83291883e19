"""Set the current CUDA device of the calling thread. Knows torch, and of this package only its errors.

Torch's operations run on the device of their tensors. Triton launches, pinned memory, events, CUDA graphs and library
workspaces use the *current* device of the calling thread instead, and that is device 0 in every new thread. Therefore
all work for an engine runs inside :func:`on_device`: the engine's public methods (any thread may call them), loading
and its worker threads, and quantising.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import wraps
from typing import Concatenate, ParamSpec, Protocol, TypeVar

import torch

from wedlm_core.errors import ConfigError, explain

P = ParamSpec("P")
R = TypeVar("R")


class HasDevice(Protocol):
    """An object whose tensors are all on one device."""

    device: torch.device


S = TypeVar("S", bound=HasDevice)


def on_device(device: torch.device) -> AbstractContextManager[None]:
    """A context manager that makes ``device`` the thread's current CUDA device; for a CPU it does nothing."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def on_own_device(method: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """Decorate a method so that it runs inside :func:`on_device` of ``self.device``."""

    @wraps(method)
    def guarded(self: S, *args: P.args, **kwargs: P.kwargs) -> R:
        with on_device(self.device):
            return method(self, *args, **kwargs)

    return guarded


def numbered(device: torch.device) -> torch.device:
    """``cuda`` with an explicit index (the calling thread's current device), so that every thread uses the same one.

    Raises:
        ConfigError: there is no CUDA device, or none with this index.
    """
    if device.type != "cuda":
        return device
    if not torch.cuda.is_available():
        raise ConfigError(
            explain("device", str(device), "no CUDA device is available here", 'Use device="cpu" or "auto".')
        )
    count = torch.cuda.device_count()
    index = torch.cuda.current_device() if device.index is None else device.index
    if index >= count:
        rule = f"this process sees {count} CUDA device{'s' * (count > 1)}, numbered from 0"
        raise ConfigError(explain("device", str(device), rule, f'Use "cuda:{count - 1}" or a lower number.'))
    return torch.device("cuda", index)


def forget_recording(device: torch.device) -> None:
    """Let torch's generator of this device draw again: it takes a recording that failed for still going on."""
    index = torch.cuda.current_device() if device.index is None else device.index
    for generator in torch.cuda.default_generators[index : index + 1]:
        generator.graphsafe_set_state(generator.clone_state())


def step_clock(device: torch.device) -> Callable[[], float]:
    """A clock of the cost of a step on ``device``, in seconds.

    A step on one CPU thread never waits, so the CPU time of its thread is its cost. The wall clock would add the time
    of other processes and threads, and windows would follow the machine's load instead of the model's cost. Where other
    threads or a device do the work, only the wall clock sees all of it.
    """
    if device.type == "cpu" and torch.get_num_threads() == 1:
        return time.thread_time
    return time.perf_counter
