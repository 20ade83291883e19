"""Threads that run one kernel together and wait for each other inside it.

A forward has about ten steps a layer, each of microseconds. To start threads anew for each would cost as much as the
work. Here they start once a forward, and meet at barriers.
"""

from __future__ import annotations

from typing import Any

import llvmlite.binding
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from wedlm_core.kernels.cpu.compiled import kernel

__all__ = ["STATE_SIZE", "call_for_number", "meet", "take"]

STATE_SIZE = 40
"""int64 of a team's state, zero before the first use: three counters in cache lines of their own."""
_ARRIVED, _ROUND, _NEXT = 0, 16, 32
_SPINS = 4000  # looks at the counter before the core is offered to others: some 100 microseconds
_YIELDS = 50  # times that it is offered before the thread sleeps: beside other work the one it waits for needs the core
_SLEEP = 20  # microseconds
_INDEX = ir.IntType(64)
_intrinsic: Any = intrinsic


def _place(context: Any, builder: Any, kind: Any, array: Any, index: Any) -> Any:
    data = context.make_array(kind)(context, builder, array).data
    return builder.gep(data, [index])


@_intrinsic
def _add(typing_context: Any, array: Any, index: Any, amount: Any) -> Any:
    """Add to an element of an int64 array, as one step; returns what was there."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        place = _place(context, builder, signature.args[0], args[0], args[1])
        return builder.atomic_rmw("add", place, args[2], "seq_cst")

    return types.int64(array, types.intp, types.int64), generate


@_intrinsic
def _look(typing_context: Any, array: Any, index: Any) -> Any:
    """An element, after all that its writer wrote before it."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        place = _place(context, builder, signature.args[0], args[0], args[1])
        return builder.load_atomic(place, "acquire", 8)

    return types.int64(array, types.intp), generate


@_intrinsic
def _put(typing_context: Any, array: Any, index: Any, value: Any) -> Any:
    """Store an element, after all that was written before it."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        place = _place(context, builder, signature.args[0], args[0], args[1])
        builder.store_atomic(args[2], place, "release", 8)
        return context.get_dummy_value()

    return types.void(array, types.intp, types.int64), generate


_IS_X86 = "sse2" in llvmlite.binding.get_host_cpu_features()


@_intrinsic
def _rest(typing_context: Any) -> Any:
    """Tell the core that the thread waits."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        if _IS_X86:
            kind = ir.FunctionType(ir.VoidType(), [])
            builder.call(cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.sse2.pause"), [])
        return context.get_dummy_value()

    return types.void(), generate


@_intrinsic
def _offer(typing_context: Any) -> Any:
    """Let another thread have the core."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(ir.IntType(32), [])
        builder.call(cgutils.get_or_insert_function(builder.module, kind, "sched_yield"), [])
        return context.get_dummy_value()

    return types.void(), generate


@_intrinsic
def _sleep(typing_context: Any, microseconds: Any) -> Any:
    """Leave the core for so long at least."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(ir.IntType(32), [ir.IntType(32)])
        duration = builder.trunc(args[0], ir.IntType(32))
        builder.call(cgutils.get_or_insert_function(builder.module, kind, "usleep"), [duration])
        return context.get_dummy_value()

    return types.void(types.int64), generate


@kernel
def meet(state, members):  # type: ignore[no-untyped-def]
    """Wait until all ``members`` of a team are here. What each wrote before, all see afterwards."""
    if members < 2:
        _put(state, _NEXT, 0)
        return
    turn = _look(state, _ROUND)
    if _add(state, _ARRIVED, 1) + 1 == members:
        _put(state, _ARRIVED, 0)
        _put(state, _NEXT, 0)
        _put(state, _ROUND, turn + 1)
        return
    spins = 0
    while _look(state, _ROUND) == turn:
        spins += 1
        if spins < _SPINS:
            _rest()
        elif spins < _SPINS + _YIELDS:
            _offer()
        else:
            _sleep(_SLEEP)


@kernel
def take(state):  # type: ignore[no-untyped-def]
    """The number of the next piece of work since the last :func:`meet`, from 0 on; each is given out once."""
    return _add(state, _NEXT, 1)


@_intrinsic
def call_for_number(typing_context: Any, address: Any) -> Any:
    """Call ``int f(void)`` at an address."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(ir.IntType(32), [])
        found = builder.call(builder.inttoptr(args[0], kind.as_pointer()), [])
        return builder.sext(found, _INDEX)

    return types.int64(types.intp), generate
