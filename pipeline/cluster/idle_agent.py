"""Stands in for Ray's dashboard agent in a private session: does nothing until the raylet that started it is gone.

Run as a script by the raylet, which ends if its agent does. Imports nothing of Ray, so it costs no time.
"""

from __future__ import annotations

import os
import time

_SECONDS = 1.0


def main() -> None:
    """Wait for the end of the parent process."""
    parent = os.getppid()
    while os.getppid() == parent:
        time.sleep(_SECONDS)


if __name__ == "__main__":
    main()
