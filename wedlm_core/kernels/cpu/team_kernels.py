"""Threads that run one kernel together and wait for each other inside it.

A forward has about ten steps a layer, each of microseconds. To start threads again for each would cost as much as the
work. Here they join once a forward, and meet at barriers.

The leader of a forward opens a gate and closes it some microseconds later: threads that came through are members.
Helpers look at the gate for a while and then sleep. So a helper whose core is taken by something else is not waited
for: it would come too late by a time slice of the system, which is as long as tens of small forwards.
"""

from __future__ import annotations

import platform
import sys
from typing import Any

import llvmlite.binding
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from wedlm_core.kernels.cpu.array_views import numbers_at
from wedlm_core.kernels.cpu.compiled import c_function, call_at, kernel
from wedlm_core.kernels.cpu.emit import call

STATE_SIZE = 40
"""int64 of a team's state, zero before the first use: three counters in cache lines of their own, and :data:`LONG`."""
_ARRIVED, _ROUND, _NEXT = 0, 16, 32
LONG = 39
"""Place in it of the number of long waits so far: over 100 microseconds, so that someone was away, or has much more."""
POOL_SIZE = 80
"""int64 of a pool of helpers, zero before the first use: gate, turn and bell have cache lines of their own."""
_GATE, _GO, _BELL, _SLEEPERS, _WANTED, _ENTRY, _TASK, _STOP = 0, 16, 32, 48, 64, 65, 66, 67
_OPEN, _COUNT, _TURN = 1 << 15, (1 << 15) - 1, 16  # of the gate: a bit, those who came through, bits below the turn
_SPINS = 4000  # looks at a counter before the core is offered to others: some 100 microseconds
_YIELDS = 50  # times that it is offered before the thread sleeps: beside other work the one it waits for needs the core
_SLEEP = 20  # microseconds
_AWAKE = 12000  # looks at the gate before a helper sleeps: longer than the host takes between small forwards
_TO_WAKE = 6  # times as long as for helpers that look at the gate it takes until ones are there that sleep
_FUTEX = {"x86_64": 202, "aarch64": 98}.get(platform.machine(), 0) if sys.platform == "linux" else 0
_WAIT, _WAKE, _EVERY = 128, 129, 1 << 30  # private to the process
LEAST_ROWS = 4
"""With so many rows for each member, members take rows where there is a choice: fewer are shared by heads."""
_INDEX = ir.IntType(64)
_intrinsic: Any = intrinsic


def _place(context: Any, builder: Any, kind: Any, array: Any, index: Any) -> Any:
    data = context.make_array(kind)(context, builder, array).data
    return builder.gep(data, [index])


@_intrinsic
def _add(typing_context: Any, array: Any, index: Any, amount: Any) -> Any:
    """Add to an element of an int64 array, as one step; returns the old value."""

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
            call(builder, "llvm.x86.sse2.pause", ir.VoidType())
        return context.get_dummy_value()

    return types.void(), generate


@_intrinsic
def _offer(typing_context: Any) -> Any:
    """Let another thread have the core."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        call(builder, "sched_yield", ir.IntType(32))
        return context.get_dummy_value()

    return types.void(), generate


@_intrinsic
def _sleep(typing_context: Any, microseconds: Any) -> Any:
    """Leave the core for so long at least."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        call(builder, "usleep", ir.IntType(32), builder.trunc(args[0], ir.IntType(32)))
        return context.get_dummy_value()

    return types.void(types.int64), generate


@_intrinsic
def _swap(typing_context: Any, array: Any, index: Any, before: Any, after: Any) -> Any:
    """Replace an element if it is ``before``, as one step; whether it was."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        place = _place(context, builder, signature.args[0], args[0], args[1])
        found = builder.cmpxchg(place, args[2], args[3], "seq_cst", "seq_cst")
        return builder.extract_value(found, 1)

    return types.boolean(array, types.intp, types.int64, types.int64), generate


@_intrinsic
def _futex(typing_context: Any, array: Any, index: Any, what: Any, number: Any) -> Any:
    """Linux's futex on the low half of an element: wait while it is a number, or wake so many."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        place = _place(context, builder, signature.args[0], args[0], args[1])
        kind = ir.FunctionType(_INDEX, [_INDEX], var_arg=True)
        call = cgutils.get_or_insert_function(builder.module, kind, "syscall")
        at = builder.ptrtoint(place, _INDEX)
        nothing = ir.Constant(_INDEX, 0)
        builder.call(call, [ir.Constant(_INDEX, _FUTEX), at, args[2], args[3], nothing, nothing, nothing])
        return context.get_dummy_value()

    return types.void(array, types.intp, types.int64, types.int64), generate


@kernel
def meet(state, members):  # type: ignore[no-untyped-def]
    """Wait until all ``members`` of a team are here. All see afterwards the earlier writes of each."""
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
            if spins == _SPINS:
                _add(state, LONG, 1)
            _offer()
        else:
            _sleep(_SLEEP)


@kernel
def take(state):  # type: ignore[no-untyped-def]
    """The number of the next piece of work since the last :func:`meet`, from 0 on; each is given out once."""
    return _add(state, _NEXT, 1)


@kernel
def part_of(count, me, members):  # type: ignore[no-untyped-def]
    """The items of a member: ``(first, last)``."""
    return count * me // members, count * (me + 1) // members


@kernel
def by_rows(task, rows, members):  # type: ignore[no-untyped-def]
    """Whether each member computes all outputs of its part of the rows, not some outputs of all rows.

    Then no member reads the output of another but in attention: they need not wait for each other, and no cache line
    goes from core to core. But each of them reads all weights. So it pays where rows are many.
    """
    many = task.apart > 0 and members * max(task.apart, LEAST_ROWS) <= rows
    return many and members > 1 and task.layers > 0  # after a product alone, nothing else waits for all


@kernel
def lead(pool, entry, task, own, wanted, patience):  # type: ignore[no-untyped-def]
    """Run a task with those helpers who are there: ``entry(address)`` in each, of task, member and members as int64.

    Args:
        pool: int64 ``[POOL_SIZE]``; one leads at a time.
        entry: address of a function.
        task: its purpose.
        own: int64 ``[3]``, written: the leader's record; it is member 0.
        wanted: helpers at most.
        patience: looks at the gate, at most, until they are there; some times as many where any sleeps.

    Returns:
        Members that it had.
    """
    turn = (_look(pool, _GATE) >> _TURN) + 1
    pool[_ENTRY], pool[_TASK], pool[_WANTED] = entry, task, wanted
    _put(pool, _GATE, (turn << _TURN) | _OPEN)
    _add(pool, _BELL, 1)
    if _add(pool, _SLEEPERS, 0) > 0:
        patience *= _TO_WAKE
        _ring(pool)
    looks = 0
    while _look(pool, _GATE) & _COUNT < wanted and looks < patience:
        _rest()
        looks += 1
    members = 1 + (_add(pool, _GATE, -_OPEN) & _COUNT)
    own[0], own[1], own[2] = task, 0, members
    _put(pool, _GO, (turn << _TURN) | members)
    call_at(entry, (own.ctypes.data,))
    return members


@kernel
def _ring(pool):  # type: ignore[no-untyped-def]
    """Wake all who sleep."""
    if _FUTEX:
        _futex(pool, _BELL, _WAKE, _EVERY)


@kernel
def dismiss(pool):  # type: ignore[no-untyped-def]
    """Let all helpers return."""
    _put(pool, _STOP, 1)
    _add(pool, _BELL, 1)
    _ring(pool)


@kernel
def serve(address):  # type: ignore[no-untyped-def]
    """Help with the tasks of the pool at an address, until it is dismissed."""
    pool, own = numbers_at(address, POOL_SIZE), np.zeros(3, dtype=np.int64)
    turn, looks = 0, 0
    while _look(pool, _STOP) == 0:
        bell, gate = _look(pool, _BELL), _look(pool, _GATE)
        is_new = gate >> _TURN != turn and gate & _OPEN != 0 and gate & _COUNT < pool[_WANTED]
        if is_new and _swap(pool, _GATE, gate, gate + 1):
            turn, looks = gate >> _TURN, 0
            entry = pool[_ENTRY]
            own[0], own[1] = pool[_TASK], 1 + (gate & _COUNT)
            while _look(pool, _GO) >> _TURN != turn:  # the leader closes the gate first
                looks += 1
                if looks < _SPINS:
                    _rest()
                else:
                    _offer()
            own[2] = _look(pool, _GO) & _COUNT
            call_at(entry, (own.ctypes.data,))
            looks = 0
        elif looks < _AWAKE:
            looks += 1
            _rest()
        elif _FUTEX:
            _add(pool, _SLEEPERS, 1)
            _futex(pool, _BELL, _WAIT, bell & 0xFFFFFFFF)
            _add(pool, _SLEEPERS, -1)
        else:
            _sleep(_SLEEP)


def serve_entry() -> int:
    """The address of the compiled :func:`serve`, ``void (int64 address of a pool)``, as in C."""
    return c_function(serve)
