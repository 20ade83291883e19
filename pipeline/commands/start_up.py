"""Parts of the start of a run's actors, over all of them."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

__all__ = ["PHASES", "StartUp"]

PHASES: Mapping[str, tuple[str, ...]] = {
    "scheduling": ("scheduled",),
    "fetch": ("model fetched",),
    "load": ("torch imported", "model loaded"),
    "compile": ("kernels ready", "draft kernels ready"),
    "measure": ("step costs known",),
}
"""Phase of a start -> the stages (:mod:`pipeline.stages`) that it is made of, in their order.

Scheduling: from the request for an actor to its process, waiting for a node included. Fetch: the download of the model.
Load: torch and the weights. Compile: the first forwards. Measure: the cost of forwards.
"""


@dataclass(frozen=True, kw_only=True)
class StartUp:
    """The start of the actors.

    Attributes:
        actors: that became ready.
        median, worst: seconds of each phase over these actors, and of all phases together under "all".
    """

    actors: int = 0
    median: Mapping[str, float] = field(default_factory=dict)
    worst: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, starts: Sequence[Mapping[str, float]]) -> StartUp:
        """From the seconds of the stages of each actor."""
        if not starts:
            return cls()
        seconds = {
            phase: [sum(taken.get(name, 0.0) for name in stages) for taken in starts]
            for phase, stages in PHASES.items()
        }
        seconds["all"] = [sum(each) for each in zip(*seconds.values(), strict=True)]
        return cls(
            actors=len(starts),
            median={phase: statistics.median(each) for phase, each in seconds.items()},
            worst={phase: max(each) for phase, each in seconds.items()},
        )

    def describe(self) -> str:
        """One line for people: the median and, of several actors, the worst; empty if none started."""
        if not self.actors:
            return ""

        def show(phase: str) -> str:
            worst = f" (worst {self.worst[phase]:.1f})" if self.actors > 1 else ""
            return f"{self.median[phase]:.1f} s{worst}"

        parts = ", ".join(f"{phase} {show(phase)}" for phase in PHASES)
        return f"Start of {self.actors} actor{'s' * (self.actors > 1)}: {show('all')}: {parts}"
