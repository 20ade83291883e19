"""Select Triton's interpreter on machines without a GPU: it runs kernels, slowly, on CPU tensors."""

from __future__ import annotations

import functools
import importlib.util
import inspect
import os
import sys
from typing import Any

import torch

INTERPRETED = not torch.cuda.is_available()
"""Whether kernels are interpreted here: examples are few then, as each takes up to a second."""


def set_up() -> None:
    """Select the interpreter if there is no CUDA device; on a GPU kernels are compiled.

    Triton reads the variable when it decorates a kernel, so call this before any kernel module is imported;
    ``tests/conftest.py`` calls it before tests are collected.
    """
    if not INTERPRETED:
        return
    assert "triton" not in sys.modules, "import triton (and modules of kernels) after tests/conftest.py"
    os.environ["TRITON_INTERPRET"] = "1"
    if importlib.util.find_spec("triton") is not None:
        _look_for_builtins_once()


def _look_for_builtins_once() -> None:
    """Look through Triton's language once for functions that the interpreter replaces, not before each launch.

    That is an eighth of its time, and its findings are the same each time.
    """
    from triton.language.core import is_builtin
    from triton.runtime import interpreter

    @functools.cache
    def builtins_of(place: Any) -> tuple[str, ...]:
        return tuple(name for name, member in inspect.getmembers(place) if is_builtin(member))

    def patch_builtin(place: Any, builder: Any, scope: Any) -> None:
        for name in builtins_of(place):
            if is_builtin(member := getattr(place, name)):  # it may have been replaced under another name of the place
                interpreter._patch_attr(place, name, member, builder, scope)

    interpreter._patch_builtin = patch_builtin
