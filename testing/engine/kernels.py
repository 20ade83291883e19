"""Kernels of an engine, compiled once for all processes of a test run that begins without them.

python -m testing.engine.kernels
"""

from __future__ import annotations

import subprocess
import sys

from testing.repository import ROOT
from wedlm_core.cache import one_at_a_time
from wedlm_core.kernels.cpu.kept import are_kept, note_kept


def compile_aside() -> None:
    """Start a process that compiles them while the others collect their tests."""
    if not are_kept():
        subprocess.Popen([sys.executable, "-m", "testing.engine.kernels"], cwd=ROOT)


def compile_once() -> None:
    """Compile them, unless they are there, or another process does: then wait for it."""
    if are_kept():
        return
    with one_at_a_time("kernels"):
        if are_kept():
            return
        from wedlm_core import LLM, SamplingParams

        LLM("tiny", device="cpu").generate("a", SamplingParams(max_tokens=4, window_size=2, temperature=1.0))
        note_kept()


if __name__ == "__main__":
    compile_once()
