"""LLVM code that several kernels emit: calls, numbers in all lanes, pointers, fetches, loops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba.core import cgutils

_INT, _INDEX = ir.IntType(32), ir.IntType(64)


def call(builder: Any, name: str, result: Any, *args: Any) -> Any:
    """Call an LLVM intrinsic or a C function by its full name; ``result`` is the type that it returns."""
    kind = ir.FunctionType(result, [arg.type for arg in args])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), args)


def spread(builder: Any, value: Any, lanes: int) -> Any:
    """A number in all lanes of a vector; itself where there is one lane."""
    if lanes == 1:
        return value
    kind = ir.VectorType(value.type, lanes)
    alone = builder.insert_element(kind(ir.Undefined), value, _INT(0))
    return builder.shuffle_vector(alone, kind(ir.Undefined), ir.VectorType(_INT, lanes)([0] * lanes))


def pointer(builder: Any, kind: Any, base: Any, *offsets: Any) -> Any:
    """A pointer to a ``kind`` from an address and offsets in bytes, int64."""
    for offset in offsets:
        base = builder.add(base, offset)
    return builder.inttoptr(base, kind.as_pointer())


def fetch(builder: Any, place: Any, *, to_write: bool = False, level: int = 1) -> None:
    """Fetch the cache line of a pointer into the caches from ``level`` on, before it is read or written."""
    call(builder, "llvm.prefetch.p0", ir.VoidType(), place, _INT(int(to_write)), _INT(4 - level), _INT(1))


def loop(
    builder: Any, count: Any, step: int, before: Sequence[Any], body: Callable[[Any, list[Any]], list[Any]]
) -> list[Any]:
    """Values after ``for k in range(0, count, step): values = body(k, values)``, which runs once at least.

    Values stay in registers: where a loop keeps them in memory, LLVM has to move them there itself.

    Args:
        builder: of the function; it goes on after the loop.
        count: int64, 1 or more.
        step: of k.
        before: the values at the start.
        body: emits a turn for the int64 k, and returns the values after it.
    """
    entry, turn, done = builder.block, builder.append_basic_block(), builder.append_basic_block()
    builder.branch(turn)
    builder.position_at_end(turn)
    k, values = builder.phi(_INDEX), [builder.phi(one.type) for one in before]
    k.add_incoming(_INDEX(0), entry)
    for value, first in zip(values, before, strict=True):
        value.add_incoming(first, entry)
    after = body(k, list(values))
    following, end = builder.add(k, _INDEX(step)), builder.block
    k.add_incoming(following, end)
    for value, new in zip(values, after, strict=True):
        value.add_incoming(new, end)
    builder.cbranch(builder.icmp_signed("<", following, count), turn, done)
    builder.position_at_end(done)
    return after
