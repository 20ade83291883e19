"""A Numba type for sixteen float32 in one LLVM vector, for loops that the compiler does not vectorise.

The 16 lanes hold the kernels' partial sums. If the CPU's vectors are shorter, LLVM splits the vector. Arithmetic is
written as for numbers (``+ - * /``, ``-x``, ``max``, ``min``; a number is broadcast to all lanes), and each operation
is rounded separately. So one function serves numbers and vectors and gives the same bits. Arrays are C-contiguous
float32 of any shape, or uint16 that hold the bits of bfloat16: those are widened when they are loaded, and rounded to
the nearest, to even where two are equally near, when they are stored. An index counts elements from the array's first
one and is not checked.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, NamedTuple

from llvmlite import ir
from numba import types
from numba.extending import intrinsic, lower_builtin, models, register_model, type_callable

from wedlm_core.kernels.cpu.emit import call, fetch
from wedlm_core.kernels.cpu.emit import spread as in_all_lanes

LANES = 16
"""Partial sums of a reduction: a fixed number, so that the order never depends on the machine."""

_intrinsic: Any = intrinsic  # untyped: its own type does not say that callers omit the typing context
_FLOAT, _INT = ir.FloatType(), ir.IntType(32)
_FLOATS, _INTS = ir.VectorType(_FLOAT, LANES), ir.VectorType(_INT, LANES)
_SHORT = ir.IntType(16)
_SHORTS = ir.VectorType(_SHORT, LANES)
_BYTE = ir.IntType(8)
_BYTES = ir.VectorType(_BYTE, LANES)


class Vector(types.Type):
    """The type of 16 float32 lanes."""

    def __init__(self) -> None:
        super().__init__(name="Vector")


_VECTOR = Vector()


@register_model(Vector)
class _VectorModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Vector) -> None:
        super().__init__(manager, kind, _FLOATS)


def _joint(*kinds: Any) -> Any:
    """The result type of arithmetic: a vector if any operand is one."""
    return _VECTOR if _VECTOR in kinds else types.float32


def _spread(context: Any, builder: Any, value: Any, kind: Any) -> Any:
    """Broadcast a number to all lanes; return a vector unchanged."""
    if kind == _VECTOR:
        return value
    return in_all_lanes(builder, context.cast(builder, value, kind, types.float32), LANES)


def _spread_all(context: Any, builder: Any, signature: Any, args: Any) -> list[Any]:
    return [_spread(context, builder, *pair) for pair in zip(args, signature.args, strict=True)]


def _all(kind: Any, value: int) -> Any:
    """A constant of the given type, in all lanes of a vector."""
    return [value] * LANES if kind == _VECTOR else value


def _operate(operation: Callable[..., Any], build: Callable[..., Any]) -> None:
    """Register a binary operation with Numba, for two vectors and for a vector and a number."""

    @type_callable(operation)
    def typing(context: Any) -> Any:
        return lambda a, b: _VECTOR if {type(a), type(b)} in ({Vector}, {Vector, types.Float}) else None

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return build(builder, *_spread_all(context, builder, signature, args))

    for kinds in ((Vector, Vector), (Vector, types.Float), (types.Float, Vector)):
        lower_builtin(operation, *kinds)(generate)


_operate(operator.add, lambda builder, a, b: builder.fadd(a, b))
_operate(operator.sub, lambda builder, a, b: builder.fsub(a, b))
_operate(operator.mul, lambda builder, a, b: builder.fmul(a, b))
_operate(operator.truediv, lambda builder, a, b: builder.fdiv(a, b))
# As in Python: the first operand if the two are equal or cannot be compared.
_operate(max, lambda builder, a, b: builder.select(builder.fcmp_ordered(">", b, a), b, a))
_operate(min, lambda builder, a, b: builder.select(builder.fcmp_ordered("<", b, a), b, a))


@type_callable(operator.neg)
def _type_negative(context: Any) -> Any:
    return lambda a: _VECTOR if a == _VECTOR else None


@lower_builtin(operator.neg, Vector)
def _negative(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    return builder.fsub(_FLOATS([-0.0] * LANES), args[0])


@_intrinsic
def fma(typing_context: Any, a: Any, b: Any, c: Any) -> Any:
    """``a * b + c`` of numbers or vectors, rounded once."""
    kind = _joint(a, b, c)
    signature = kind(*(one if one == _VECTOR else types.float32 for one in (a, b, c)))

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        if kind == _VECTOR:
            args = _spread_all(context, builder, signature, args)
            return call(builder, f"llvm.fma.v{LANES}f32", _FLOATS, *args)
        return builder.fma(*args)

    return signature, generate


@_intrinsic
def floor(typing_context: Any, x: Any) -> Any:
    """Round a number or vector down."""
    kind = _joint(x)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        suffix = f"v{LANES}f32" if kind == _VECTOR else "f32"
        return call(builder, f"llvm.floor.{suffix}", args[0].type, args[0])

    return kind(kind), generate


@_intrinsic
def two_to(typing_context: Any, k: Any) -> Any:
    """``2 ** k``, k a number or vector of whole values in [-126, 127]."""
    kind = _joint(k)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        ints = _INTS if kind == _VECTOR else _INT
        raised = builder.add(builder.fptosi(args[0], ints), ints(_all(kind, 127)))
        return builder.bitcast(builder.shl(raised, ints(_all(kind, 23))), args[0].type)

    return kind(kind), generate


@_intrinsic
def split(typing_context: Any, x: Any) -> Any:
    """``x = 2 ** power * mantissa``, both float32, of normal x > 0; the mantissa is in [1/sqrt 2, sqrt 2)."""
    kind = _joint(x)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        floats, ints = args[0].type, _INTS if kind == _VECTOR else _INT
        root = ints(_all(kind, 0x3F3504F3))  # the bits of 1 / sqrt 2
        shifted = builder.sub(builder.bitcast(args[0], ints), root)
        power = builder.sitofp(builder.ashr(shifted, ints(_all(kind, 23))), floats)
        mantissa = builder.add(builder.and_(shifted, ints(_all(kind, 0x007FFFFF))), root)
        return context.make_tuple(builder, signature.return_type, (power, builder.bitcast(mantissa, floats)))

    return types.UniTuple(kind, 2)(kind), generate


def _is_narrow(kind: Any) -> bool:
    """Whether an array holds bfloat16, as uint16."""
    return bool(kind.dtype == types.uint16)


class _Held(NamedTuple):
    """How an array holds numbers: a vector of them, the suffix of its operations, and bytes of a number."""

    vector: Any
    suffix: str
    size: int

    @classmethod
    def of(cls, kind: Any) -> _Held:
        if kind.dtype == types.int8:
            return cls(_BYTES, "i8", 1)
        return cls(_SHORTS, "i16", 2) if _is_narrow(kind) else cls(_FLOATS, "f32", 4)


def _as_held(builder: Any, kind: Any, value: Any) -> Any:
    """A float32 number or vector as an array holds it."""
    if kind.dtype == types.int8:
        return _rounded(builder, value)
    return _narrowed(builder, value) if _is_narrow(kind) else value


def _rounded(builder: Any, value: Any) -> Any:
    """float32 -> int8, to even where two are equally near. Numbers or vectors, within the range of int8."""
    many = value.type == _FLOATS
    near = call(builder, f"llvm.rint.v{LANES}f32" if many else "llvm.rint.f32", value.type, value)
    return builder.trunc(builder.fptosi(near, _INTS if many else _INT), _BYTES if many else _BYTE)


def _widened(builder: Any, bits: Any) -> Any:
    """bfloat16 -> float32, numbers or vectors."""
    many = bits.type == _SHORTS
    ints = _INTS if many else _INT
    shifted = builder.shl(builder.zext(bits, ints), ints([16] * LANES if many else 16))
    return builder.bitcast(shifted, _FLOATS if many else _FLOAT)


def _narrowed(builder: Any, value: Any) -> Any:
    """float32 -> the nearest bfloat16, to even where two are equally near; NaN stays NaN. Numbers or vectors."""
    many = value.type == _FLOATS
    ints, shorts = (_INTS, _SHORTS) if many else (_INT, _SHORT)

    def all_of(number: int) -> Any:
        return ints([number] * LANES if many else number)

    bits = builder.bitcast(value, ints)
    high = builder.lshr(bits, all_of(16))
    odd = builder.and_(high, all_of(1))
    near = builder.lshr(builder.add(builder.add(bits, all_of(0x7FFF)), odd), all_of(16))
    is_number = builder.fcmp_ordered("==", value, value)
    return builder.trunc(builder.select(is_number, near, builder.or_(high, all_of(0x40))), shorts)


def _address(context: Any, builder: Any, kind: Any, array: Any, index: Any) -> Any:
    """Pointer to the vector that begins at an element."""
    data = context.make_array(kind)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [index]), _Held.of(kind).vector.as_pointer())


def _first(builder: Any, count: Any) -> Any:
    """A mask of the first ``count`` lanes."""
    counts = in_all_lanes(builder, builder.trunc(count, _INT), LANES)
    return builder.icmp_signed("<", _INTS(list(range(LANES))), counts)


def _whole(builder: Any, count: Any) -> Any:
    """The two branches of a memory access: all lanes (the usual case), or fewer."""
    return builder.if_else(builder.icmp_signed(">=", count, ir.IntType(64)(LANES)), likely=True)


@_intrinsic
def load(typing_context: Any, array: Any, index: Any, count: Any, rest: Any) -> Any:
    """Load ``count`` elements (at most 16) from an index on; the other lanes hold ``rest``."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        place = _address(context, builder, signature.args[0], *args[:2])
        narrow = _is_narrow(signature.args[0])
        kind, suffix, align = _Held.of(signature.args[0])
        rest = _spread(context, builder, args[3], types.float32)
        with _whole(builder, args[2]) as (whole, part):
            with whole:
                all_lanes, whole_end = builder.load(place, align=align), builder.block
            with part:
                flags = _first(builder, args[2])
                others = _SHORTS([0] * LANES) if narrow else rest
                name = f"llvm.masked.load.v{LANES}{suffix}.p0"
                some = call(builder, name, kind, place, _INT(align), flags, others)
                part_end = builder.block
        value = builder.phi(kind)
        value.add_incoming(all_lanes, whole_end)
        value.add_incoming(some, part_end)
        if narrow:
            return builder.select(_first(builder, args[2]), _widened(builder, value), rest)
        return value

    return _VECTOR(array, types.intp, types.intp, types.float32), generate


@_intrinsic
def store(typing_context: Any, array: Any, index: Any, count: Any, value: Any) -> Any:
    """Store the first ``count`` lanes (at most 16) from an index on."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        place = _address(context, builder, signature.args[0], *args[:2])
        _, suffix, align = _Held.of(signature.args[0])
        value = _as_held(builder, signature.args[0], args[3])
        with _whole(builder, args[2]) as (whole, part):
            with whole:
                builder.store(value, place, align=align)
            with part:
                flags = _first(builder, args[2])
                name = f"llvm.masked.store.v{LANES}{suffix}.p0"
                call(builder, name, ir.VoidType(), value, place, _INT(align), flags)
        return context.get_dummy_value()

    return types.void(array, types.intp, types.intp, _VECTOR), generate


@_intrinsic
def put(typing_context: Any, array: Any, index: Any, value: Any) -> Any:
    """Store a number at an index."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        value = _as_held(builder, signature.args[0], args[2])
        builder.store(value, builder.gep(data, [args[1]]))
        return context.get_dummy_value()

    return types.void(array, types.intp, types.float32), generate


@_intrinsic
def prefetch(typing_context: Any, array: Any, index: Any) -> Any:
    """Prefetch the cache line of an element that will be written."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        fetch(builder, builder.gep(data, [args[1]]), to_write=True)
        return context.get_dummy_value()

    return types.void(array, types.intp), generate


@_intrinsic
def first_lanes(typing_context: Any, value: Any, count: Any) -> Any:
    """The first ``count`` lanes; the others are zero."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.select(_first(builder, args[1]), args[0], _FLOATS([0.0] * LANES))

    return _VECTOR(_VECTOR, types.intp), generate


@_intrinsic
def spread(typing_context: Any, value: Any) -> Any:
    """A number broadcast to all lanes."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _spread(context, builder, args[0], types.float32)

    return _VECTOR(types.float32), generate


@_intrinsic
def where_less(typing_context: Any, a: Any, b: Any, then: Any, otherwise: Any) -> Any:
    """Lane by lane ``then`` where ``a < b``, else ``otherwise``; b is a number."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        a, b, then, otherwise = _spread_all(context, builder, signature, args)
        return builder.select(builder.fcmp_ordered("<", a, b), then, otherwise)

    return _VECTOR(_VECTOR, types.float32, _VECTOR, _VECTOR), generate


@_intrinsic
def first_equal(typing_context: Any, a: Any, b: Any) -> Any:
    """The first lane where a equals b; 16 if there is none."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        short = ir.IntType(LANES)
        flags = builder.bitcast(builder.fcmp_ordered("==", *args), short)
        # One bit beyond the lanes, so that there always is a first.
        flags = builder.or_(builder.zext(flags, ir.IntType(64)), ir.IntType(64)(1 << LANES))
        return builder.cttz(flags, ir.IntType(1)(1))

    return types.intp(_VECTOR, _VECTOR), generate


def _reduce(build: Callable[..., Any]) -> Any:
    """Fold the lanes in halves: 8 + 8, 4 + 4, 2 + 2, 1 + 1."""

    @_intrinsic
    def reduce(typing_context: Any, value: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            value, half = args[0], LANES // 2
            while half:
                sides = (
                    builder.shuffle_vector(value, value, ir.VectorType(_INT, half)(list(range(at, at + half))))
                    for at in (0, half)
                )
                value, half = build(builder, *sides), half // 2
            return builder.extract_element(value, _INT(0))

        return types.float32(_VECTOR), generate

    return reduce


total = _reduce(lambda builder, a, b: builder.fadd(a, b))
"""Sum of the lanes as a balanced tree."""
largest = _reduce(lambda builder, a, b: builder.select(builder.fcmp_ordered(">", b, a), b, a))
"""Largest of the lanes; no lane may be NaN."""
