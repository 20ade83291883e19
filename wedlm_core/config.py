"""Frozen, validated configurations: of a model (from its ``config.json``) and of an engine. No I/O here."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from wedlm_core.decoding.switches import StreamingSwitches
from wedlm_core.errors import ConfigError, explain

if TYPE_CHECKING:
    from wedlm_core.engine.step_cost import StepCost

__all__ = ["EngineConfig", "ModelConfig", "YarnScaling"]


_SIZES = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "max_position_embeddings",
)
# Of EngineConfig: integers of 1 or more, those that may be left open, and fields that take a few values.
_COUNTS = (
    "max_num_seqs",
    "max_batch_rows",
    "max_window",
    "page_size",
    "logits_chunk_rows",
    "logits_chunk_bytes",
    "graph_rows",
)
_OPTIONAL_COUNTS = ("prefill_chunk", "max_model_len", "num_pages", "kv_cache_bytes")
_CHOICES: Mapping[str, tuple[object, ...]] = {
    "batch_invariant": (True, False, "auto"),
    "overlap": (True, False, "auto"),
    "cuda_graphs": (True, False, "auto"),
    "kv_cache_dtype": ("auto", "fp8_e4m3"),
    "weight_dtype": ("auto", "int8", "fp8_e4m3"),
}


def _require(ok: bool, name: str, value: object, rule: str, remedy: str) -> None:
    if not ok:
        raise ConfigError(explain(name, value, rule, remedy))


@dataclass(frozen=True, kw_only=True)
class YarnScaling:
    """YaRN context extension (arXiv 2309.00071); names as in Hugging Face's ``rope_scaling``."""

    factor: float
    original_max_position_embeddings: int
    attention_factor: float | None = None
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Shape of a Qwen2.5- or Qwen3-style decoder; ``qk_norm`` and ``attention_bias`` are independent.

    Raises:
        ConfigError: sizes that do not fit together, or a feature this package does not implement.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int = 32768
    rms_norm_eps: float = 1e-6
    rope_theta: float = 1_000_000.0
    rope_scaling: YarnScaling | None = None
    attention_bias: bool = False
    qk_norm: bool = True
    tie_word_embeddings: bool = False
    mask_token_id: int | None = None
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    pad_token_id: int | None = None
    initializer_range: float = 0.02

    def __post_init__(self) -> None:
        """Check that the sizes fit together."""
        for name in _SIZES:
            value = getattr(self, name)
            _require(isinstance(value, int) and value >= 1, name, value, "an integer of 1 or more", "Mend config.json.")
        _require(
            self.num_attention_heads % self.num_key_value_heads == 0,
            "num_key_value_heads",
            self.num_key_value_heads,
            f"divides num_attention_heads={self.num_attention_heads}",
            "Mend config.json.",
        )
        _require(self.head_dim % 2 == 0, "head_dim", self.head_dim, "even, for rotary pairs", "Mend config.json.")
        if self.mask_token_id is not None:
            _require(
                0 <= self.mask_token_id < self.vocab_size,
                "mask_token_id",
                self.mask_token_id,
                f"an id below vocab_size={self.vocab_size}",
                "Mend config.json.",
            )

    @classmethod
    def from_hf(cls, raw: Mapping[str, Any], *, mask_token_id: int | None = None) -> ModelConfig:
        """Read a Hugging Face ``config.json`` of model type ``wedlm``, ``qwen2`` or ``qwen3``.

        ``qk_norm`` and ``attention_bias`` are read where given; for plain Qwen configurations they follow
        from the model type (Qwen2: bias and no norm; Qwen3: norm, bias as configured). ``rope_theta`` is
        taken from ``rope_parameters`` (transformers 5) or the top level (transformers 4).

        Args:
            raw: the parsed JSON object.
            mask_token_id: overrides the configuration's, for checkpoints that name it in the tokenizer only.

        Raises:
            ConfigError: unknown model type, activation, rotary scaling, or a missing size.
        """
        kind = raw.get("model_type", "wedlm")
        _require(
            kind in ("wedlm", "qwen2", "qwen3"),
            "model_type",
            kind,
            "one of wedlm, qwen2, qwen3",
            "Convert the checkpoint to one of these layouts.",
        )
        activation = raw.get("hidden_act", "silu")
        _require(activation == "silu", "hidden_act", activation, "only silu is implemented", "Use a Qwen-style model.")
        _require(
            not raw.get("use_sliding_window", False),
            "use_sliding_window",
            True,
            "sliding-window attention is not implemented",
            "Set it to false if the context allows.",
        )
        missing = [
            n
            for n in ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
            if n not in raw
        ]
        _require(not missing, "config.json", missing, "these sizes are required", "Add them to config.json.")
        heads = raw["num_attention_heads"]
        theta, scaling = _rope(raw)
        eos = raw.get("eos_token_id")
        return cls(
            vocab_size=raw["vocab_size"],
            hidden_size=raw["hidden_size"],
            intermediate_size=raw["intermediate_size"],
            num_hidden_layers=raw["num_hidden_layers"],
            num_attention_heads=heads,
            num_key_value_heads=raw.get("num_key_value_heads") or heads,
            head_dim=raw.get("head_dim") or raw["hidden_size"] // heads,
            max_position_embeddings=raw.get("max_position_embeddings", 32768),
            rms_norm_eps=raw.get("rms_norm_eps", 1e-6),
            rope_theta=theta,
            rope_scaling=scaling,
            attention_bias=bool(raw.get("attention_bias", kind == "qwen2")),
            qk_norm=bool(raw.get("qk_norm", kind != "qwen2")),
            tie_word_embeddings=bool(raw.get("tie_word_embeddings", False)),
            mask_token_id=mask_token_id if mask_token_id is not None else raw.get("mask_token_id"),
            bos_token_id=raw.get("bos_token_id"),
            eos_token_ids=_id_tuple(eos),
            pad_token_id=raw.get("pad_token_id"),
            initializer_range=raw.get("initializer_range", 0.02),
        )

    def to_hf(self) -> dict[str, Any]:
        """The ``config.json`` object that :meth:`from_hf` reads back to an equal configuration."""
        rope: dict[str, Any] = {"rope_type": "default", "rope_theta": self.rope_theta}
        if self.rope_scaling is not None:
            given = {k: v for k, v in vars(self.rope_scaling).items() if v is not None}
            rope = {**given, "rope_type": "yarn", "rope_theta": self.rope_theta}
        names = (
            *_SIZES,
            "rms_norm_eps",
            "attention_bias",
            "qk_norm",
            "tie_word_embeddings",
            "mask_token_id",
            "bos_token_id",
            "pad_token_id",
            "initializer_range",
        )
        return {
            "architectures": ["WeDLMForCausalLM"],
            "model_type": "wedlm",
            "hidden_act": "silu",
            **{name: getattr(self, name) for name in names},
            "rope_theta": self.rope_theta,
            "rope_parameters": rope,
            "eos_token_id": list(self.eos_token_ids) if len(self.eos_token_ids) != 1 else self.eos_token_ids[0],
        }


def _id_tuple(value: int | list[int] | None) -> tuple[int, ...]:
    if value is None:
        return ()
    return (value,) if isinstance(value, int) else tuple(value)


def _rope(raw: Mapping[str, Any]) -> tuple[float, YarnScaling | None]:
    """``(theta, scaling)`` from ``rope_parameters`` or ``rope_theta`` + ``rope_scaling``."""
    scaling = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    theta = float(scaling.get("rope_theta") or raw.get("rope_theta") or 10_000.0)
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    if kind == "default":
        return theta, None
    _require(
        kind == "yarn",
        "rope_scaling",
        kind,
        "only default and yarn rotary scaling are implemented",
        "Remove rope_scaling (shorter context), or convert the model to YaRN.",
    )
    _require("factor" in scaling, "rope_scaling", dict(scaling), "yarn needs a factor", "Add it to config.json.")
    known = {k: scaling[k] for k in YarnScaling.__dataclass_fields__ if scaling.get(k) is not None}
    original = known.pop("original_max_position_embeddings", None)
    # Where the original length is absent, Hugging Face takes max_position_embeddings for it.
    return theta, YarnScaling(
        original_max_position_embeddings=original or raw.get("max_position_embeddings", 32768), **known
    )


def _switches(given: Mapping[str, Any]) -> StreamingSwitches:
    known = list(StreamingSwitches.__dataclass_fields__)
    unknown = sorted(set(given) - set(known))
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
        for name in _COUNTS:
            value = getattr(self, name)
            _require(isinstance(value, int) and value >= 1, name, value, "an integer of 1 or more", "Raise it.")
        for name in _OPTIONAL_COUNTS:
            value = getattr(self, name)
            allowed = value is None or (isinstance(value, int) and value >= 1)
            _require(allowed, name, value, "None or an integer of 1 or more", "Drop it to use the default.")
        for name, choices in _CHOICES.items():
            value = getattr(self, name)
            rule = "one of " + ", ".join(json.dumps(choice) for choice in choices)
            _require(value in choices, name, value, rule, 'Use "auto".')
        self._check_fit()

    def _check_fit(self) -> None:
        """Check the sizes, and what has to go together."""
        share, rows = self.gpu_memory_utilization, 2 * self.max_window + 1
        allowed = isinstance(share, (int, float)) and 0 < share <= 1
        _require(allowed, "gpu_memory_utilization", share, "a share above 0 and up to 1", "Use 0.9.")
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
