"""Programmatic dependent launch: a GPU prepares a layer's next kernel while the kernel before it still runs.

Each kernel calls :func:`wait_for_inputs` before it touches memory. The call returns when the kernel before has ended
and its writes are visible, so memory has the order of the stream, whatever kernels are in between. A test holds that
the compiled code of each kernel reads and writes nothing before it waits. Needs compute capability 9.0.

Importing this module imports Triton.
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Mapping

import torch
import triton
import triton.language as tl
from torch import Tensor

from wedlm_core.devices import forget_recording, on_device

_NEEDED = (9, 0)

logger = logging.getLogger(__name__)


@triton.jit
def wait_for_inputs(DEPENDENT: tl.constexpr):  # type: ignore[no-untyped-def]
    """Wait for the kernel before this one, then let the next one be prepared."""
    if DEPENDENT:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def _increase(x, DEPENDENT: tl.constexpr = False):  # type: ignore[no-untyped-def]
    wait_for_inputs(DEPENDENT)
    tl.store(x, tl.load(x) + 1)


def dependent(device: torch.device) -> Mapping[str, bool]:
    """Options of a launch on this device: whether it begins while the kernel before it still runs."""
    works = takes_dependents(device)
    return {"DEPENDENT": True, "launch_pdl": True} if works else {"DEPENDENT": False}


@functools.cache
def takes_dependents(device: torch.device) -> bool:
    """Whether a device takes such launches, captured ones too, which drivers before CUDA 12.3 refuse; by a trial."""
    interpreted = device.type != "cuda" or os.environ.get("TRITON_INTERPRET") == "1"
    if interpreted or torch.cuda.get_device_capability(device) < _NEEDED:
        return False
    with on_device(device):
        try:
            count, graph = torch.zeros(1, dtype=torch.int32, device=device), torch.cuda.CUDAGraph()
            _increase[(1,)](count, DEPENDENT=True, launch_pdl=True)
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # others may be loading weights
                for _ in range(8):
                    _increase[(1,)](count, DEPENDENT=True, launch_pdl=True)
            graph.replay()
            return int(count) == 9
        except Exception:  # a compiler or driver may raise anything
            logger.info("kernels are launched one after the other", exc_info=True)
            forget_recording(device)
            return False


@triton.jit
def _double(x, out, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    place = tl.arange(0, BLOCK)
    tl.store(out + place, 2 * tl.load(x + place))


def twice(x: Tensor) -> Tensor:
    """``2 * x`` for a power-of-two number of elements: the smallest kernel, to test whether kernels run."""
    out = torch.empty_like(x)
    _double[(1,)](x, out, BLOCK=x.numel())
    return out
