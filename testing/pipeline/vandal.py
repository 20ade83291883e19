"""Damages a running job: its staged units, its state files and its input."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline import layout
from pipeline.commit.lease import current_holder
from pipeline.errors import SinkError
from pipeline.storage.open import open_storage
from pipeline.storage.protocol import Storage
from testing.pipeline.damage import FAULTS, swap

STAGING = {"bit flip": "a bit is flipped", "deletion": "deleted", "zeros": "zeros", "cut": "cut in the middle"}
"""Kind of damage to a staged object -> its fault."""
STATE_KINDS = (layout.LEASES, layout.RUN, layout.LEDGER, layout.MANIFEST, layout.PUBLICATIONS)


class Vandal:
    """Damages the output and the input of a job; needs nothing of the processes that run it.

    Args:
        config: of the job, fields of RunConfig; the input is a file.
        seed: of the choices.
    """

    def __init__(self, config: Mapping[str, Any], seed: int) -> None:
        self._storage: Storage = open_storage(config["output"], layout.SCRATCH, config.get("output_storage_options"))
        self._input = Path(config["input"])
        self._whole = self._input.read_bytes()
        self._random = random.Random(seed)

    def writer(self) -> int | None:
        """The process that holds the output's lease."""
        holder = current_holder(self._storage)
        return None if holder is None or holder.process is None else holder.process.pid

    def staged(self) -> list[str]:
        return self._storage.keys(layout.STAGED)

    def damage_staging(self, kind: str) -> bool:
        """Damage one staged object ("swap": two); whether there was any."""
        keys = self.staged()
        try:
            if kind == "swap":
                if len(keys) < 2:
                    return False
                swap(self._storage, *self._random.sample(keys, 2))
            else:
                if not keys:
                    return False
                FAULTS[STAGING[kind]](self._storage, self._random.choice(keys))
        except (FileNotFoundError, SinkError):
            return False  # it has just been published
        return True

    def empty_state(self) -> bool:
        """Leave a state object of one kind as a power loss may; whether there was any."""
        kinds = list(STATE_KINDS)
        self._random.shuffle(kinds)
        for kind in kinds:
            keys = self._storage.keys(kind)
            if keys:
                FAULTS["empty"](self._storage, self._random.choice(keys))
                return True
        return False

    def edit_input(self) -> None:
        """Other prompts in the file, of equal size, in place."""
        edited = self._whole.replace(b"Count from", b"Count upto")
        assert edited != self._whole
        with self._input.open("r+b") as file:
            file.write(edited)

    def restore_input(self) -> None:
        """The old content, in place."""
        with self._input.open("r+b") as file:
            file.write(self._whole)
