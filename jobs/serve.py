"""Serve OpenAI's Files and Batches API: clients upload files of requests, and get files of results.

Example:
  wedlm-batch serve --store out/batches --model tiny

Then, in Python: openai.OpenAI(base_url="http://127.0.0.1:8000/v1", api_key="none").batches.create(...).

Files, batches and the rows of their runs are in the store, a folder or a URL. Batches run by metadata.priority and age.
After a kill at any moment the same command continues, and several servers may share a store.

Exit status:
  0         the settings were printed (--print-config)
  1         the store failed as the server started; the same command tries again
  2         settings, model, store or address are at fault
  130, 143  stopped; the same command continues
"""

from __future__ import annotations

import argparse

from jobs.cli import collect
from jobs.command import CONTINUES, Command, Parser
from jobs.config_options import SERVE_OPTIONS, add_config_options, parse_reference
from pipeline.serving.endpoint import serve

_OWN = ("host", "port", "token", "runs", "max_file_bytes", "max_requests")


def add_options(parser: Parser) -> None:
    """The options."""
    add_config_options(parser, SERVE_OPTIONS)
    own = parser.add_argument_group("endpoint").add_argument
    own("--host", default="127.0.0.1", metavar="ADDRESS", help="Listen on this address (127.0.0.1).")
    own("--port", type=int, default=8000, metavar="N", help="Listen on this port (8000); 0 picks a free one.")
    own("--token", type=parse_reference, metavar="YAML",
        help="Ask clients for this token as their API key; write {env: NAME} or {file: /path}.")  # fmt: skip
    own("--runs", type=int, default=1, metavar="N", help="Run this many batches at once (1).")
    own("--max-file-bytes", type=int, default=200 * 2**20, metavar="N", help="Refuse longer files (209715200).")
    own("--max-requests", type=int, default=50_000, metavar="N", help="Refuse batches of more requests (50000).")


def perform(args: argparse.Namespace) -> int:
    """Serve until a signal ends it."""
    args.settings = [*args.settings, "input=files"]  # a run has the file of its batch
    run = collect(args)
    own = {name: getattr(args, name) for name in _OWN}
    serve(run, lambda url: print(f"serving {url} from {run.output_name}", flush=True), **own)
    return 0


main = Command(name="serve", about=__doc__, add_options=add_options, perform=perform, continues=CONTINUES)

if __name__ == "__main__":
    raise SystemExit(main())
