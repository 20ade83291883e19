"""Rotary position embedding in a ``config.json``: its base and YaRN scaling, read as transformers 5 reads them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from wedlm_core.checks import is_flag, is_number, is_whole
from wedlm_core.errors import ConfigError, explain

MAX_POSITIONS = 1 << 22
REMEDY = "Correct config.json."
_NULL_IS_DEFAULT = ("attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim")
"""Fields of YaRN whose null means the default, in transformers too. Any other null is an error."""


def require(ok: bool, name: str, value: object, rule: str, remedy: str) -> None:
    """Raise a ConfigError that names value, rule and remedy, unless ``ok``."""
    if not ok:
        raise ConfigError(explain(name, value, rule, remedy))


@dataclass(frozen=True, kw_only=True)
class YarnScaling:
    """YaRN context extension (arXiv 2309.00071); names as in Hugging Face's ``rope_scaling``.

    Raises:
        ConfigError: a value is out of range.
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
        longest, many = MAX_POSITIONS, 1e6
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
            require(fits, f"rope_scaling.{name}", getattr(self, name), rule, REMEDY)


def rope_of(raw: Mapping[str, Any]) -> tuple[Any, YarnScaling | None]:
    """Read ``(theta, scaling)`` from a parsed ``config.json``.

    As in transformers, a ``rope_scaling`` that is not empty takes the place of ``rope_parameters``, and an original
    length at the top level the place of the one among them.

    Raises:
        ConfigError: a kind of scaling that is not implemented, or a value that is missing or out of range.
    """
    name = "rope_scaling" if raw.get("rope_scaling") not in (None, {}) else "rope_parameters"
    scaling = {} if raw.get(name) is None else raw[name]
    flat = isinstance(scaling, Mapping) and not any(isinstance(value, Mapping) for value in scaling.values())
    require(flat, name, scaling, "null, or an object that holds for all layers", REMEDY)
    for place in (raw, scaling):
        share = place.get("partial_rotary_factor")
        rule = "1, as rotating a part of each head is not implemented"
        require(share in (None, 1), "partial_rotary_factor", share, rule, "Use a Qwen-style model.")
    given = [v for v in (scaling.get("rope_theta"), raw.get("rope_theta")) if v is not None]
    theta = float(given[0]) if given and is_number(given[0]) else given[0] if given else 10_000.0
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    if kind == "default":
        return theta, None
    require(
        kind == "yarn",
        "rope_scaling",
        kind,
        "only default and yarn rotary scaling are implemented",
        "Remove rope_scaling (shorter context), or convert the model to YaRN.",
    )
    return theta, YarnScaling(**_yarn_fields(name, scaling, raw))


def _yarn_fields(name: str, scaling: Mapping[str, Any], raw: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of :class:`YarnScaling` in ``scaling``, the object called ``name`` of the configuration ``raw``."""
    require(scaling.get("factor") is not None, name, dict(scaling), "yarn needs a factor", "Add it to config.json.")
    fields = {
        field: scaling[field]
        for field in YarnScaling.__dataclass_fields__
        if field in scaling and not (field in _NULL_IS_DEFAULT and scaling[field] is None)
    }
    length = "original_max_position_embeddings"
    if length in raw:
        return {**fields, length: raw[length]}
    return {length: raw.get("max_position_embeddings", 32768), **fields}
