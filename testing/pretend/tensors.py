"""Tensors of pretend devices: torch dispatches every operation on them to :func:`run`."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from testing.pretend import memory
from testing.pretend.guard import guard
from testing.pretend.state import STATE, MixError, place, waits

aten = torch.ops.aten
_PYTHON = torch._C.DispatchKeySet(torch._C.DispatchKey.Python)

# Torch waits for the device: the shape or value of the result depends on the contents.
_ASKING = {"_local_scalar_dense", "nonzero", "is_nonzero", "masked_select", "equal", "bincount", "_unique", "_unique2",
           "unique_dim", "unique_consecutive", "unique_dim_consecutive", "allclose", "histc"}  # fmt: skip
_RESHAPING = {"squeeze_", "unsqueeze_", "t_", "transpose_", "swapaxes_", "as_strided_"}
_INDEXING = {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index", "_unsafe_index_put"}


class DeviceTensor(Tensor):
    """A tensor that reports ``cuda:N``. ``inner``, on the host or the meta device, holds its contents."""

    inner: Tensor  # type: ignore[assignment]  # torch.Tensor has a method of this name: not of use here

    @staticmethod
    def __new__(cls, inner: Tensor, device: torch.device) -> DeviceTensor:
        """Wrap ``inner``."""
        made: Any = torch.Tensor._make_wrapper_subclass(
            cls, inner.size(), strides=inner.stride(), storage_offset=inner.storage_offset(), dtype=inner.dtype,
            device=device,
        )  # fmt: skip
        made.inner = inner
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        # Views of normal tensors are normal in inference mode too, so all our tensors are normal.
        with torch.inference_mode(False), torch.no_grad():
            return run(func, args, kwargs or {})

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"DeviceTensor({list(self.shape)}, {self.dtype}, {self.device})"

    def data_ptr(self) -> int:
        """The address in host memory; on the meta device an offset from an aligned one."""
        if self.inner.is_meta:
            return (1 << 20) + int(self.inner.storage_offset()) * self.inner.element_size()
        return self.inner.data_ptr()

    def tolist(self) -> Any:
        """Copy to the host first, as torch does."""
        return self.cpu().tolist()

    def record_stream(self, stream: Any) -> None:
        """Nothing to do: memory is not reused here."""

    def pin_memory(self, *_: Any) -> Tensor:
        """An error, as in torch."""
        raise RuntimeError("cannot pin a tensor of a device: only host memory can be pinned")


def _resolved(device: torch.device | str | int | None) -> torch.device:
    """The device with an index; without one it is the calling thread's current device."""
    found = torch.device("cuda") if device is None else torch.device(device)
    return torch.device("cuda", guard().device) if found.type == "cuda" and found.index is None else found


@cache
def _writes(func: Any) -> bool:
    """Whether an operation changes one of its arguments."""
    return any(a.alias_info is not None and a.alias_info.is_write for a in func._schema.arguments)


@cache
def _is_composite(func: Any) -> bool:
    """Whether torch decomposes an operation into others on every device."""
    key = torch._C.DispatchKey.CompositeImplicitAutograd
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), key))


def run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Execute an operation with at least one tensor of a pretend device.

    Raises:
        MixError: it has tensors of other devices as well.
        WaitError: see :func:`testing.pretend.state.waits`.
    """
    if func is torch.ops.prim.device.default:
        return args[0].device
    if _is_composite(func):  # in inference mode torch does not decompose them
        return func.decompose(*args, **kwargs)
    if func is aten.copy_.default:
        return _copy(*args, **kwargs)
    if func is aten._to_copy.default:
        return _to_copy(*args, **kwargs)
    flat, spec = pytree.tree_flatten((args, kwargs))
    device = _common_device(func, flat, args)
    _check_waits(func, args, kwargs)
    asked = kwargs.get("device")
    if asked is not None:
        device = _resolved(asked)
    given = [x.inner if isinstance(x, DeviceTensor) else x for x in flat]
    plain_args, plain_kwargs = pytree.tree_unflatten(given, spec)
    if asked is not None and device.type == "cuda":
        plain_kwargs["device"] = STATE.memory
    owners = {id(x.inner): x for x in flat if isinstance(x, DeviceTensor)}
    if _writes(func):
        return _write(func, plain_args, plain_kwargs, owners, args, kwargs)
    found = func(*plain_args, **plain_kwargs)
    if STATE.captured is not None:
        _record(func, plain_args, plain_kwargs, found, list(owners.values()))
    if device.type != "cuda":
        return found
    return pytree.tree_map_only(
        torch.Tensor, lambda t: owners[id(t)] if id(t) in owners else DeviceTensor(t, device), found
    )


def _write(func: Any, args: Any, kwargs: Any, owners: dict[int, DeviceTensor], outer: Any, outer_kw: Any) -> Any:
    """Run an operation that changes an argument; in a capture record it.

    A device would not run it then. Here it is run as well where it changes tensors of the capture: later operations
    take shapes, and indices within them, from values.
    """
    if STATE.captured is not None:
        STATE.captured.append(lambda: func(*args, **kwargs))
        changed = kwargs["out"] if "out" in kwargs else args[0]
        if changed.untyped_storage()._cdata in STATE.made:
            func(*args, **kwargs)
        return outer_kw["out"] if "out" in outer_kw else outer[0]
    found = func(*args, **kwargs)
    if func._schema.name.partition("::")[2] in _RESHAPING:
        with torch._C._ExcludeDispatchKeyGuard(_PYTHON):  # changes the wrapper's own shape
            func(*outer, **outer_kw)
    for owner in owners.values():
        if owner.shape != owner.inner.shape or owner.stride() != owner.inner.stride():
            raise NotImplementedError(f"{func} at {place()} gave its argument another shape: not pretended")
    return pytree.tree_map_only(torch.Tensor, lambda t: owners.get(id(t), t), found)


def _record(func: Any, args: Any, kwargs: Any, found: Any, inputs: list[DeviceTensor]) -> None:
    """Let the graph that is being captured compute this result again, in the same memory."""
    outs = [t for t in pytree.tree_leaves(found) if isinstance(t, torch.Tensor)]
    known = {x.inner.untyped_storage()._cdata for x in inputs}
    if all(t.untyped_storage()._cdata in known for t in outs):
        return  # views
    assert STATE.captured is not None
    STATE.made.update(t.untyped_storage()._cdata for t in outs)

    def again() -> None:
        new = [t for t in pytree.tree_leaves(func(*args, **kwargs)) if isinstance(t, torch.Tensor)]
        for old, fresh in zip(outs, new, strict=True):
            old.copy_(fresh)

    STATE.captured.append(again)


def _common_device(func: Any, flat: list[Any], args: Any) -> torch.device:
    """The device of all tensor arguments; zero-dimensional host tensors and host indices are allowed too."""
    found = {x.device for x in flat if isinstance(x, DeviceTensor)}
    if len(found) > 1:
        raise MixError(f"{func} at {place()} was given tensors of {sorted(map(str, found))}")
    host = [x for x in flat if isinstance(x, torch.Tensor) and not isinstance(x, DeviceTensor) and x.dim() > 0]
    if func._schema.name.partition("::")[2] in _INDEXING:
        indices = {id(i) for i in args[1] if i is not None}
        host = [x for x in host if id(x) not in indices]
    if host:
        raise MixError(f"{func} at {place()} was given a host tensor {tuple(host[0].shape)} beside device tensors")
    return found.pop()


def _check_waits(func: Any, args: Any, kwargs: Any) -> None:
    """Count operations that make the host wait on a GPU."""
    name = func._schema.name.partition("::")[2]
    if name in _ASKING or (name == "repeat_interleave" and kwargs.get("output_size") is None):
        waits(f"{func}")
    elif name in _INDEXING:
        for index in (i for i in args[1] if i is not None):
            if index.dtype in (torch.bool, torch.uint8):
                waits(f"{func} by flags")
            elif not isinstance(index, DeviceTensor):
                waits(f"{func} by a host index")
        if name != "index" and len(args) > 2 and not isinstance(args[2], DeviceTensor):
            waits(f"{func} of a host value")
    elif name == "where" and any(isinstance(x, torch.Tensor) and not isinstance(x, DeviceTensor) for x in args):
        waits(f"{func} with a host value")


def _copy(target: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    """``target.copy_(source)`` if either is on a pretend device."""
    if isinstance(target, DeviceTensor) and isinstance(source, DeviceTensor):
        if STATE.captured is not None:
            into, of = target.inner, source.inner
            STATE.captured.append(lambda: into.copy_(of))
        else:
            target.inner.copy_(source.inner)
    elif isinstance(target, DeviceTensor):
        memory.to_device(target.inner, source, non_blocking=non_blocking)
    else:
        assert isinstance(source, DeviceTensor)
        memory.to_host(target, source.inner, non_blocking=non_blocking)
    return target


def _to_copy(source: DeviceTensor, *, non_blocking: bool = False, **options: Any) -> Tensor:
    """``source.to(...)`` for a source on a pretend device."""
    options.pop("pin_memory", None)
    device = source.device if options.get("device") is None else _resolved(options["device"])
    if device.type == "cuda":
        casted = aten._to_copy.default(source.inner, **{**options, "device": STATE.memory})
        if STATE.captured is not None:
            inner, again = source.inner, {**options, "device": STATE.memory}
            STATE.captured.append(lambda: casted.copy_(aten._to_copy.default(inner, **again)))
        return DeviceTensor(casted, device)
    dtype = options.get("dtype") or source.dtype
    # Torch uses pinned memory for the result of a non-blocking copy.
    target = memory.pinned_empty(source.shape, dtype) if non_blocking else torch.empty(source.shape, dtype=dtype)
    memory.to_host(target, source.inner, non_blocking=non_blocking)
    return target


def register_factories() -> torch.library.Library:
    """Register the basic factories of tensors on pretend devices. The result must be kept alive."""
    library = torch.library.Library("aten", "IMPL")

    def put(name: str, func: Any) -> None:
        def make(*args: Any, **kwargs: Any) -> Tensor:
            device = _resolved(kwargs.get("device"))
            kwargs.update(device=STATE.memory, pin_memory=False)
            with torch.inference_mode(False):
                fresh = func(*args, **kwargs)
                if STATE.captured is not None:
                    STATE.made.add(fresh.untyped_storage()._cdata)
                return DeviceTensor(fresh, device)

        library.impl(name, make, "CUDA")

    put("empty.memory_format", aten.empty.memory_format)
    put("empty_strided", aten.empty_strided.default)
    put("arange", aten.arange.default)
    put("arange.start", aten.arange.start)
    put("arange.start_step", aten.arange.start_step)
    put("scalar_tensor", aten.scalar_tensor.default)
    return library
