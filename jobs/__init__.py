"""Command-line jobs: thin wrappers that parse a configuration and call ``pipeline`` or ``wedlm_core``."""

import sys

from wedlm_base.names import refuse_hidden
from wedlm_base.waiting import wait_passively

wait_passively()  # before a job imports torch

if __name__ == "jobs":
    try:
        refuse_hidden("pipeline", "wedlm_core")
    except ImportError as error:
        if sys.argv[:1] != ["-m"]:
            raise
        print(f"error: {error}", file=sys.stderr)  # python -m jobs.generate
        raise SystemExit(2) from None
