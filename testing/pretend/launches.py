"""Triton launches on pretend devices: check them, then interpret or record them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch

from testing.engine.triton_interpreter import patch_language_once
from testing.pretend.guard import guard
from testing.pretend.state import LOG, STATE, Launch, MixError, Variant, place
from testing.pretend.tensors import DeviceTensor

_running = threading.Lock()  # the interpreter runs one program at a time


def _checked_device(name: str, args: Any) -> int:
    """The device of a launch's tensors.

    Raises:
        MixError: they are on several devices, or not on the thread's current device, where Triton launches.
    """
    tensors = [a for a in args if isinstance(a, torch.Tensor)]
    host = [a for a in tensors if not isinstance(a, DeviceTensor)]
    if host:
        raise MixError(f"kernel {name} at {place()} was given a host tensor {tuple(host[0].shape)}")
    devices = {a.device.index for a in tensors}
    if devices - {guard().device}:
        raise MixError(
            f"kernel {name} at {place()} was launched on cuda:{guard().device} with tensors of "
            f"{sorted(f'cuda:{index}' for index in devices)}"
        )
    LOG.used[guard().device] += 1
    return guard().device


def _variant(kernel: Any, args: Sequence[Any], options: dict[str, Any]) -> Variant:
    """The variant of a kernel that Triton would compile for a launch, as Triton itself tells variants apart."""
    from triton.backends.compiler import BaseBackend
    from triton.runtime.jit import native_specialize_impl

    def named(option: str) -> set[str]:
        return {kernel.arg_names[x] if isinstance(x, int) else x for x in kernel.kwargs.get(option) or ()}

    plain, anywhere = named("do_not_specialize"), named("do_not_specialize_on_alignment")
    found = {
        name: native_specialize_impl(BaseBackend, value, False, name not in plain, name not in anywhere)
        for name, value in zip(kernel.arg_names, args, strict=False)
    }
    tensors = tuple((name, kind) for name, (kind, _) in found.items() if kind.startswith("*"))
    facts = (f"{fact}" if kind.startswith("*") else f"{kind} {fact}" for kind, fact in found.values())
    return Variant(constants=(*tensors, *options.items()), facts=tuple(zip(found, facts, strict=True)))


def interpret_launches() -> None:
    """Let Triton's interpreter run kernels on the contents of device tensors (needs ``TRITON_INTERPRET=1``)."""
    from triton.runtime import interpreter

    patch_language_once()
    _multiply_bfloat16(interpreter)
    plain = interpreter.InterpretedFunction.run

    def run(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> None:
        name = self.fn.__name__
        LOG.launches.append(Launch(name, _checked_device(name, args), _variant(self, args, options)))
        inner = [a.inner if isinstance(a, DeviceTensor) else a for a in args]
        if "LIBM" in options:  # there is no device math library
            options["LIBM"] = False

        def go() -> None:
            with _running:
                plain(self, *inner, grid=grid, warmup=warmup, **options)

        if STATE.captured is not None:
            STATE.captured.append(go)
        else:
            go()

    interpreter.InterpretedFunction.run = run


def _multiply_bfloat16(interpreter: Any) -> None:
    """Fix products of bfloat16: the interpreter stores bfloat16 as integers and would multiply those."""
    plain, tl = interpreter.InterpreterBuilder.create_dot, interpreter.tl

    def widened(handle: Any) -> Any:
        if handle.dtype.scalar != tl.bfloat16:
            return handle
        wide = interpreter._convert_float(handle.data, tl.bfloat16, tl.float32, None)
        return interpreter.TensorHandle(wide.view("float32"), tl.float32)

    def dot(self: Any, a: Any, b: Any, *rest: Any) -> Any:
        return plain(self, widened(a), widened(b), *rest)

    interpreter.InterpreterBuilder.create_dot = dot


def record_launches(compiled: Callable[..., Any]) -> None:
    """Hand launches to ``compiled(kernel, args, options)`` instead of running them; the log records the results."""
    from triton.runtime.jit import JITFunction

    plain = JITFunction.run

    def run(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        name = self.fn.__name__
        device = _checked_device(name, args)
        made = compiled(lambda: plain(self, *args, grid=grid, warmup=True, **options))
        LOG.launches.append(Launch(name, device, made))
        return made

    JITFunction.run = run
