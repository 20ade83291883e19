"""Shared by the parts of the GPU minutes: sizes, a time budget, timing on a device, and reports."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch

from benchmarks.common import table
from benchmarks.decode.random_model import SHAPES
from testing.engine.published_models import WEDLM_8B
from wedlm_core import ModelConfig

WeightDtype = Literal["auto", "int8", "int4", "fp8_e4m3"]
KvDtype = Literal["auto", "fp8_e4m3", "int8"]


@dataclass(frozen=True, kw_only=True)
class Scale:
    """The sizes of all measurements.

    Attributes:
        name: description, for the head of the result.
        config: configuration of the random model.
        dtype: dtype of the random model.
        row_counts: numbers of sequences, with one row each, for the time of a step.
        short_context: context length of these sequences and of warm-ups; a multiple of every page size.
        batches, contexts: batch sizes and context lengths of the races.
        host_batch: number of sequences for host time.
        max_rows: ``max_batch_rows`` of the engine.
        slice_seconds: length of one timed slice of decoding.
        race_steps: least steps of a slice of the races, as windows change every few steps.
        slices: most timed slices of a point.
        max_tokens: most tokens that a sequence generates in one run.
        probes: runs to find the temperature of a regime.
        copy_bytes: size of the copied tensor.
        gemm: edge of the square matrices.
        product_rows: rows of the products of a layer.
        attention: ``(sequences, rows each, context)`` of the shapes for timing backends, and of some the rows of a
            prompt's chunk after them.
    """

    name: str
    config: ModelConfig
    dtype: torch.dtype
    row_counts: Sequence[int]
    short_context: int
    batches: Sequence[int]
    contexts: Sequence[int]
    host_batch: int
    max_rows: int
    slice_seconds: float
    race_steps: int
    slices: int
    max_tokens: int
    probes: int
    copy_bytes: int
    gemm: int
    product_rows: Sequence[int]
    attention: Sequence[tuple[int, ...]]


FULL = Scale(
    name="random 8B weights in bfloat16",
    config=WEDLM_8B,
    dtype=torch.bfloat16,
    row_counts=(1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024),
    short_context=256,
    batches=(1, 8, 32, 64, 128, 256),
    contexts=(1024, 4096),
    host_batch=64,
    max_rows=8192,
    slice_seconds=0.35,
    race_steps=64,
    slices=3,
    max_tokens=512,
    probes=7,
    copy_bytes=4 << 30,
    gemm=8192,
    product_rows=(1, 16, 64, 128, 136, 192, 288, 384, 512, 576, 1024),
    attention=((1, 1, 4096), *((64, rows, 1024) for rows in (1, 8, 15, 16, 17, 31, 33)), (64, 1, 4096), (64, 17, 4096),
               (256, 1, 1024), (256, 1, 1024, 512), (1, 2048, 2048)),
)  # fmt: skip
TOY = Scale(
    name="a toy that only exercises the code",
    config=ModelConfig(
        vocab_size=1200,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=2048,
        mask_token_id=1199,
    ),
    dtype=torch.float32,
    row_counts=(1, 4),
    short_context=64,
    batches=(1, 4),
    contexts=(64, 128),
    host_batch=4,
    max_rows=256,
    slice_seconds=0.02,
    race_steps=4,
    slices=1,
    max_tokens=128,
    probes=2,
    copy_bytes=1 << 20,
    gemm=64,
    product_rows=(1, 17),
    attention=((2, 3, 64), (2, 1, 64, 20)),
)


def scale_of(shape: str, weight_dtype: str, *, tiny: bool) -> Scale:
    """The sizes for a shape of :data:`benchmarks.decode.random_model.SHAPES`; toy sizes have a shape of their own."""
    scale = TOY if tiny else replace(FULL, config=SHAPES[shape], name=f"random {shape.upper()} weights in bfloat16")
    return scale if weight_dtype == "auto" else replace(scale, name=f"{scale.name}, quantised to {weight_dtype}")


class Clock:
    """The remaining time of a section."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    @property
    def left(self) -> float:
        """Remaining seconds; negative once the time is over."""
        return self._end - time.monotonic()


@dataclass(kw_only=True)
class Scene:
    """The device and sizes for a section, and the results of earlier sections.

    Attributes:
        device: device of all models.
        scale: the sizes.
        clock: remaining time of the running section.
        weight_dtype, kv_dtype: of the random model's engine (``weight_dtype`` and ``kv_cache_dtype``).
        model: a folder with weights in place of random ones.
        bandwidth: bytes per second of a large copy, counting bytes read and written.
        gemm_rate: operations per second of a large product in the numbers that the random model's layers multiply.
        kept: objects for later sections of the same process (the random model's engine).
    """

    device: torch.device
    scale: Scale
    clock: Clock
    weight_dtype: WeightDtype = "auto"
    kv_dtype: KvDtype = "auto"
    model: str | None = None
    bandwidth: float = 0.0
    gemm_rate: float = 0.0
    kept: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Report:
    """The result of a section. Its Markdown table and its JSON have the same rows.

    Attributes:
        title: heading.
        notes: how it was measured.
        rows: one mapping per line; the keys of the first are the columns.
        facts: further figures, for the JSON and for later sections.
    """

    title: str
    notes: str
    rows: Sequence[Mapping[str, Any]] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)

    def markdown(self) -> str:
        """The section as Markdown: notes and table."""
        parts = [f"## {self.title}", self.notes]
        if self.rows:
            columns = list(dict.fromkeys(name for row in self.rows for name in row))
            parts.append(table(columns, ([row.get(name, "") for name in columns] for row in self.rows)))
        return "\n\n".join(parts)

    def plain(self) -> dict[str, Any]:
        """The section as JSON types."""
        return {"title": self.title, "notes": self.notes, "rows": [dict(r) for r in self.rows],
                "facts": dict(self.facts)}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Median of repeated measurements, with the lowest and the highest."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """The spread of at least one value."""
        return cls(median=statistics.median(values), low=min(values), high=max(values))

    def text(self, unit: float = 1.0) -> str:
        """``median (low-high)`` in multiples of ``unit``."""
        return f"{self.median / unit:.3g} ({self.low / unit:.3g}-{self.high / unit:.3g})"


def synchronise(device: torch.device) -> None:
    """Wait until the device has finished its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def replayed(work: Callable[[], object], device: torch.device) -> Callable[[], object]:
    """On CUDA, a function that replays ``work`` as a CUDA graph, without the host's launches; elsewhere ``work``.

    Raises:
        RuntimeError: the work cannot be captured.
    """
    if device.type != "cuda":
        return work
    side = torch.cuda.Stream(device)
    side.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(side):  # warm up: a capture must neither compile kernels nor allocate workspaces
        work()
    torch.cuda.current_stream(device).wait_stream(side)
    torch.cuda.synchronize(device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        result = work()

    def replay() -> object:
        graph.replay()
        return work, result  # the graph reads these: keep them alive

    return replay


def device_seconds(work: Callable[[], object], device: torch.device, *, repeats: int = 20, warm: int = 3) -> Spread:
    """Seconds of one call: between events on CUDA, wall-clock time on CPU."""
    for _ in range(warm):
        work()
    synchronise(device)
    if device.type != "cuda":
        found = []
        for _ in range(repeats):
            begin = time.perf_counter()
            work()
            found.append(time.perf_counter() - begin)
        return Spread.of(found)
    marks = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(repeats)]
    for first, last in marks:
        first.record()
        work()
        last.record()
    torch.cuda.synchronize(device)
    return Spread.of([first.elapsed_time(last) / 1e3 for first, last in marks])
