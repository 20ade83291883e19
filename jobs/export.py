"""Write the rows of an output as results of an OpenAI batch, or to a Delta or Iceberg table.

Example:
  wedlm-batch export out --to results.jsonl
  wedlm-batch export out --to lake/rows --format delta
  wedlm-batch export out --to lake.rows --format iceberg --table-options '{uri: "http://catalog:8181"}'

--format openai-batch (the default): the input of the run was a file of OpenAI's batch API. Answers go to --to, failed
requests to --errors-to, both as the lines that the API returns. The same output gives the same bytes, and a file
appears whole or not at all.

--format delta or iceberg: --to is the folder or URL of a Delta table, or the NAMESPACE.TABLE of an Iceberg table (each
needs the extra of its name). The table gets one commit for each publication that it does not have yet. Run the command
after each run; after a kill the same command continues.

Exit status:
  0  written, or there already
  1  the table could not be written; the same command continues
  2  there is nothing to export, or it cannot be read or written
"""

from __future__ import annotations

import argparse

import pipeline
from jobs.command import Command, Parser, refused
from jobs.config_options import add_output_options, parse_options


def add_options(parser: Parser) -> None:
    """The options."""
    add_output_options(parser)
    parser.add_argument(
        "--to", required=True, metavar="PLACE", help="Write answers to this file, or rows to this table."
    )
    parser.add_argument("--format", choices=[*pipeline.EXPORT_FORMATS, *pipeline.TABLE_FORMATS],
                        default=pipeline.EXPORT_FORMATS[0], help="Write this format (openai-batch).")  # fmt: skip
    parser.add_argument("--errors-to", metavar="FILE", help="Write failed requests to this file (NAME_errors.jsonl).")
    parser.add_argument("--model", metavar="NAME", help="Read the tokens of log-probabilities from this model.")
    parser.add_argument("--append", action="store_true", help="Append to a table that has rows of other writers.")
    parser.add_argument(
        "--table-options",
        type=parse_options,
        metavar="YAML",
        help="Pass these options to a Delta table's store, or to Iceberg's catalog, by the names of their packages.",
    )


def perform(args: argparse.Namespace) -> int:
    """Export."""
    try:
        lines = _table(args) if args.format in pipeline.TABLE_FORMATS else _openai_batch(args)
    except OSError as error:
        return refused(error)
    print("\n".join(lines))
    return 0


def _openai_batch(args: argparse.Namespace) -> list[str]:
    done = pipeline.export(args.output, args.to, format=args.format, errors_to=args.errors_to, model=args.model,
                           storage_options=args.storage_options)  # fmt: skip
    return [f"answers: {done.lines} lines in {done.to}", f"errors: {done.failed} lines in {done.errors_to}"]


def _table(args: argparse.Namespace) -> list[str]:
    done = pipeline.export_table(args.output, args.to, format=args.format, append=args.append,
                                 storage_options=args.storage_options, table_options=args.table_options)  # fmt: skip
    what = f"committed {', '.join(done.committed)}, {done.rows} rows" if done.committed else "had everything already"
    return [f"{done.table}: {what}; version {done.version}"]


main = Command(name="export", about=__doc__, add_options=add_options, perform=perform)

if __name__ == "__main__":
    raise SystemExit(main())
