"""A Python session that runs blocks one after the other, in one namespace: ``python -m testing.pages.session``.

For each block the parent writes a line of JSON, ``{"code", "name", "output"}``, to the standard input. What the block
prints goes to the file ``output``; then a line of JSON with ``error`` (null, or a traceback) is written to the standard
output.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from typing import Any

__all__ = ["main"]


def main() -> None:
    """Run blocks until the standard input ends."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for line in sys.stdin:
        asked = json.loads(line)
        file = os.open(asked["output"], os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        os.dup2(file, 1)  # the descriptors: what worker processes and libraries print is the block's too
        os.dup2(file, 2)
        os.close(file)
        error = None
        try:
            exec(compile(asked["code"], asked["name"], "exec", dont_inherit=True), namespace)
        except BaseException:
            error = traceback.format_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        answers.write(json.dumps({"error": error}) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
