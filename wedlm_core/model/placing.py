"""Tensors of safetensors files, each straight to its rows of a parameter on the device, by several workers.

A file is mapped, not read: what a worker holds of it beside the parameters is one piece of at most
:data:`PIECE_BYTES`, in the file's dtype, on the target device. Pages of the mapping belong to the system's cache.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from wedlm_core.config import ModelConfig
from wedlm_core.devices import on_device
from wedlm_core.errors import WeightsError, explain, first_line
from wedlm_core.model.decoder import Decoder
from wedlm_core.model.expected_tensors import Slot

__all__ = ["PIECE_BYTES", "empty_decoder", "equal_rows", "opened", "place"]

PIECE_BYTES = 32 << 20
"""Bytes of the file that a worker handles at once (one row at least)."""

_MOST_WORKERS = 8  # more do not read faster from one disk, and each holds a piece


@dataclass(frozen=True, kw_only=True)
class _Piece:
    """Rows ``start : stop`` of one tensor of one file."""

    path: Path
    name: str
    start: int
    stop: int
    size: int


def empty_decoder(config: ModelConfig, *, device: str | torch.device, dtype: torch.dtype) -> Decoder:
    """A decoder laid out on the meta device whose parameters are then allotted, unset, where they shall live.

    In evaluation mode, without gradients, ties kept; the rotary tables are for one position until
    :meth:`Decoder.set_max_positions` is called.
    """
    with torch.device("meta"):
        model = Decoder(config, max_positions=1)
    for name, parameter in list(model.named_parameters()):
        owner, _, leaf = name.rpartition(".")
        memory = torch.empty(parameter.shape, device=device, dtype=dtype)
        setattr(model.get_submodule(owner), leaf, nn.Parameter(memory, requires_grad=False))
    if config.tie_word_embeddings:
        model.lm_head.weight = model.embed.weight
    return model.eval()


def opened(path: Path, device: str | torch.device = "cpu") -> Any:
    """A handle on a safetensors file whose tensors come out on ``device``.

    Raises:
        WeightsError: it is not a whole safetensors file.
    """
    try:
        return safe_open(path, framework="pt", device=str(device))
    except (SafetensorError, OSError) as error:
        rule = f"not a whole safetensors file ({first_line(error)})"
        raise WeightsError(explain("model", str(path), rule, "Download it again.")) from error


def place(files: Mapping[str, Path], slots: Mapping[str, Slot], model: Decoder, *, workers: int | None = None) -> None:
    """Fill the model's parameters from the files, cast to their dtype, tensor by tensor.

    Args:
        files: the file of every tensor; names without a slot are left out. Names and shapes were checked.
        slots: where each goes.
        model: parameters on one device.
        workers: threads; None takes as many as there are cores, up to 8.
    """
    places, device = dict(model.named_parameters()), model.embed.weight.device
    pieces = list(_pieces(files, slots))
    count = workers or min(_MOST_WORKERS, os.cpu_count() or 1)

    def fill(share: Sequence[_Piece]) -> None:
        for path, own in groupby(share, key=lambda piece: piece.path):
            with on_device(device), opened(path, device) as handle:
                for piece in own:
                    slot = slots[piece.name]
                    rows = places[slot.parameter].narrow(0, slot.start + piece.start, piece.stop - piece.start)
                    rows.copy_(handle.get_slice(piece.name)[piece.start : piece.stop])

    with ThreadPoolExecutor(count) as pool:
        for _ in pool.map(fill, _shares(pieces, count)):
            pass  # a worker's error is raised here


def _pieces(files: Mapping[str, Path], slots: Mapping[str, Slot]) -> Iterator[_Piece]:
    """All tensors in the order of their files, large ones in pieces."""
    for path in sorted(set(files.values())):
        with opened(path) as handle:
            for name in (n for n in handle.offset_keys() if n in slots and files.get(n) == path):
                row_bytes = handle.get_slice(name)[:1].nbytes
                for start, stop in _row_pieces(slots[name].shape[0], row_bytes):
                    yield _Piece(path=path, name=name, start=start, stop=stop, size=(stop - start) * row_bytes)


def _row_pieces(rows: int, row_bytes: int) -> Iterator[tuple[int, int]]:
    """``(start, stop)`` of consecutive rows of at most :data:`PIECE_BYTES`, one row at least."""
    step = max(1, PIECE_BYTES // max(1, row_bytes))
    return ((start, min(start + step, rows)) for start in range(0, rows, step))


def _shares(pieces: Iterable[_Piece], count: int) -> list[list[_Piece]]:
    """Consecutive runs of pieces of about the same bytes: each worker reads on through its part of the files."""
    listed = list(pieces)
    total, passed = sum(piece.size for piece in listed), 0
    shares: list[list[_Piece]] = [[] for _ in range(count)]
    for piece in listed:
        shares[min(count - 1, passed * count // max(1, total))].append(piece)
        passed += piece.size
    return shares


def equal_rows(handle: Any, name: str, expected: Tensor) -> bool:
    """Whether a stored tensor is ``expected`` bit for bit, once cast to its dtype; compared piece by piece."""
    stored = handle.get_slice(name)
    if tuple(stored.get_shape()) != tuple(expected.shape):
        return False
    row_bytes = stored[:1].nbytes
    return all(
        torch.equal(stored[a:b].to(expected), expected[a:b]) for a, b in _row_pieces(expected.shape[0], row_bytes)
    )
