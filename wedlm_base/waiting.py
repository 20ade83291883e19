"""How threads wait between parallel sections: asleep. Imports the standard library only.

OpenMP threads that spin while they wait take the CPU from other processes, and the sections themselves wait for threads
that got none. The compiled decoder's own threads look after themselves (:mod:`wedlm_core.model.team`).
"""

from __future__ import annotations

import os

_PASSIVE = {"OMP_WAIT_POLICY": "PASSIVE", "KMP_BLOCKTIME": "0"}
_CHOSEN = (*_PASSIVE, "GOMP_SPINCOUNT")


def wait_passively() -> None:
    """Let the threads of libraries that this process imports from now on sleep while they wait.

    Libraries read the environment when they are imported: call it before torch is. Where the user has set one of the
    variables, nothing is changed. Processes that are started later inherit it.
    """
    if not any(name in os.environ for name in _CHOSEN):
        os.environ.update(_PASSIVE)
