"""What ``streaming`` does beyond the published rule, each part switchable. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass

from wedlm_core.checks import is_flag, is_number
from wedlm_core.errors import ConfigError, explain

__all__ = ["StreamingSwitches"]

_MOST_NATS = 1e6


@dataclass(frozen=True, kw_only=True)
class StreamingSwitches:
    """The parts of the ``streaming`` strategy (design, section 5); what each is worth is in ``benchmarks/results``.

    Attributes:
        prefill_token: the prompt's last row gives the first token through the next-token head; off, masks give it.
        head_fills_leftmost: the last contiguous row gives the token after it through the next-token head, so that
            every forward commits; off, masks fill that slot too and the last committed row is forwarded once more.
        clip: windows end at ``max_tokens`` and behind a filled stop token.
        suppress: the mask id and padded vocabulary are never chosen.
        hole_price: nats added per unfilled slot before a candidate, which would be forwarded again every step.
        fallback: where no candidate is certain enough, fill the most certain one.

    Raises:
        ConfigError: neither the head nor the fallback would fill the leftmost slot, so decoding could stand still.
    """

    prefill_token: bool = True
    head_fills_leftmost: bool = True
    clip: bool = True
    suppress: bool = True
    hole_price: float = 0.1
    fallback: bool = False

    def __post_init__(self) -> None:
        """Check that decoding gets on."""
        for name in ("prefill_token", "head_fills_leftmost", "clip", "suppress", "fallback"):
            if not is_flag(getattr(self, name)):
                raise ConfigError(explain(f"streaming.{name}", getattr(self, name), "true or false", "Pass a bool."))
        if not is_number(self.hole_price, 0, _MOST_NATS):
            rule = f"nats of 0 or more, {_MOST_NATS:g} at most"
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
