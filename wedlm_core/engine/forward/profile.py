"""Where a step's time goes: seconds per phase, added up over steps. Torch-free."""

from __future__ import annotations

import time


class StepProfile:
    """A stopwatch with laps; set it as ``Engine.profile`` to fill it.

    Phases, in order: ``schedule`` (queues, pages, windows of the plan), ``pack`` (rows of the forward as
    tensors), ``model`` (the decoder; on a CPU the whole forward), ``choose`` (logits and sampling), ``advance``
    (commits and the next window), ``fetch`` (copy to the host), ``wait`` (for a forward in flight), ``consume``
    (bookkeeping, finished generations). ``model`` and ``choose`` are the forward; the rest is host time. On a GPU
    phases overlap: synchronise to read them.

    Attributes:
        seconds: per phase.
        steps: laps of ``consume``.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.steps = 0
        self._last = time.perf_counter()

    def start(self) -> None:
        """Begin a step: earlier time belongs to no phase."""
        self._last = time.perf_counter()

    def lap(self, phase: str) -> None:
        """Add the time since the last lap to ``phase``."""
        now = time.perf_counter()
        self.seconds[phase] = self.seconds.get(phase, 0.0) + now - self._last
        self.steps += phase == "consume"
        self._last = now
