"""ModelConfig: the architecture of a model, frozen and validated; from and to ``config.json`` objects. No I/O here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from wedlm_core.checks import is_flag, is_number, is_whole
from wedlm_core.config.rope import MAX_POSITIONS, REMEDY, YarnScaling, require, rope_of
from wedlm_core.errors import ConfigError, explain

__all__ = ["EXACT_WEIGHT_DTYPES", "INT4_GROUP", "MAX_POSITIONS", "MOST_EXACT_INPUTS", "ModelConfig", "YarnScaling",
           "id_tuple"]  # fmt: skip

EXACT_WEIGHT_DTYPES = ("int8", "int4")
"""Values of ``weight_dtype`` that make products sums of integers."""
MOST_EXACT_INPUTS = (2**31 - 1) // 127**2
"""Most inputs of a layer whose sums of 8-bit integers always fit in 32 bits."""
INT4_GROUP = 32
"""Inputs of a layer that share a multiplier where weights are kept in 4 bits."""

# Sizes of a model, positive integers, with the largest plausible value; a larger one means a damaged file.
_SIZES: Mapping[str, int] = {
    "vocab_size": 1 << 24,
    "hidden_size": 1 << 20,
    "intermediate_size": 1 << 22,
    "num_hidden_layers": 4096,
    "num_attention_heads": 1 << 14,
    "num_key_value_heads": 1 << 14,
    "head_dim": 1 << 13,
    "max_position_embeddings": MAX_POSITIONS,
}
_MAX_THETA = 1e15
_MAX_ENDS = 1024  # end-of-sequence ids


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
            require(is_whole(value, 1, most), name, value, f"an integer of 1 or more, {most} at most", REMEDY)
        heads, vocab, theta = self.num_attention_heads, self.vocab_size, self.rope_theta
        checks = [
            ("num_key_value_heads", heads % self.num_key_value_heads == 0, f"divides num_attention_heads={heads}"),
            ("head_dim", self.head_dim % 2 == 0, "even, for rotary pairs"),
            ("rms_norm_eps", is_number(self.rms_norm_eps, 1e-30, 1), "a number above 0, 1 at most"),
            ("rope_theta", is_number(theta, 1, _MAX_THETA) and theta > 1,
             f"a number above 1, {_MAX_THETA:g} at most"),
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
            require(fits, name, getattr(self, name), rule, REMEDY)

    @classmethod
    def from_hf(cls, raw: Mapping[str, Any]) -> ModelConfig:
        """Read a Hugging Face ``config.json`` of model type ``wedlm``, ``qwen2`` or ``qwen3``.

        ``qk_norm`` and ``attention_bias`` are read where given; for plain Qwen configurations they follow
        from the model type (Qwen2: bias and no norm; Qwen3: norm, bias as configured). ``rope_theta`` is
        taken from ``rope_parameters`` (transformers 5) or the top level (transformers 4).

        Raises:
            ConfigError: unknown model type, activation, rotary scaling, or a missing size.
        """
        require(isinstance(raw, Mapping), "config.json", raw, "an object", "Download it again.")
        kind = raw.get("model_type", "wedlm")
        require(
            kind in ("wedlm", "qwen2", "qwen3"),
            "model_type",
            kind,
            "one of wedlm, qwen2, qwen3",
            "Convert the checkpoint to one of these layouts.",
        )
        activation = raw.get("hidden_act", "silu")
        require(activation == "silu", "hidden_act", activation, "only silu is implemented", "Use a Qwen-style model.")
        require(
            not _flag(raw, "use_sliding_window", False),
            "use_sliding_window",
            True,
            "sliding-window attention is not implemented",
            "Set it to false if the context allows.",
        )
        quantised = raw.get("quantization_config")
        rule = "null, as weights that are already quantised are not read"
        require(quantised in (None, {}), "quantization_config", quantised, rule,
                "Use the checkpoint in bfloat16; the engine's weight_dtype rounds it.")  # fmt: skip
        missing = [
            n
            for n in ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
            if n not in raw
        ]
        require(not missing, "config.json", missing, "these sizes are required", "Add them to config.json.")
        _check_full_attention(raw)
        theta, scaling = rope_of(raw)
        kv_heads = raw.get("num_key_value_heads")
        return cls(
            vocab_size=raw["vocab_size"],
            hidden_size=raw["hidden_size"],
            intermediate_size=raw["intermediate_size"],
            num_hidden_layers=raw["num_hidden_layers"],
            num_attention_heads=raw["num_attention_heads"],
            num_key_value_heads=raw["num_attention_heads"] if kv_heads is None else kv_heads,
            head_dim=_head_dim(raw, kind),
            max_position_embeddings=raw.get("max_position_embeddings", 32768),
            rms_norm_eps=raw.get("rms_norm_eps", 1e-6),
            rope_theta=theta,
            rope_scaling=scaling,
            attention_bias=_flag(raw, "attention_bias", kind == "qwen2"),
            qk_norm=_flag(raw, "qk_norm", kind != "qwen2"),
            tie_word_embeddings=_flag(raw, "tie_word_embeddings", False),
            mask_token_id=raw.get("mask_token_id"),
            bos_token_id=raw.get("bos_token_id"),
            eos_token_ids=id_tuple("eos_token_id", raw.get("eos_token_id")),
            pad_token_id=raw.get("pad_token_id"),
            initializer_range=raw.get("initializer_range", 0.02),
        )

    @property
    def kv_values_per_token(self) -> int:
        """Numbers that the KV cache holds for a token: keys and values of all layers."""
        return 2 * self.num_hidden_layers * self.num_key_value_heads * self.head_dim

    def kv_bytes_per_token(self, number: int, *, scaled_rows: bool = False) -> int:
        """Bytes that the KV cache holds for a token.

        Args:
            number: bytes of a number.
            scaled_rows: whether each key and value of a KV head has a float32 scale of its own.
        """
        scales = 4 * self.kv_values_per_token // self.head_dim if scaled_rows else 0
        return number * self.kv_values_per_token + scales

    @property
    def longest(self) -> int:
        """Positions the model was made for: ``max_position_embeddings``, or the length after YaRN's extension."""
        yarn = self.rope_scaling
        extended = 0 if yarn is None else int(yarn.factor * yarn.original_max_position_embeddings)
        return max(self.max_position_embeddings, extended)

    def check_length(self, wanted: int | None, model: str, name: str = "max_model_len") -> None:
        """Check that the model was made for ``wanted`` positions; None asks for none.

        Args:
            wanted: limit of prompt and output together, tokens.
            model: the model's name, for the message.
            name: of the setting, for the message.

        Raises:
            ConfigError: it was made for fewer.
        """
        if wanted is not None and wanted > self.longest:
            rule = f"at most {self.longest}, the positions that {model!r} was made for"
            raise ConfigError(explain(name, wanted, rule, "Lower it."))

    def check_weight_dtype(self, weight_dtype: str) -> None:
        """Check that the layers can be kept in a ``weight_dtype`` of :class:`EngineConfig`.

        Raises:
            ConfigError: the sum over a layer's inputs may exceed 32 bits, or the inputs cannot be grouped.
        """
        if weight_dtype not in EXACT_WEIGHT_DTYPES:
            return
        inputs = self.hidden_size, self.num_attention_heads * self.head_dim, self.intermediate_size
        if (widest := max(inputs)) > MOST_EXACT_INPUTS:
            rule = f"layers of {MOST_EXACT_INPUTS} inputs at most, so that sums fit in 32 bits; this model has {widest}"
            raise ConfigError(explain("weight_dtype", weight_dtype, rule, 'Use "auto".'))
        odd = [one for one in inputs if one % INT4_GROUP]
        if weight_dtype == "int4" and odd:
            rule = f"layers whose number of inputs is a multiple of {INT4_GROUP}; this model has one of {odd[0]}"
            raise ConfigError(explain("weight_dtype", weight_dtype, rule, 'Use "int8".'))

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
    fits = len(listed) <= _MAX_ENDS and all(map(is_whole, listed))
    require(fits, name, value, f"null, a token id, or a list of at most {_MAX_ENDS} of them", REMEDY)
    return tuple(listed)


def _flag(raw: Mapping[str, Any], name: str, default: bool) -> bool:
    """A bool of the configuration; null means the default. The string ``"false"`` is an error."""
    value = raw.get(name)
    require(value is None or is_flag(value), name, value, "true or false", REMEDY)
    return default if value is None else bool(value)


def _check_full_attention(raw: Mapping[str, Any]) -> None:
    """Refuse ``layer_types`` with another attention than the full one, as by a sliding window."""
    kinds, layers = raw.get("layer_types"), raw["num_hidden_layers"]
    others = [] if kinds is None else [kinds] if not isinstance(kinds, list) else kinds
    require(
        all(kind == "full_attention" for kind in others),
        "layer_types",
        kinds,
        'only "full_attention" is implemented (no sliding windows)',
        "Use a model whose layers all have full attention.",
    )
    require(kinds is None or len(kinds) == layers, "layer_types", kinds, f"one for each of {layers} layers", REMEDY)


_HEAD_DIMS = {"qwen3": 128}
"""Model type -> ``head_dim`` in transformers where a configuration has none; others divide the hidden size."""


def _head_dim(raw: Mapping[str, Any], kind: str) -> Any:
    """``head_dim`` as given, else the default of the model type."""
    width, heads, given = raw["hidden_size"], raw["num_attention_heads"], raw.get("head_dim", _HEAD_DIMS.get(kind))
    if given is not None or not (is_whole(width, 1) and is_whole(heads, 1)):
        return given  # __post_init__ checks the sizes
    rule = f"a multiple of num_attention_heads={heads} where head_dim is not given"
    require(width % heads == 0, "hidden_size", width, rule, REMEDY)
    return width // heads
