"""Upload the published files of an output, with a dataset card, to a Hugging Face hub.

Example:
  wedlm-batch push out --repo user/name

Makes one commit to a dataset repository: the published files and a README with statistics. A second push of the same
publication uploads nothing. The token is read from HF_TOKEN or from hf auth login; HF_ENDPOINT names another hub.

Exit status:
  0  the repository has the publication
  1  the hub refuses or does not answer; the same command continues
  2  nothing is published, a published file is damaged, or a name is at fault
"""

from __future__ import annotations

import argparse

import pipeline
from jobs.command import Command, Parser
from jobs.config_options import add_output_options


def add_options(parser: Parser) -> None:
    """The options."""
    add_output_options(parser)
    parser.add_argument(
        "--repo",
        required=True,
        metavar="USER/NAME",
        help="Upload to this dataset repository; it is made if it does not exist.",
    )
    parser.add_argument("--private", action="store_true", help="Make the repository private; refuse a public one.")
    parser.add_argument("--license", metavar="ID", help="Name this license in the card, such as apache-2.0.")
    parser.add_argument("--revision", metavar="BRANCH", help="Commit to this branch (main).")
    parser.add_argument("--dry-run", action="store_true", help="Print the files and the card; ask no server.")


def perform(args: argparse.Namespace) -> int:
    """Push."""
    done = pipeline.push(args.output, args.repo, private=args.private, license=args.license, dry_run=args.dry_run,
                         revision=args.revision, storage_options=args.storage_options)  # fmt: skip
    if args.dry_run:
        print("\n".join([*done.uploaded, "", done.card or ""]))
        return 0
    if done.unchanged:
        print(f"unchanged: {done.repo} has this publication, commit {done.commit}; nothing was uploaded")
    else:
        print(f"uploaded: {len(done.uploaded)} files, removed {len(done.removed)}; commit {done.commit}")
    print(done.url)
    return 0


main = Command(name="push", about=__doc__, add_options=add_options, perform=perform)

if __name__ == "__main__":
    raise SystemExit(main())
