"""Whether Triton kernels run on a device. A small kernel is run to find out: an installed Triton may not compile."""

from __future__ import annotations

import functools
import importlib.util
import os

import torch

from wedlm_core.devices import on_device


@functools.cache
def why_no_triton(device: torch.device) -> str | None:
    """Why Triton kernels cannot be used on this device; None if they can.

    On CPU they run in Triton's interpreter (``TRITON_INTERPRET=1``), which is meant for tests.
    """
    if importlib.util.find_spec("triton") is None:
        return "the package triton is not installed"
    if device.type != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
        return f"it runs on CUDA devices, not on {device.type}"
    try:
        from wedlm_core.kernels.gpu.dependent_launch import twice

        with on_device(device):
            given = torch.arange(8, device=device, dtype=torch.float32)
            if not torch.equal(twice(given), 2 * given):
                return "a first kernel computed wrong numbers on this device"
    except Exception as error:  # no C compiler, no driver, an unknown architecture ...
        return f"a first kernel failed on this device ({type(error).__name__}: {error})"
    return None
