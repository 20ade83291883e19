"""Launch every variant of the kernels that an engine uses for a model's shape, through the engine's own code."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from testing.ahead_of_time.driver import Kernel
from testing.pretend import LOG
from wedlm_core.attention import DeviceRows, PagedAttend
from wedlm_core.attention.paged_gpu import TritonPlan
from wedlm_core.config import EngineConfig, ModelConfig
from wedlm_core.decoding.allowed_tokens import AllowedRows, words_of_vocabulary
from wedlm_core.decoding.filters import FILTERS
from wedlm_core.decoding.sampling import Choice, SamplingRows
from wedlm_core.decoding.sampling_gpu import choose_gpu
from wedlm_core.decoding.strategies.verified import VerifiedDecoding
from wedlm_core.engine.forward.cuda_graphs import StaticInputs
from wedlm_core.engine.forward.device_state import DeviceState
from wedlm_core.engine.forward.graph_policy import GraphKey
from wedlm_core.engine.forward.groups import WideRun
from wedlm_core.engine.forward.pack_gpu import Shape
from wedlm_core.engine.forward.windows_by_kernels import WindowsByKernels, advance
from wedlm_core.kernels.rounding import RoundedRows
from wedlm_core.kv.pool import KVPool
from wedlm_core.model.decoder_gpu import DecoderGpu
from wedlm_core.model.int8_gpu import multiply_int4_gpu, multiply_int8_gpu, rounded_gpu
from wedlm_core.model.placing import empty_decoder
from wedlm_core.model.quantised import quantise, round_in_one_pass

_DEVICE = torch.device("cuda", 0)
_FP8 = torch.float8_e4m3fn
_PAGES, _DEEPEST = 256, 4096


@dataclass(frozen=True, kw_only=True)
class Variant:
    """A compiled kernel and a description of its launch."""

    launch: str
    kernel: Kernel


@dataclass(frozen=True, kw_only=True)
class _Attention:
    """A forward with ``rows`` rows in each of ``sequences`` sequences. Smaller forwards split the KV more."""

    rows: int
    sequences: int
    page_size: int = 64
    invariant: bool = False


# Tiles of 16 to 128 query rows for decoding, with and without splits, and for prefill; pages smaller than a block;
# unused sequences; invariance.
_WINDOW = _Attention(rows=32, sequences=64)
_FULL = (
    _WINDOW,
    *(_Attention(rows=rows, sequences=sequences) for rows in (1, 8, 16, 64, 512) for sequences in (1, 128)),
    *(_Attention(rows=rows, sequences=1, page_size=16) for rows in (1, 64, 512)),
    _Attention(rows=4, sequences=256),
    *(_Attention(rows=17, sequences=8, page_size=size, invariant=True) for size in (16, 64)),
)
_FEW = (
    _Attention(rows=1, sequences=1),
    _Attention(rows=512, sequences=128),
    _WINDOW,
    _Attention(rows=17, sequences=8, invariant=True),
)
_SAMPLERS: tuple[dict[str, Any], ...] = (  # rows, and which parts of the kernels they need; the last one needs all
    {"rows": 1},
    {"rows": 64, "sampled": True},
    {"rows": 0, "sampled": True, "suppressing": True},  # 0: as many as a forward has at most
    {"rows": 64, "sampled": True, "grammars": True},
    {"rows": 64, "sampled": True, "filtered": True},
    {"rows": 64, "adjusted": True},
    {"rows": 64, "reported": 5},
    {"rows": 64, "sampled": True, "suppressing": True, "grammars": True, "filtered": True, "adjusted": True,
     "reported": 20},
)  # fmt: skip


def variants(shapes: dict[str, ModelConfig], *, eight_bits: bool, brief: bool = False) -> Iterator[Variant]:
    """Compile the kernels of engines with these shapes, in float32 and bfloat16; more variants of the first shape.

    Args:
        shapes: model configurations by name.
        eight_bits: whether the device converts 8-bit floats.
        brief: each kernel in one or two variants: the first shape in bfloat16, attention of a long sequence alone and
            of prompts, and the sampler with all its parts.
    """
    for number, (name, shape) in enumerate(list(shapes.items())[: 1 if brief else None]):
        one = replace(shape, num_hidden_layers=1)  # all layers launch the same kernels
        for dtype in (torch.bfloat16,) if brief else (torch.bfloat16, torch.float32):
            label = f"{name} {str(dtype).removeprefix('torch.')}"
            main = number == 0 and dtype == torch.bfloat16
            few = _FEW[:3] if brief else _FEW
            for kind in _FULL if main and not brief else few:
                yield from _taken(f"{label} {kind}", partial(_attend, one, dtype, kind, None))
            if eight_bits and main:
                for kind in few[:1] if brief else few:
                    yield from _taken(f"{label} fp8 {kind}", partial(_attend, one, dtype, kind, _FP8))
            if number == 0 and dtype == torch.float32:
                for kind in few:
                    narrow = partial(_attend, one, dtype, kind, torch.bfloat16)
                    yield from _taken(f"{label} narrow keys and values {kind}", narrow)
            for kv_dtype in (None, _FP8) if eight_bits and main else (None,):
                yield from _taken(f"{label} layer", partial(_layer, one, dtype, kv_dtype=kv_dtype))
            for needs in _SAMPLERS[-1:] if brief else _SAMPLERS:
                yield from _taken(f"{label} sampler", partial(_sample, one, dtype, **needs))
            if eight_bits:
                yield from _taken(f"{label} rounding", partial(_round, one, dtype))
            sizes = [(64, shape.intermediate_size)] if brief else products(shape)
            yield from _taken(f"{label} int8", partial(_exact, one, dtype, sizes))
    yield from _taken("windows", partial(_windows, ((100, 16),) if brief else ((8, 1), (100, 16), (1, 1024))))


def _windows(sizes: Sequence[tuple[int, int]]) -> None:
    """Packing, the buffers of captured forwards, and advancing, which no shape changes; of sequences and windows."""
    config = EngineConfig(max_num_seqs=1024, max_window=512, max_batch_rows=2048)
    state = DeviceState(config, [VerifiedDecoding()], 5, _DEEPEST, _DEVICE)
    runner: Any = SimpleNamespace(state=state, pool=SimpleNamespace(page_size=config.page_size), device=_DEVICE)
    for sequences, width in sizes:
        total, shape = sequences * (width + 1), {"max_rows": width + 1, "max_kv": _DEEPEST}
        run = WideRun(decoding=VerifiedDecoding(), start=0, stop=sequences, width=width)
        facts_3S = torch.empty(3, sequences, dtype=torch.int64, device=_DEVICE)
        made = WindowsByKernels().prepare(runner, facts_3S, (run,), Shape(total=total, wanted=total, **shape))
        inputs = StaticInputs(rows=total, sequences=sequences, page_size=config.page_size, device=_DEVICE)
        inputs.fill(GraphKey(size=total, sequences=sequences, max_rows=width + 1, max_kv=_DEEPEST), made.batch)
        advance(state, made, Choice.new(torch.empty, total, 0, _DEVICE))


def _taken(label: str, launch: Callable[[], None]) -> Iterator[Variant]:
    LOG.launches.clear()
    launch()
    for each in LOG.launches:
        yield Variant(launch=f"{each.name}: {label}", kernel=each.made)


def _rows(kind: _Attention) -> DeviceRows:
    def ids(*shape: int) -> Tensor:
        return torch.empty(shape, dtype=torch.int32, device=_DEVICE)

    return DeviceRows(
        cu_rows_Z=ids(kind.sequences + 1),
        kv_lengths_S=ids(kind.sequences),
        pages_SP=ids(kind.sequences, _DEEPEST // kind.page_size),
        max_rows=kind.rows,
        max_kv=_DEEPEST,
        total=kind.rows * kind.sequences,
    )


def _attend(shape: ModelConfig, dtype: torch.dtype, kind: _Attention, kv_dtype: torch.dtype | None) -> None:
    pool = KVPool(shape, _PAGES, kind.page_size, device=_DEVICE, dtype=dtype, kv_dtype=kv_dtype)
    rows = _rows(kind)
    plan = TritonPlan(rows, pool, shape.num_attention_heads, batch_invariant=kind.invariant)
    plan.attend(0, torch.empty(rows.total, shape.num_attention_heads, shape.head_dim, dtype=dtype, device=_DEVICE))


def _layer(shape: ModelConfig, dtype: torch.dtype, weights: str = "auto", kv_dtype: torch.dtype | None = None) -> None:
    model = quantise(empty_decoder(shape, device=_DEVICE, dtype=dtype), weights, head=False)
    model.cos, model.sin = (torch.empty(64, shape.head_dim // 2, dtype=dtype, device=_DEVICE) for _ in range(2))
    ids = torch.empty(16, dtype=torch.int64, device=_DEVICE)
    pool = KVPool(shape, _PAGES, 64, device=_DEVICE, dtype=dtype, kv_dtype=kv_dtype)
    paged = PagedAttend(plan=_NoAttention(), pool=pool, entry_T=ids)
    with patch("wedlm_core.model.int8.has_gpu_kernels", return_value=True):  # which a first kernel's result would say
        DecoderGpu(model)(ids, ids, paged)


class _NoAttention:
    def attend(self, layer: int, q_THD: Tensor) -> Tensor:
        return q_THD


def _sample(
    shape: ModelConfig, dtype: torch.dtype, *, rows: int, sampled: bool = False, suppressing: bool = False,
    grammars: bool = False, filtered: bool = False, adjusted: bool = False, reported: int = 0,
) -> None:  # fmt: skip
    rows = rows or EngineConfig().logits_rows(shape.vocab_size)

    def some(dtype: torch.dtype) -> Tensor:
        return torch.empty(rows, dtype=dtype, device=_DEVICE)

    bits = torch.empty(rows, words_of_vocabulary(shape.vocab_size), dtype=torch.int32, device=_DEVICE)
    inputs = SamplingRows(
        temperature_R=some(torch.float32),
        seed_R=some(torch.int64),
        position_R=some(torch.int64),
        suppress_R=some(torch.bool),
        sampled=sampled,
        suppressing=suppressing,
        filters={one.field: some(one.dtype) for one in FILTERS if filtered},
        adjustments_N=torch.empty(40, dtype=torch.int64, device=_DEVICE) if adjusted else None,
        slot_R=some(torch.int64) if adjusted else None,
        report_R=some(torch.int64) if reported else None,
        most=reported,
        allowed=AllowedRows(bits_UW=bits, line_R=some(torch.int64)) if grammars else None,
    )
    logits = torch.empty(rows, shape.vocab_size, dtype=dtype, device=_DEVICE)
    choose_gpu(logits, inputs, mask_token_id=5, vocab_limit=shape.vocab_size - 3)


def products(shape: ModelConfig) -> list[tuple[int, int]]:
    """Rows and outputs of products that are compiled: all kinds of tiles, if the vocabulary is large."""
    some = (shape.hidden_size, shape.intermediate_size, shape.vocab_size)
    return [(rows, outputs) for outputs in some for rows in (16, 32, 64, 128, 192, 256, 512)]


def _exact(shape: ModelConfig, dtype: torch.dtype, sizes: Sequence[tuple[int, int]]) -> None:
    """A layer of int8 weights, and products with so many rows and outputs."""
    _layer(shape, dtype, "int8")
    inputs = shape.hidden_size
    rounded_gpu(torch.empty(8, inputs, dtype=dtype, device=_DEVICE))
    for count, outputs in sizes:
        scale_O = torch.empty(outputs, device=_DEVICE)
        weight_OI = torch.empty(outputs, inputs, dtype=torch.int8, device=_DEVICE)
        nibble_OJ = torch.empty(outputs, inputs // 2, dtype=torch.uint8, device=_DEVICE)
        multiplier_OG = torch.empty(outputs, inputs // 32, dtype=torch.uint8, device=_DEVICE)
        bias_O = torch.empty(outputs, dtype=dtype, device=_DEVICE) if count == 64 else None
        for filled in (count, count - 1):  # tiles that are full of rows, and others
            byte_RI = torch.empty(filled, inputs, dtype=torch.int8, device=_DEVICE)
            rows = RoundedRows(byte_RI, torch.empty(filled, device=_DEVICE))
            multiply_int8_gpu(rows, weight_OI, scale_O, bias_O, dtype)
            if outputs == shape.intermediate_size:  # their tiles depend on the rows alone
                multiply_int4_gpu(rows, nibble_OJ, multiplier_OG, scale_O, bias_O, dtype)


def _round(shape: ModelConfig, dtype: torch.dtype) -> None:
    for width in {shape.hidden_size, shape.intermediate_size, shape.num_attention_heads * shape.head_dim}:
        round_in_one_pass(torch.empty(8, width, dtype=dtype, device=_DEVICE))
