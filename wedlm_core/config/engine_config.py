"""EngineConfig: the settings of one engine, frozen and validated. No I/O here."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from wedlm_core.checks import MAX_INT, is_flag, is_number, is_whole
from wedlm_core.config.model import EXACT_WEIGHT_DTYPES, MAX_POSITIONS
from wedlm_core.config.rope import require
from wedlm_core.config.step_cost import StepCost, why_not
from wedlm_core.errors import ConfigError
from wedlm_core.option_names import ENGINE_NAMES, known_fields_only

_MAX_NATS = 1e6


@dataclass(frozen=True, kw_only=True)
class StreamingSwitches:
    """Switches of the ``streaming`` strategy (docs/design/decoding.md).

    The measured effect of each switch is in ``benchmarks/results``. The next-token head is the model's ordinary output
    head, applied to a row in order to predict the token after it.

    Attributes:
        prefill_token: the prompt's last row predicts the first token through the next-token head. If false, a mask
            predicts it.
        head_fills_leftmost: the last contiguous row predicts the token after it through the next-token head, so
            that every forward commits. If false, a mask predicts that token too, and the last committed row is
            forwarded again.
        clip: windows end at ``max_tokens`` and after a filled stop token.
        suppress: the mask id and padded vocabulary are never chosen.
        hole_price: nats added for every unfilled position before a candidate: such a candidate is forwarded again
            in every step until the positions before it are filled.
        fallback: if no candidate is below the threshold, fill the one with the lowest entropy.

    Raises:
        ConfigError: neither ``head_fills_leftmost`` nor ``fallback`` is true, so a forward could fill nothing.
    """

    prefill_token: bool = True
    head_fills_leftmost: bool = True
    clip: bool = True
    suppress: bool = True
    hole_price: float = 0.1
    fallback: bool = False

    def __post_init__(self) -> None:
        """Check types, ranges, and that every forward fills something."""
        for name in ("prefill_token", "head_fills_leftmost", "clip", "suppress", "fallback"):
            value = getattr(self, name)
            require(is_flag(value), f"streaming.{name}", value, "true or false", "Pass a bool.")
        rule = f"nats of 0 or more, {_MAX_NATS:g} at most"
        fits = is_number(self.hole_price, 0, _MAX_NATS)
        require(fits, "streaming.hole_price", self.hole_price, rule, "Use 0 for no price.")
        rule = "without head_fills_leftmost decoding could stop filling masks"
        fits = self.head_fills_leftmost or self.fallback
        require(fits, "streaming.fallback", False, rule, "Set fallback to true.")


# Fields of EngineConfig: positive integers with their maximum, optional ones, and fields with a few values.
_COUNTS: Mapping[str, int] = {
    "max_num_seqs": 1 << 14,
    "max_batch_rows": 1 << 20,
    "max_window": 4096,
    "page_size": 1 << 16,
    "logits_chunk_rows": 1 << 20,
    "logits_chunk_bytes": 1 << 40,
    "graph_rows": 1 << 20,
    "graph_bytes": 1 << 40,
    "history_bytes": 1 << 40,
}
_OPTIONAL_COUNTS: Mapping[str, int] = {
    "prefill_chunk": MAX_INT,
    "max_model_len": MAX_POSITIONS,
    "num_pages": MAX_INT,
    "kv_cache_bytes": 1 << 48,
}
_CHOICES: Mapping[str, tuple[object, ...]] = {
    "batch_invariant": (True, False, "auto"),
    "overlap": (True, False, "auto"),
    "cuda_graphs": (True, False, "auto"),
    "kv_cache_dtype": ("auto", "float32", "bfloat16", "fp8_e4m3", "int8"),
    "weight_dtype": ("auto", *EXACT_WEIGHT_DTYPES, "fp8_e4m3"),
    "history_drafts": (True, False, "auto"),
}
_FLAGS = ("prefix_caching", "quantised_head", "trace")


def _switches(given: Mapping[str, Any]) -> StreamingSwitches:
    known = list(StreamingSwitches.__dataclass_fields__)
    unknown = sorted(str(name) for name in given if name not in known)
    require(not unknown, "streaming", unknown, f"fields are {known}", "Correct the name.")
    return StreamingSwitches(**given)


HISTORY_TOKENS = 64
"""Tokens of a sequence that its drafts from history can always go by, a power of two."""
_HISTORY_TOKEN_BYTES = 20  # with the orders of :class:`wedlm_core.engine.drafting.constants.DraftingConstants`


def least_history_bytes(sequences: int, token_bytes: int = _HISTORY_TOKEN_BYTES) -> int:
    """The least ``history_bytes`` for so many sequences: tables are powers of two, and half of them are their own."""
    return token_bytes << (2 * sequences * HISTORY_TOKENS - 1).bit_length()


@known_fields_only(ConfigError, ENGINE_NAMES)
@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """Settings of one engine. The defaults suit the shipped model on a laptop CPU.

    Attributes:
        max_num_seqs: sequences that may hold decoding state at once (running and preempted).
        max_batch_rows: token rows in one forward, prefill and decode together (the row budget).
        prefill_chunk: most prefill rows of one sequence in one forward; None: only ``max_batch_rows`` limits it.
        max_window: largest ``window_size`` a request may ask for.
        max_model_len: limit of prompt + max_tokens; None takes the model's ``max_position_embeddings``.
        page_size: tokens per KV page.
        num_pages: pages in the pool; None sizes it from ``kv_cache_bytes``.
        kv_cache_bytes: bytes of the pool if ``num_pages`` is None. None takes a quarter of the free memory on CPU
            (512 MiB at least), and on CUDA the rest of ``gpu_memory_utilization``; but never more than
            ``max_num_seqs`` sequences can use.
        gpu_memory_utilization: share of the device's total memory that this engine may hold, weights and
            activations included. Used on CUDA if neither ``num_pages`` nor ``kv_cache_bytes`` is given. The shares
            of several engines on one device must add up to less than 1.
        kv_cache_dtype: "auto" stores keys and values in the model's dtype, but in bfloat16 where a float32 model has
            its weights in "int8" or "int4" (:meth:`kv_numbers`). "bfloat16" rounds those of a float32 model to two
            bytes, in half the memory; attention still computes in float32. "float32" keeps them as they were computed
            on a CPU. "int8", on CPUs, takes one byte a number, and four bytes for the scale of each key and value of a
            KV head. "fp8_e4m3" takes one byte each. The loss of quality of each is measured (``benchmarks/results``).
        weight_dtype: "auto" keeps the weights as loaded. "int8" rounds weights and the rows that they are multiplied
            with to 8 bits (:mod:`wedlm_core.model.int8`): a quarter of float32's memory, faster products whose sums
            are exact. "int4", on GPUs, keeps the weights of the layers in 4 bits and expands them to 8 when they
            are used: half the memory of "int8", the same exactness, slower (:mod:`wedlm_core.model.int4`). "fp8_e4m3"
            does as "int8" with 8-bit floats, for GPUs (:mod:`wedlm_core.model.quantised`). Each at a measured loss of
            quality.
        quantised_head: whether "int8" and "int4" round the output head and the embedding too, to 8 bits.
        smoothing: scales of channels before "int8" and "int4" round them (:mod:`wedlm_core.model.smoothing`): "off";
            "sample", found at the first load from a shipped sample and cached; "model", the file
            ``smoothing.safetensors`` in the model's folder; or the path of such a file, which ``wedlm-batch smooth``
            makes from rows of a job.
        prefix_caching: share the full KV pages of equal prefixes between sequences.
        batch_invariant: whether a row's result must be bitwise independent of everything else in the forward
            (docs/design/batch-invariance.md). "auto" is true for float32 on CPU. False does not change
            the choice of ``attention="auto"`` on CPU; name "sdpa" for padded torch attention.
        attention: backend name or "auto" (:mod:`wedlm_core.attention.backends`).
        logits_chunk_rows: most rows of logits in memory at once.
        logits_chunk_bytes: most bytes of logits in memory at once, in float32. The default is 512 rows of a vocabulary
            of 151,936, which are whole tiles of a GPU's products.
        seed: run seed for requests without a seed.
        step_cost: cost of a forward, for ``window_size="auto"``; None measures it once per model, device, dtype
            and thread count, and stores it in the user's cache folder.
        streaming: the switches of the ``streaming`` strategy, or a mapping of its fields.
        history_drafts: draft the continuations of the same tokens in earlier text of the sequence, or of finished rows,
            for ``verified`` decoding with ``window_size="auto"``: any draft is safe there, so no output depends on it.
            "auto" is true if ``trace`` is false. Where forwards overlap, only long jobs try them, because each forward
            then waits for the outcome of the one before; true turns ``overlap="auto"`` off and tries them at once.
        history_bytes: memory for the texts that are drafted from, in bytes.
        overlap: launch a forward before the results of the previous one are known, so that the host works while the
            device computes. "auto" is true on CUDA if the attention backend plans on the device and ``trace`` is
            false.
        cuda_graphs: capture forwards and replay them; "auto" is true if forwards overlap on CUDA.
        graph_rows: rows of the largest forward that is captured; larger ones, mostly prefill, run eagerly.
        graph_seconds: total time for captures, at start-up and later.
        graph_bytes: total device memory for captures.
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
    kv_cache_dtype: Literal["auto", "float32", "bfloat16", "fp8_e4m3", "int8"] = "auto"
    weight_dtype: Literal["auto", "int8", "int4", "fp8_e4m3"] = "auto"
    quantised_head: bool = True
    smoothing: str = "off"
    prefix_caching: bool = True
    batch_invariant: bool | Literal["auto"] = "auto"
    attention: str = "auto"
    logits_chunk_rows: int = 1024
    logits_chunk_bytes: int = 297 << 20
    seed: int = 0
    step_cost: StepCost | None = None
    streaming: StreamingSwitches = field(default_factory=StreamingSwitches)
    history_drafts: bool | Literal["auto"] = "auto"
    history_bytes: int = 64 << 20
    overlap: bool | Literal["auto"] = "auto"
    cuda_graphs: bool | Literal["auto"] = "auto"
    graph_rows: int = 2048
    graph_seconds: float = 30.0
    graph_bytes: int = 512 << 20
    trace: bool = False

    def __post_init__(self) -> None:
        """Check ranges."""
        if isinstance(self.streaming, Mapping):
            object.__setattr__(self, "streaming", _switches(self.streaming))
        for name, most in _COUNTS.items():
            value, rule = getattr(self, name), f"an integer of 1 or more, {most} at most"
            require(is_whole(value, 1, most), name, value, rule, "Drop it to use the default.")
        for name, most in _OPTIONAL_COUNTS.items():
            value, rule = getattr(self, name), f"None or an integer of 1 or more, {most} at most"
            require(value is None or is_whole(value, 1, most), name, value, rule, "Drop it to use the default.")
        for name, choices in _CHOICES.items():
            value = getattr(self, name)
            rule = "one of " + ", ".join(json.dumps(choice) for choice in choices)
            # 1 == True, but 1 is not a valid flag.
            require(any(type(value) is type(c) and value == c for c in choices), name, value, rule, 'Use "auto".')
        for name in _FLAGS:
            require(is_flag(getattr(self, name)), name, getattr(self, name), "true or false", "Pass a bool.")
        self._check_others()
        self._check_fit()

    def _check_others(self) -> None:
        """Check the fields that are neither counts nor choices."""
        share, seconds = self.gpu_memory_utilization, self.graph_seconds
        checks = (
            ("gpu_memory_utilization", is_number(share, 0, 1) and share > 0, "a share above 0 and up to 1", "Use 0.9."),
            ("graph_seconds", is_number(seconds, 0, 1e6), "seconds of 0 or more, 1e6 at most", "Use 30."),
            ("seed", is_whole(self.seed, 0, 2**63 - 1), "an integer in [0, 2**63)", "Use 0."),
            ("attention", isinstance(self.attention, str) and bool(self.attention), "the name of a backend",
             'Use "auto".'),
            ("streaming", isinstance(self.streaming, StreamingSwitches), "StreamingSwitches or a mapping of its fields",
             "Drop it to use the default."),
            ("smoothing", isinstance(self.smoothing, str) and bool(self.smoothing),
             '"off", "sample", "model" or the path of a file', 'Use "off".'),
        )  # fmt: skip
        for name, fits, rule, remedy in checks:
            require(fits, name, getattr(self, name), rule, remedy)
        if self.step_cost is not None:
            fault = why_not(self.step_cost)
            require(fault is None, "step_cost", self.step_cost, str(fault), "Use None, and it is measured.")

    def _check_fit(self) -> None:
        """Check rules that involve several fields."""
        rows, least = 2 * self.max_window + 1, least_history_bytes(self.max_num_seqs)
        has_history = self.history_drafts is True or (self.history_drafts == "auto" and not self.trace)
        checks = (
            ("page_size", self.page_size & (self.page_size - 1) == 0, "a power of two", "Use 64."),
            ("max_batch_rows", self.max_batch_rows >= rows,
             f"at least 2 * max_window + 1 = {rows}, the rows one sequence can need in a forward",
             "Raise max_batch_rows or lower max_window."),
            ("history_drafts", not (self.history_drafts is True and self.overlap is True),
             "drafts from history need each forward's outcome before the next one runs",
             'Set overlap="auto", or history_drafts="auto".'),
            ("history_bytes", not has_history or self.history_bytes >= least,
             f"at least {least} for max_num_seqs={self.max_num_seqs}",
             "Give it more, lower max_num_seqs, or set history_drafts=False."),
            ("smoothing", self.smoothing == "off" or self.weight_dtype in EXACT_WEIGHT_DTYPES,
             f'weight_dtype="{self.weight_dtype}" rounds nothing that it could smooth',
             'Set weight_dtype="int8" or "int4", or drop it.'),
            ("overlap", not (self.trace and self.overlap is True),
             "a trace needs each forward's windows before the next one runs", "Set overlap=False, or trace=False."),
            ("cuda_graphs", not (self.cuda_graphs is True and self.overlap is False),
             "graphs are replayed by forwards that run ahead of the host",
             'Set overlap="auto", or cuda_graphs="auto".'),
        )  # fmt: skip
        for name, fits, rule, remedy in checks:
            require(fits, name, getattr(self, name), rule, remedy)

    def kv_numbers(self, dtype: str) -> str:
        """The numbers of the KV pool, for ``kv_cache_dtype`` and a model of this dtype ("float32", "bfloat16", ...).

        Rounding weights to 8 bits or fewer loses more than rounding keys and values to bfloat16, which halves the bytes
        that attention reads.
        """
        if self.kv_cache_dtype != "auto":
            return self.kv_cache_dtype
        return "bfloat16" if dtype == "float32" and self.weight_dtype in EXACT_WEIGHT_DTYPES else dtype

    def logits_rows(self, vocab_size: int) -> int:
        """Most rows of logits in memory at once, for a vocabulary of this size."""
        return max(1, min(self.logits_chunk_rows, self.logits_chunk_bytes // (4 * vocab_size)))
