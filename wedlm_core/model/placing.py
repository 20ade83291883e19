"""Copy the tensors of safetensors files into the parameters of a decoder, in several threads and small pieces.

Files are memory-mapped. Besides the parameters, a worker holds one piece of at most :data:`PIECE_BYTES`, in the file's
dtype, on the target device. The mapped pages belong to the system's page cache.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, Protocol, cast, runtime_checkable

import torch
from torch import Tensor, nn

from wedlm_core.config import ModelConfig
from wedlm_core.devices import on_device
from wedlm_core.kernels.rounding import rounded
from wedlm_core.model.checkpoint import Merges, TensorPlace, opened
from wedlm_core.model.decoder import Decoder
from wedlm_core.model.int8 import Int8Embedding
from wedlm_core.model.quantised import EXACT_DTYPES, prepare_exact
from wedlm_core.model.smoothing import Smoothing

PIECE_BYTES = 32 << 20
"""Bytes of a file that a worker copies at once (at least one matrix row)."""
_HOST_PIECE_BYTES = 4 << 20  # on a CPU: a larger copy in float32 would be new memory from the system for every piece

_TOGETHER = 64  # rows that panels have together
_MAX_WORKERS = 8  # more workers read no faster from one disk, and each holds a piece


@runtime_checkable
class _Puts(Protocol):
    """A layer that rounds or packs its weight while it is read."""

    def put(self, start: int, weight_RI: Tensor) -> None:
        """Store these outputs from ``start`` on."""
        ...


@dataclass(frozen=True, kw_only=True)
class _Piece:
    """Rows ``start : stop`` of one tensor of one file."""

    path: Path
    name: str
    start: int
    stop: int
    size: int


def empty_decoder(
    config: ModelConfig,
    *,
    device: str | torch.device,
    dtype: torch.dtype,
    weight_dtype: str = "auto",
    quantised_head: bool = True,
    packed: bool = False,
) -> Decoder:
    """A decoder with allocated but uninitialised parameters on ``device``.

    Its layers are those of ``weight_dtype`` if its products are exact. It is in evaluation mode, without gradients;
    tied weights are tied. Its rotary tables cover one position until :meth:`Decoder.set_max_positions` is called.

    Args:
        config: of the model.
        device: of its parameters.
        dtype: of those that are not narrower.
        weight_dtype: as in ``EngineConfig``.
        quantised_head: as in ``EngineConfig``.
        packed: see :func:`wedlm_core.model.weights.load_model`.
    """
    exact = weight_dtype in EXACT_DTYPES

    def planned(place: str | torch.device) -> Decoder:
        with torch.device("meta"):
            found = Decoder(config, max_positions=1).to(dtype)
        return prepare_exact(found, weight_dtype, place, head=quantised_head) if exact else found

    model = planned("meta" if packed else device)
    in_panels = packed and _use_panels(model)
    if packed and not in_panels:
        model = planned(device)
    for name, parameter in list(model.named_parameters()):
        owner, _, leaf = name.rpartition(".")
        memory = torch.empty(parameter.shape, device=device, dtype=dtype)
        setattr(model.get_submodule(owner), leaf, nn.Parameter(memory, requires_grad=False))
    if config.tie_word_embeddings and not in_panels and not (exact and quantised_head):
        model.lm_head.weight = model.embed.weight
    return model.eval()


def _use_panels(model: Decoder) -> bool:
    """Replace the layers of a model on the meta device by layers in panels, if this CPU has products for them."""
    from wedlm_core.model.decoder_team import numbers_of, why_no_team
    from wedlm_core.model.panel_layers import use_panels

    if why_no_team(model) is not None:
        return False
    use_panels(model, numbers_of)
    return True


def place(
    files: Mapping[str, Path],
    expected: Mapping[str, TensorPlace],
    model: nn.Module,
    *,
    workers: int | None = None,
    smoothing: Smoothing | None = None,
    adapter: Merges | None = None,
) -> None:
    """Fill the model's parameters from the files, cast to their dtype, tensor by tensor.

    Args:
        files: the file of each tensor; names that are not in ``expected`` are skipped.
        expected: the place of each tensor. The caller has checked names and shapes.
        model: the decoder to fill, or a part of one; its parameters are on one device.
        workers: number of threads; None takes the number of cores, at most 8.
        smoothing: folded into the parameters.
        adapter: added to the weights before.
    """
    device = next(model.parameters()).device
    most = min(PIECE_BYTES, _HOST_PIECE_BYTES) if device.type == "cpu" else PIECE_BYTES
    pieces = list(_pieces(files, expected, most))
    count = workers or min(_MAX_WORKERS, os.cpu_count() or 1)

    def fill(share: Sequence[_Piece]) -> None:
        for path, own in groupby(share, key=lambda piece: piece.path):
            with on_device(device), opened(path, device=device) as handle:
                for piece in own:
                    tensor = expected[piece.name]
                    rows, start = handle.get_slice(piece.name)[piece.start : piece.stop], tensor.start + piece.start
                    if adapter is not None:
                        rows = adapter.merged(piece.name, piece.start, rows)
                    if smoothing is not None:
                        rows = smoothing.folded(tensor.parameter, start, rows)
                    _put(model, tensor.parameter, start, rows)

    with ThreadPoolExecutor(count) as pool:
        for _ in pool.map(fill, _shares(pieces, count)):
            pass  # a worker's error is raised here


def _put(model: nn.Module, name: str, start: int, rows: Tensor) -> None:
    """Copy rows of a stored tensor to rows ``start ...`` of a parameter, rounded where the parameter is of integers."""
    owner, _, leaf = name.rpartition(".")
    module = model.get_submodule(owner)
    if leaf == "weight" and isinstance(module, _Puts):
        module.put(start, rows)
    else:
        getattr(module, leaf).narrow(0, start, len(rows)).copy_(rows)


def _pieces(files: Mapping[str, Path], expected: Mapping[str, TensorPlace], most: int) -> Iterator[_Piece]:
    """The pieces of all tensors, of ``most`` bytes at most, in file order."""
    for path in sorted(set(files.values())):
        with opened(path) as handle:
            for name in (n for n in handle.offset_keys() if n in expected and files.get(n) == path):
                row_bytes = handle.get_slice(name)[:1].nbytes
                for start, stop in _row_pieces(expected[name].shape[0], row_bytes, most):
                    yield _Piece(path=path, name=name, start=start, stop=stop, size=(stop - start) * row_bytes)


def _row_pieces(rows: int, row_bytes: int, most: int) -> Iterator[tuple[int, int]]:
    """``(start, stop)`` of consecutive matrix rows of at most ``most`` bytes, at least one row."""
    step = max(1, most // max(1, row_bytes))
    step -= step % _TOGETHER if step > _TOGETHER else 0
    return ((start, min(start + step, rows)) for start in range(0, rows, step))


def _shares(pieces: Iterable[_Piece], count: int) -> list[list[_Piece]]:
    """Split the pieces into consecutive shares of about equal bytes, so that each worker reads sequentially."""
    listed = list(pieces)
    total, passed = sum(piece.size for piece in listed), 0
    shares: list[list[_Piece]] = [[] for _ in range(count)]
    for piece in listed:
        shares[min(count - 1, passed * count // max(1, total))].append(piece)
        passed += piece.size
    return shares


def equal_rows(handle: Any, name: str, embed: nn.Module) -> bool:
    """Whether a stored tensor, cast, rounded or packed as an embedding is, equals it bit for bit; in pieces."""
    stored, panels = handle.get_slice(name), getattr(embed, "panels", None)
    shape = (panels.outputs, panels.inputs) if panels is not None else cast(Tensor, embed.weight).shape
    if tuple(stored.get_shape()) != tuple(shape):
        return False

    def equal(start: int, stop: int) -> bool:
        rows = stored[start:stop]
        if panels is not None:
            return bool(panels.holds(start, rows))
        own = cast(Tensor, embed.weight)[start:stop]
        if not isinstance(embed, Int8Embedding):
            return torch.equal(rows.to(own), own)
        byte_RI, scale_R = rounded(rows)
        return torch.equal(byte_RI, own) and torch.equal(scale_R, embed.scale_V[start:stop])

    row_bytes = stored[:1].nbytes
    return all(equal(start, stop) for start, stop in _row_pieces(shape[0], row_bytes, PIECE_BYTES))
