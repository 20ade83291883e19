"""Switches for what the ``streaming`` strategy adds to the published decoding rule. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass

from wedlm_core.checks import is_flag, is_number
from wedlm_core.errors import ConfigError, explain

__all__ = ["StreamingSwitches"]

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
            if not is_flag(getattr(self, name)):
                raise ConfigError(explain(f"streaming.{name}", getattr(self, name), "true or false", "Pass a bool."))
        if not is_number(self.hole_price, 0, _MAX_NATS):
            rule = f"nats of 0 or more, {_MAX_NATS:g} at most"
            raise ConfigError(explain("streaming.hole_price", self.hole_price, rule, "Use 0 for no price."))
        if not self.head_fills_leftmost and not self.fallback:
            raise ConfigError(
                explain(
                    "streaming.fallback",
                    False,
                    "without head_fills_leftmost a forward could fill nothing, for ever",
                    "Set fallback to true.",
                )
            )
