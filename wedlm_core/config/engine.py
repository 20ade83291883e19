"""EngineConfig: how one engine runs, frozen and validated. No I/O here."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from wedlm_core.checks import MOST, is_flag, is_number, is_whole
from wedlm_core.config.model import MOST_POSITIONS
from wedlm_core.config.step_cost import StepCost, why_not
from wedlm_core.config.streaming import StreamingSwitches
from wedlm_core.errors import ConfigError, explain

__all__ = ["EngineConfig"]

# Of EngineConfig: integers of 1 or more, those that may be left open, and fields that take a few values.
_COUNTS: Mapping[str, int] = {
    "max_num_seqs": 1 << 14,
    "max_batch_rows": 1 << 20,
    "max_window": 4096,
    "page_size": 1 << 16,
    "logits_chunk_rows": 1 << 20,
    "logits_chunk_bytes": 1 << 40,
    "graph_rows": 1 << 20,
    "graph_bytes": 1 << 40,
}
_OPTIONAL_COUNTS: Mapping[str, int] = {
    "prefill_chunk": MOST,
    "max_model_len": MOST_POSITIONS,
    "num_pages": MOST,
    "kv_cache_bytes": 1 << 48,
}
_CHOICES: Mapping[str, tuple[object, ...]] = {
    "batch_invariant": (True, False, "auto"),
    "overlap": (True, False, "auto"),
    "cuda_graphs": (True, False, "auto"),
    "kv_cache_dtype": ("auto", "fp8_e4m3"),
    "weight_dtype": ("auto", "int8", "fp8_e4m3"),
}
_FLAGS = ("prefix_caching", "trace")


def _require(ok: bool, name: str, value: object, rule: str, remedy: str) -> None:
    if not ok:
        raise ConfigError(explain(name, value, rule, remedy))


def _switches(given: Mapping[str, Any]) -> StreamingSwitches:
    known = list(StreamingSwitches.__dataclass_fields__)
    unknown = sorted(str(name) for name in given if name not in known)
    _require(not unknown, "streaming", unknown, f"fields are {known}", "Mend the name.")
    return StreamingSwitches(**given)


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """How one engine runs. Every field has a default that suits the shipped model on a laptop CPU.

    Attributes:
        max_num_seqs: sequences that may hold decoding state at once (running and preempted).
        max_batch_rows: token rows in one forward, prefill and decode together (the row budget).
        prefill_chunk: rows of one sequence's prefill in one forward at most; None is bounded by the budget.
        max_window: largest ``window_size`` a request may ask for.
        max_model_len: prompt + max_tokens at most; None takes the model's ``max_position_embeddings``.
        page_size: tokens per KV page.
        num_pages: pages in the pool; None sizes it from ``kv_cache_bytes``.
        kv_cache_bytes: bytes for the pool where ``num_pages`` is None; None takes 512 MiB, or what the
            model could use with ``max_num_seqs`` sequences if that is less; on CUDA what
            ``gpu_memory_utilization`` leaves, or what the model could use.
        gpu_memory_utilization: share of the device's whole memory that this engine may hold, weights and
            forwards included; on CUDA, where neither ``num_pages`` nor ``kv_cache_bytes`` is given. Several
            engines on one device need shares that add up to less than 1.
        kv_cache_dtype: "auto" keeps keys and values in the model's dtype; "fp8_e4m3" takes one byte each, at a
            published loss of quality (``benchmarks/results``); not for the compiled attention of CPUs.
        weight_dtype: "auto" keeps the weights of the layers as they are loaded; "int8" and "fp8_e4m3" take one byte
            each with a scale per output (:mod:`wedlm_core.model.quantised`), at a published loss of quality.
        prefix_caching: share full pages of equal prefixes between sequences.
        batch_invariant: a row's result is bitwise independent of everything else in the forward; "auto"
            is on for float32 on CPU. Off, "auto" attention on CPU is still the tiled backend; name "sdpa" for
            padded torch attention.
        attention: backend name or "auto".
        logits_chunk_rows: rows of logits in memory at once at most.
        logits_chunk_bytes: their bytes at most, in float32; top-k and top-p hold some ten times as much while they
            sort. The default is 441 rows of a vocabulary of 151,936.
        seed: run seed for requests that give none.
        step_cost: cost of a forward, for ``window_size="auto"``; None measures it once per model, device, dtype
            and threads, and keeps it in the user's cache folder.
        streaming: the parts of the ``streaming`` strategy; a mapping of its fields is taken too.
        overlap: launch a forward before the outcome of the one before it is known, so that the host's work is
            hidden behind the device's; "auto" is on for CUDA where the attention backend plans on the device, and
            off with ``trace``.
        cuda_graphs: replay captured forwards; "auto" is on where forwards overlap on CUDA.
        graph_rows: rows of the largest forward that is captured; larger ones, mostly prefill, run eagerly.
        graph_seconds: time that all captures together may take, at start-up and later.
        graph_bytes: device memory that all captures together may take.
        trace: record every decode forward in ``Generation.trace`` (slow; for tests and study).

    Raises:
        ConfigError: a value is out of range, or the row budget cannot hold one full window.
    """

    max_num_seqs: int = 64
    max_batch_rows: int = 2048
    prefill_chunk: int | None = None
    max_window: int = 32
    max_model_len: int | None = None
    page_size: int = 64
    num_pages: int | None = None
    kv_cache_bytes: int | None = None
    gpu_memory_utilization: float = 0.9
    kv_cache_dtype: Literal["auto", "fp8_e4m3"] = "auto"
    weight_dtype: Literal["auto", "int8", "fp8_e4m3"] = "auto"
    prefix_caching: bool = True
    batch_invariant: bool | Literal["auto"] = "auto"
    attention: str = "auto"
    logits_chunk_rows: int = 1024
    logits_chunk_bytes: int = 256 << 20
    seed: int = 0
    step_cost: StepCost | None = None
    streaming: StreamingSwitches = field(default_factory=StreamingSwitches)
    overlap: bool | Literal["auto"] = "auto"
    cuda_graphs: bool | Literal["auto"] = "auto"
    graph_rows: int = 512
    graph_seconds: float = 30.0
    graph_bytes: int = 512 << 20
    trace: bool = False

    def __post_init__(self) -> None:
        """Check ranges."""
        if isinstance(self.streaming, Mapping):
            object.__setattr__(self, "streaming", _switches(self.streaming))
        for name, most in _COUNTS.items():
            value, rule = getattr(self, name), f"an integer of 1 or more, {most} at most"
            _require(is_whole(value, 1, most), name, value, rule, "Drop it to use the default.")
        for name, most in _OPTIONAL_COUNTS.items():
            value, rule = getattr(self, name), f"None or an integer of 1 or more, {most} at most"
            _require(value is None or is_whole(value, 1, most), name, value, rule, "Drop it to use the default.")
        for name, choices in _CHOICES.items():
            value = getattr(self, name)
            rule = "one of " + ", ".join(json.dumps(choice) for choice in choices)
            # 1 equals true, and is none.
            _require(any(type(value) is type(c) and value == c for c in choices), name, value, rule, 'Use "auto".')
        for name in _FLAGS:
            _require(is_flag(getattr(self, name)), name, getattr(self, name), "true or false", "Pass a bool.")
        self._check_others()
        self._check_fit()

    def _check_others(self) -> None:
        """Check what is neither a count nor a choice."""
        share, seconds = self.gpu_memory_utilization, self.graph_seconds
        checks = (
            ("gpu_memory_utilization", is_number(share, 0, 1) and share > 0, "a share above 0 and up to 1", "Use 0.9."),
            ("graph_seconds", is_number(seconds, 0, 1e6), "seconds of 0 or more, 1e6 at most", "Use 30."),
            ("seed", is_whole(self.seed, 0, 2**63 - 1), "an integer in [0, 2**63)", "Use 0."),
            ("attention", isinstance(self.attention, str) and bool(self.attention), "the name of a backend",
             'Use "auto".'),
            ("streaming", isinstance(self.streaming, StreamingSwitches), "StreamingSwitches or a mapping of its fields",
             "Drop it to use the default."),
        )  # fmt: skip
        for name, fits, rule, remedy in checks:
            _require(fits, name, getattr(self, name), rule, remedy)
        if self.step_cost is not None:
            fault = why_not(self.step_cost)
            _require(fault is None, "step_cost", self.step_cost, str(fault), "Use None, and it is measured.")

    def _check_fit(self) -> None:
        """Check the sizes, and what has to go together."""
        rows = 2 * self.max_window + 1
        _require(self.page_size & (self.page_size - 1) == 0, "page_size", self.page_size, "a power of two", "Use 64.")
        _require(
            self.max_batch_rows >= rows,
            "max_batch_rows",
            self.max_batch_rows,
            f"at least 2 * max_window + 1 = {rows}, the rows one sequence can need in a forward",
            "Raise max_batch_rows or lower max_window.",
        )
        _require(
            not (self.trace and self.overlap is True),
            "overlap",
            self.overlap,
            "a trace needs each forward's windows before the next one runs",
            "Set overlap=False, or trace=False.",
        )
        _require(
            not (self.cuda_graphs is True and self.overlap is False),
            "cuda_graphs",
            self.cuda_graphs,
            "graphs are replayed by forwards that run ahead of the host",
            'Set overlap="auto", or cuda_graphs="auto".',
        )

    def logits_rows(self, vocab_size: int) -> int:
        """Rows of logits in memory at once at most, of a vocabulary of this size."""
        return max(1, min(self.logits_chunk_rows, self.logits_chunk_bytes // (4 * vocab_size)))
