"""Frozen, validated configurations: of a model (from its ``config.json``) and of an engine. No I/O here."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from wedlm_core.checks import MOST, is_flag, is_number, is_whole
from wedlm_core.decoding.switches import StreamingSwitches
from wedlm_core.errors import ConfigError, explain

if TYPE_CHECKING:
    from wedlm_core.engine.step_cost import StepCost

__all__ = ["EngineConfig", "ModelConfig", "YarnScaling"]


# Of a model: sizes, each an integer of 1 or more, and the most that makes sense; more is a damaged file.
_SIZES: Mapping[str, int] = {
    "vocab_size": 1 << 24,
    "hidden_size": 1 << 20,
    "intermediate_size": 1 << 22,
    "num_hidden_layers": 4096,
    "num_attention_heads": 1 << 14,
    "num_key_value_heads": 1 << 14,
    "head_dim": 1 << 13,
    "max_position_embeddings": 1 << 22,
}
_MOST_THETA = 1e15
_MOST_ENDS = 1024  # end-of-sequence ids
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
    "max_model_len": _SIZES["max_position_embeddings"],
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
_MEND = "Mend config.json."


def _require(ok: bool, name: str, value: object, rule: str, remedy: str) -> None:
    if not ok:
        raise ConfigError(explain(name, value, rule, remedy))


@dataclass(frozen=True, kw_only=True)
class YarnScaling:
    """YaRN context extension (arXiv 2309.00071); names as in Hugging Face's ``rope_scaling``.

    Raises:
        ConfigError: a value that no context extension has.
    """

    factor: float
    original_max_position_embeddings: int
    attention_factor: float | None = None
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True

    def __post_init__(self) -> None:
        """Check ranges."""
        longest, many = _SIZES["max_position_embeddings"], 1e6
        optional = ("attention_factor", "mscale", "mscale_all_dim")
        checks = (
            ("factor", is_number(self.factor, 1, many), f"a number from 1 to {many:g}"),
            ("original_max_position_embeddings", is_whole(self.original_max_position_embeddings, 1, longest),
             f"an integer from 1 to {longest}"),
            *((name, is_number(getattr(self, name), 1e-6, many), f"a number from 1e-06 to {many:g}")
              for name in ("beta_fast", "beta_slow")),
            *((name, getattr(self, name) is None or is_number(getattr(self, name), 1e-6, many),
               f"null or a number from 1e-06 to {many:g}") for name in optional),
            ("truncate", is_flag(self.truncate), "true or false"),
        )  # fmt: skip
        for name, fits, rule in checks:
            _require(fits, f"rope_scaling.{name}", getattr(self, name), rule, _MEND)


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
        """Check every value, and that the sizes fit together."""
        for name, most in _SIZES.items():
            value = getattr(self, name)
            _require(is_whole(value, 1, most), name, value, f"an integer of 1 or more, {most} at most", _MEND)
        heads, vocab, theta = self.num_attention_heads, self.vocab_size, self.rope_theta
        checks = [
            ("num_key_value_heads", heads % self.num_key_value_heads == 0, f"divides num_attention_heads={heads}"),
            ("head_dim", self.head_dim % 2 == 0, "even, for rotary pairs"),
            ("rms_norm_eps", is_number(self.rms_norm_eps, 1e-30, 1), "a number above 0, 1 at most"),
            ("rope_theta", is_number(theta, 1, _MOST_THETA) and theta > 1,
             f"a number above 1, {_MOST_THETA:g} at most"),
            ("initializer_range", is_number(self.initializer_range, 0, 1e6), "a number of 0 or more, 1e6 at most"),
            ("mask_token_id", self.mask_token_id is None or is_whole(self.mask_token_id, 0, vocab - 1),
             f"an id below vocab_size={vocab}"),
            ("eos_token_ids", isinstance(self.eos_token_ids, tuple) and all(map(is_whole, self.eos_token_ids)),
             "token ids, integers of 0 or more, below 2**31"),
            *((name, getattr(self, name) is None or is_whole(getattr(self, name), -1), "null or a token id")
              for name in ("bos_token_id", "pad_token_id")),
            *((name, is_flag(getattr(self, name)), "true or false")
              for name in ("attention_bias", "qk_norm", "tie_word_embeddings")),
        ]  # fmt: skip
        for name, fits, rule in checks:
            _require(fits, name, getattr(self, name), rule, _MEND)

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
        _require(isinstance(raw, Mapping), "config.json", raw, "an object", "Download it again.")
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
            not _flag(raw, "use_sliding_window", False),
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
        theta, scaling = _rope(raw)
        kv_heads = raw.get("num_key_value_heads")
        return cls(
            vocab_size=raw["vocab_size"],
            hidden_size=raw["hidden_size"],
            intermediate_size=raw["intermediate_size"],
            num_hidden_layers=raw["num_hidden_layers"],
            num_attention_heads=raw["num_attention_heads"],
            num_key_value_heads=raw["num_attention_heads"] if kv_heads is None else kv_heads,
            head_dim=_head_dim(raw),
            max_position_embeddings=raw.get("max_position_embeddings", 32768),
            rms_norm_eps=raw.get("rms_norm_eps", 1e-6),
            rope_theta=theta,
            rope_scaling=scaling,
            attention_bias=_flag(raw, "attention_bias", kind == "qwen2"),
            qk_norm=_flag(raw, "qk_norm", kind != "qwen2"),
            tie_word_embeddings=_flag(raw, "tie_word_embeddings", False),
            mask_token_id=mask_token_id if mask_token_id is not None else raw.get("mask_token_id"),
            bos_token_id=raw.get("bos_token_id"),
            eos_token_ids=id_tuple("eos_token_id", raw.get("eos_token_id")),
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


def id_tuple(name: str, value: object) -> tuple[int, ...]:
    """Token ids of a JSON value: null, one id, or a list of ids.

    Raises:
        ConfigError: anything else.
    """
    listed = [] if value is None else value if isinstance(value, list) else [value]
    fits = len(listed) <= _MOST_ENDS and all(map(is_whole, listed))
    _require(fits, name, value, f"null, a token id, or a list of at most {_MOST_ENDS} of them", _MEND)
    return tuple(listed)


def _flag(raw: Mapping[str, Any], name: str, default: bool) -> bool:
    """A flag of the configuration; null is the default, and ``"false"`` is not taken for true."""
    value = raw.get(name)
    _require(value is None or is_flag(value), name, value, "true or false", _MEND)
    return default if value is None else bool(value)


def _head_dim(raw: Mapping[str, Any]) -> Any:
    """As given, or what the hidden size leaves for each head."""
    width, heads, given = raw["hidden_size"], raw["num_attention_heads"], raw.get("head_dim")
    if given is not None or not (is_whole(width, 1) and is_whole(heads, 1)):
        return given  # sizes are checked with all others
    rule = f"a multiple of num_attention_heads={heads} where head_dim is not given"
    _require(width % heads == 0, "hidden_size", width, rule, _MEND)
    return width // heads


def _rope(raw: Mapping[str, Any]) -> tuple[Any, YarnScaling | None]:
    """``(theta, scaling)`` from ``rope_parameters`` or ``rope_theta`` + ``rope_scaling``."""
    name = "rope_parameters" if raw.get("rope_parameters") not in (None, {}) else "rope_scaling"
    scaling = {} if raw.get(name) is None else raw[name]
    flat = isinstance(scaling, Mapping) and not any(isinstance(value, Mapping) for value in scaling.values())
    _require(flat, name, scaling, "null, or an object that holds for all layers", _MEND)
    given = [v for v in (scaling.get("rope_theta"), raw.get("rope_theta")) if v is not None]
    theta = float(given[0]) if given and is_number(given[0]) else given[0] if given else 10_000.0
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
    # Where the original length is absent, Hugging Face takes max_position_embeddings for it.
    known.setdefault("original_max_position_embeddings", raw.get("max_position_embeddings", 32768))
    return theta, YarnScaling(**known)


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
            from wedlm_core.engine.step_cost import why_not

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
