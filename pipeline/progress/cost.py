"""The cost of a run: seconds of accelerators (or CPUs), per million tokens, and in money. A leaf of plain numbers."""

from __future__ import annotations

from dataclasses import dataclass

_MILLION = 1_000_000
_HOUR = 3600.0


@dataclass(frozen=True, kw_only=True)
class ResourceSeconds:
    """How long actors have lived, times the resources of each.

    Attributes:
        accelerators: GPU-seconds.
        cpus: CPU-seconds.
    """

    accelerators: float = 0.0
    cpus: float = 0.0

    def __add__(self, other: ResourceSeconds) -> ResourceSeconds:
        """The sums."""
        return ResourceSeconds(accelerators=self.accelerators + other.accelerators, cpus=self.cpus + other.cpus)

    @property
    def priced(self) -> float:
        """The seconds that are paid for: of accelerators; where there were none, of CPUs."""
        return self.accelerators or self.cpus

    @property
    def unit(self) -> str:
        """The resource of :attr:`priced`: ``GPU`` or ``CPU``."""
        return "GPU" if self.accelerators else "CPU"

    def per_million(self, tokens: int) -> float | None:
        """:attr:`priced` per million tokens; None without tokens."""
        return self.priced * _MILLION / tokens if tokens else None

    def cost(self, price_per_hour: float) -> float:
        """Price of the priced seconds, in the currency of ``price_per_hour`` (of one GPU or CPU)."""
        return self.priced / _HOUR * price_per_hour


def describe_cost(used: ResourceSeconds, tokens: int, price_per_hour: float | None) -> str:
    """One line for people. ``tokens``: generated in these seconds and committed."""
    each = used.per_million(tokens)
    line = f"{used.priced:.1f} {used.unit}-seconds reserved by actors"
    if each is not None:
        line += f", {each:.1f} per million tokens"
    if price_per_hour is None:
        return line
    line += f"; at {price_per_hour:g} per {used.unit}-hour: {used.cost(price_per_hour):.4g}"
    return line if each is None else f"{line}, {each / _HOUR * price_per_hour:.4g} per million tokens"
