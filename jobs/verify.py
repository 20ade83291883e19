"""Prove an output against the ledger and the checksums of its run.

Example:
  wedlm-batch verify out --input prompts.jsonl --regenerate 200

Reads every published row. With --input it also compares each row with the row of the input. With --regenerate it
generates some rows once more on this machine, alone and in another batch, and compares them to the bit.

Exit status:
  0  everything agrees
  1  something differs
  2  there is nothing to verify, or it cannot be read
"""

from __future__ import annotations

import argparse

import pipeline
from jobs.command import Command, Parser, refused
from jobs.config_options import add_output_options
from pipeline.codec import redact


def add_options(parser: Parser) -> None:
    """The options."""
    add_output_options(parser)
    parser.add_argument("--input", metavar="PATH", help="Compare with this input, as given to the run.")
    parser.add_argument(
        "--regenerate", type=int, default=0, metavar="ROWS", help="Generate so many rows once more; needs --input."
    )
    parser.add_argument("--model", help="Generate them with this model (the model that the run names).")


def perform(args: argparse.Namespace) -> int:
    """Print the checks and findings."""
    try:
        found = pipeline.verify(
            args.output, input=args.input, storage_options=args.storage_options, regenerate=args.regenerate,
            model=args.model,
        )  # fmt: skip
    except pipeline.SinkError as error:  # of the record; status 1 says that rows differ
        return refused(error)
    rows = {
        "output": found.output,
        "compared with the input": "yes" if found.against_source else "no (--input was not given)",
        "published files": f"{found.parts}, {found.bytes} bytes",
        "units": found.units,
        "input rows": f"{found.rows}, of which {found.failed_rows} failed",
        "output rows": found.output_rows,
        "problems": len(found.problems) + found.more_problems,
    }
    width = max(len(name) for name in rows)
    for name, value in rows.items():
        print(redact(f"{name:<{width}}  {value}"))
    for kind, texts in (("note", found.notes), ("proved", found.proved), ("not proved", found.not_proved)):
        for text in texts:
            print(redact(f"{kind}: {text}"))
    for problem in found.problems:
        print(redact(f"problem: {problem}"))
    if found.more_problems:
        print(f"and {found.more_problems} more")
    print("proven" if found.ok else "NOT proven")
    return 0 if found.ok else 1


main = Command(name="verify", about=__doc__, add_options=add_options, perform=perform, prints=True)

if __name__ == "__main__":
    raise SystemExit(main())
