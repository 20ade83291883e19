"""Select Triton's interpreter on machines without a GPU: it runs kernels, slowly, on CPU tensors."""

from __future__ import annotations

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
        patch_language_once()


def patch_language_once() -> None:
    """Keep the interpreter's patches of the language: applying and undoing them per call takes most of a run."""
    from triton.runtime import interpreter

    plain, done, tl = interpreter._patch_lang, set[int](), interpreter.tl

    def patch(function: Any) -> Any:
        modules = frozenset(id(v) for v in function.__globals__.values() if inspect.ismodule(v) and v in (tl, tl.core))
        if not modules <= done:
            done.update(modules)
            plain(function)
        return interpreter._LangPatchScope()

    interpreter._patch_lang = patch
