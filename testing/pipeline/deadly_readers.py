"""A prompt that kills the process which prepares it. Real worker processes import this module."""

from __future__ import annotations

import os
import signal
from typing import Any

POISON = "this prompt kills whoever reads it"


def make_readers_mortal() -> None:
    """Set-up hook of a worker process."""
    from pipeline.prompts import tokenize

    encode = tokenize._encode

    def mortal(prompts: list[Any], tokenizer: Any) -> None:
        if POISON in prompts:
            os.kill(os.getpid(), signal.SIGKILL)
        encode(prompts, tokenizer)

    tokenize._encode = mortal
