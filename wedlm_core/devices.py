"""Which device the calling thread works on. A leaf: it knows torch and nothing of this package but its errors.

Torch's own operations run on the device of their tensors. Everything else runs on the *current* device of the calling
thread, which in every new thread is the first one: launches of Triton kernels, pinned memory, events, graphs, the
libraries' workspaces. So all work for an engine enters :func:`on_device`: the engine's public methods, whichever thread
calls them, loading and its workers, quantising.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import wraps
from typing import Concatenate, ParamSpec, Protocol, TypeVar

import torch

from wedlm_core.errors import ConfigError, explain

__all__ = ["HasDevice", "numbered", "on_device", "on_own_device"]

P = ParamSpec("P")
R = TypeVar("R")


class HasDevice(Protocol):
    """Something that lives on one device."""

    device: torch.device


S = TypeVar("S", bound=HasDevice)


def on_device(device: torch.device) -> AbstractContextManager[None]:
    """A context in which a CUDA device is the calling thread's current one; for a CPU it does nothing."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def on_own_device(method: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """Let a method run in :func:`on_device` of its object's device."""

    @wraps(method)
    def guarded(self: S, *args: P.args, **kwargs: P.kwargs) -> R:
        with on_device(self.device):
            return method(self, *args, **kwargs)

    return guarded


def numbered(device: torch.device) -> torch.device:
    """``cuda`` with the number that it has for the calling thread, so that it means the same in every thread.

    Raises:
        ConfigError: there is no CUDA device, or none with this number.
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
